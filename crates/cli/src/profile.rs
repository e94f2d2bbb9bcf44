//! `rocmforge profile`: shows where the time of a prompt and its answer goes, with advice.
//!
//! `runs` alternates runs with and without the step observer, `gather` computes a `Profile` from them, `text` prints it
//! and `files` writes it.

mod files;
mod gather;
mod runs;
mod text;

use crate::peaks::{self, Peaks};
use crate::resolve;
use rocmforge::parts::{Bos, encode_prompt};
use rocmforge_engine::PrefixSharing;
use rocmforge_runtime::gpu::WhenIdle;
use std::time::Instant;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use rocmforge_bench::load::Load;
use rocmforge_bench::requests::random_prompt;
use rocmforge_engine::{Device, EngineConfig};
use rocmforge_gguf::TokenId;
use rocmforge_profile::timer::Collector;
use rocmforge_runtime::gpu;

use crate::args::ProfileArgs;
use crate::exit::Early;
use crate::interrupt::Interrupt;
use crate::output::{self, Out};
use crate::prompt::Text;
use crate::session::{Session, Vocabulary};
use files::Files;
use gather::Found;
use runs::Runs;

/// Default prompt length in tokens.
const DEFAULT_PROMPT_TOKENS: u32 = 512;

pub fn run(args: &ProfileArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let scopes = Collector::new();
    let is_text = args.prompt.prompt.is_some() || args.prompt.file.is_some();
    // Before the model is loaded, to report a wrong path early.
    let text = match is_text {
        true => Some(Text::read(&args.prompt, ", or --prompt-tokens N")?),
        false => None,
    };
    let files = Files::create(args)?;
    // From here on, Ctrl-C only requests a stop, so that empty files are removed.
    let writing = (!files.is_empty()).then(|| interrupt.guard_output());
    let vocabulary = match is_text {
        true => Vocabulary::Needed,
        false => Vocabulary::Optional,
    };
    let mut config = resolve::answer_config(&args.device, &args.context, WhenIdle::Wait)?;
    if let Device::Gpu(gpu) = &mut config.device
        && gpu.id.is_none()
    {
        // The profile names the device; if there is none, the engine reports why.
        gpu.id = gpu::best(&gpu.open).ok().map(|best| best.chosen.id);
    }
    // Before the model is loaded into its memory.
    let doing = "measuring the peaks of the device";
    interrupt.doing(doing);
    let spinner = match output::is_quiet() {
        true => ProgressBar::hidden(),
        false => ProgressBar::new_spinner().with_message(doing),
    };
    spinner.enable_steady_tick(runs::TICK);
    let peaks = Peaks::measure(&config)?;
    let mut ceilings = Vec::from_iter(peaks.ceilings);
    spinner.finish_and_clear();
    // Resets the peak memory, which includes that measurement's (proc(5)).
    let counts_peak = rocmforge_cpu::memory::reset_peak();
    interrupt.doing("loading the model");
    let started = Instant::now();
    let mut session = {
        let _scope = scopes.scope("load model");
        Session::start(
            &args.model,
            &args.device,
            vocabulary,
            EngineConfig {
                prefix_sharing: PrefixSharing::Off,
                ..config
            },
        )?
    };
    let load = started.elapsed();

    let started = Instant::now();
    let prompt: Vec<TokenId> = match &text {
        Some(text) => {
            let _scope = scopes.scope("tokenize");
            let tokenizer = session.need_tokenizer()?;
            encode_prompt(tokenizer, &text.bytes, Bos::AsFileSays, false)
        }
        None => {
            let n = args.prompt_tokens.unwrap_or(DEFAULT_PROMPT_TOKENS);
            random_prompt(n as usize, session.model.config.n_vocab)
        }
    };
    let tokenize = text.is_some().then(|| started.elapsed());

    let working = writing.unwrap_or_else(|| interrupt.guard());
    let before = Load::now();
    let runs = Runs::measure(&mut session, &prompt, args, (&working, &scopes))?;
    let other_load = Load::of_others_since_then(before);
    if let Some(run) = &runs.stopped_in {
        output::note(&match runs.is_complete() {
            true => format!(
                "notice: stopped in {run}; the results include {} runs with and {} without profiling",
                runs.profiled.len(),
                runs.unprofiled.len()
            ),
            false => format!("notice: stopped in {run}; too early for results"),
        });
    }
    if !runs.is_complete() {
        return Err(Early::Interrupted.into());
    }
    // Before peaks are measured again.
    let peak_bytes = rocmforge_cpu::memory::peak_bytes().filter(|_| counts_peak);
    if let Device::Cpu = session.config.device {
        // The peaks of a GPU need memory that the model has now.
        ceilings.extend(peaks::ceilings(&session.config)?);
    }
    let found = Found {
        args,
        ceilings: match peaks.are_of(&session.engine, &session.config) {
            true => ceilings,
            false => Vec::new(),
        },
        other_load,
        session: &session,
        peak_bytes,
        load,
        tokenize,
        n_prompt: prompt.len(),
        scopes: &scopes,
    };
    let profile = found.profile(&runs).context("the runs have no times")?;
    let mut out = Out::new();
    match args.json {
        true => out.json(&profile)?,
        false => text::print(&profile, &mut out)?,
    }
    out.finish()?;
    files.write(&profile)?;
    if runs.stopped_in.is_some() {
        return Err(Early::Interrupted.into());
    }
    Ok(())
}
