//! `rocmforge profile`: what a prompt and an answer spend their time on, and what would help.
//!
//! `runs` takes turns with and without the observer of steps, `gather` makes a `Profile` of what came of them, `text`
//! prints it,
//! `files` writes it.

mod files;
mod gather;
mod runs;
mod text;

use std::time::Instant;

use anyhow::{Context as _, Result};
use rocmforge_bench::requests::random_prompt;
use rocmforge_cpu::default_threads;
use rocmforge_engine::{Device, EngineConfig};
use rocmforge_gguf::TokenId;
use rocmforge_profile::schema::Ceilings;
use rocmforge_profile::timer::Collector;
use rocmforge_runtime::gpu;

use crate::args::ProfileArgs;
use crate::exit::Early;
use crate::interrupt::Interrupt;
use crate::output::{self, Out};
use crate::prompt::Text;
use crate::session::{self, Bos, Session, Vocabulary};
use files::Files;
use gather::Found;
use runs::Runs;

/// Tokens of a prompt that nobody gave.
const DEFAULT_PROMPT_TOKENS: u32 = 512;

pub fn run(args: &ProfileArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let scopes = Collector::new();
    let is_text = args.prompt.prompt.is_some() || args.prompt.file.is_some();
    // Read before the model is loaded: a wrong path is told at once.
    let text = match is_text {
        true => Some(Text::read(&args.prompt, ", or --prompt-tokens N")?),
        false => None,
    };
    let files = Files::create(args)?;
    // From here on Ctrl-C only asks, so that files without content are removed.
    let writing = (!files.is_empty()).then(|| interrupt.guard_output());
    let vocabulary = match is_text {
        true => Vocabulary::Needed,
        false => Vocabulary::Optional,
    };
    let mut config = session::answer_config(&args.device, &args.context)?;
    if let Device::Gpu(gpu) = &mut config.device
        && gpu.id.is_none()
    {
        // The profile names the device; where there is none the engine says why.
        gpu.id = gpu::first(&gpu.open).ok();
    }
    // Before the model takes its memory.
    let asked = config.device.clone();
    let ceilings = ceilings(&config)?;
    // That took memory of its own: the peak counts from here (proc(5)).
    let counts_peak = std::fs::write("/proc/self/clear_refs", "5").is_ok();
    let started = Instant::now();
    let mut session = {
        let _scope = scopes.scope("load model");
        Session::start_measured(&args.model, &args.device, vocabulary, config)?
    };
    let load = started.elapsed();

    let started = Instant::now();
    let prompt: Vec<TokenId> = match &text {
        Some(text) => {
            let _scope = scopes.scope("tokenize");
            let tokenizer = session.need_tokenizer()?;
            session::encode(tokenizer, &text.bytes, Bos::AsTheFileSays, false)
        }
        None => {
            let n = args.prompt_tokens.unwrap_or(DEFAULT_PROMPT_TOKENS);
            random_prompt(n as usize, session.model.config.n_vocab)
        }
    };
    let tokenize = text.is_some().then(|| started.elapsed());

    let working = writing.unwrap_or_else(|| interrupt.guard());
    let runs = Runs::measure(&mut session, &prompt, args, (&working, &scopes))?;
    let was_stopped = runs.was_stopped;
    if !runs.is_complete() {
        return Err(Early::Interrupted.into());
    }
    let found = Found {
        args,
        // Those of a GPU that was not taken in the end, or has a part of the model only, are not the CPU's.
        ceilings: ceilings.filter(|_| {
            is_on_gpu(&asked) == is_on_gpu(&session.config.device)
                && session.engine.backend_info().parts.is_empty()
        }),
        session: &session,
        counts_peak,
        load,
        tokenize,
        n_prompt: prompt.len(),
        scopes: &scopes,
    };
    let profile = found.profile(&runs).context("the runs gave no times")?;
    let mut out = Out::new();
    match args.json {
        true => out.json(&profile)?,
        false => text::print(&profile, &mut out)?,
    }
    out.finish()?;
    files.write(&profile)?;
    if was_stopped {
        output::note("notice: stopped early; what was measured until then counts");
        return Err(Early::Interrupted.into());
    }
    Ok(())
}

fn is_on_gpu(device: &Device) -> bool {
    matches!(device, Device::Gpu(_))
}

/// What the device can do at best; `None` if nothing measures it.
fn ceilings(config: &EngineConfig) -> Result<Option<Ceilings>> {
    match &config.device {
        Device::Cpu => {
            let n_threads = config.n_threads.unwrap_or_else(default_threads);
            Ok(Some(Ceilings::of_cpu(config.isa, n_threads)))
        }
        Device::Gpu(gpu) => Ok(Ceilings::of_gpu(gpu)?),
    }
}
