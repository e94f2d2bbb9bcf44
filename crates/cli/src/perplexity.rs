//! `rocmforge perplexity`: measures perplexity and KL divergence like llama-perplexity.

use crate::input;
use crate::resolve;
use rocmforge::parts::{Bos, encode_prompt};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Error, Result};
use rocmforge_evaluate::{
    Divergence, DivergenceError, Mean, Perplexity, SavedLogits, divergence, perplexity, save_logits,
};
use rocmforge_gguf::{Existing, NewFile, escape_control};
use serde::Serialize;
use std::ops::ControlFlow;

use crate::answer::bar;
use crate::args::PerplexityArgs;
use crate::exit::{Early, usage};
use crate::interrupt::Interrupt;
use crate::output::{self, Out};
use crate::session::{Session, Vocabulary};

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    ctx: usize,
    #[serde(flatten)]
    result: &'a Measured,
    seconds: f64,
}

/// What was measured.
#[derive(Serialize)]
#[serde(untagged)]
enum Measured {
    Text(Perplexity),
    Compared(Divergence),
}

impl Measured {
    fn perplexity(&self) -> &Perplexity {
        match self {
            Measured::Text(perplexity) | Measured::Compared(Divergence { perplexity, .. }) => {
                perplexity
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        let Perplexity { ppl, stderr, .. } = self.perplexity();
        let mut lines = vec![format!("PPL = {ppl:.4} +- {stderr:.4}")];
        if let Measured::Compared(of) = self {
            let spread = |of: &Mean, factor: f64, digits: usize| {
                let [mean, stderr] = [of.mean * factor, of.stderr * factor];
                format!("{mean:.digits$} +- {stderr:.digits$}")
            };
            lines.push(format!(
                "base PPL = {:.4}, ln(PPL / base PPL) = {}",
                of.base_ppl,
                spread(&of.ln_ppl_ratio, 1.0, 5)
            ));
            lines.push(format!(
                "KL divergence = {}, median {:.6}, 99 % {:.5}, largest {:.4}",
                spread(&of.kl, 1.0, 6),
                of.kl_median,
                of.kl_99,
                of.kl_max
            ));
            lines.push(format!(
                "same most likely token = {} %, RMS change of the right token's probability = {:.3} %",
                spread(&of.same_top, 100.0, 2),
                100.0 * of.probability_rms
            ));
        }
        lines
    }
}

/// Names a file in messages.
fn shown(path: &Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}

/// Says what an error of a file was about.
fn of_file(error: DivergenceError, about: String) -> Error {
    match error {
        DivergenceError::Engine(error) => error.into(),
        error => Error::new(error).context(about),
    }
}

pub fn run(args: &PerplexityArgs) -> Result<()> {
    if args.chunks == Some(0) {
        return Err(usage(
            "--chunks must be at least 1; omit it for the whole text",
        ));
    }
    let interrupt = Interrupt::install()?;
    let text = match &args.file {
        Some(file) => input::read_file(file)?,
        None => Vec::new(),
    };
    let cannot_read = |path: &Path| format!("cannot read '{}'", shown(path));
    let mut base = match &args.kl_base {
        Some(path) => Some(SavedLogits::open(path).with_context(|| cannot_read(path))?),
        None => None,
    };
    let cannot_write = |path: &Path| format!("cannot write '{}'", shown(path));
    let create =
        |path: &Path| NewFile::create(path, Existing::Replace).with_context(|| cannot_write(path));
    // Reports an unwritable path before the work.
    args.save_logits.as_deref().map(create).transpose()?;
    let ctx = base.as_ref().map_or(args.ctx, SavedLogits::n_ctx);
    let mut session = Session::start(
        &args.model,
        &args.device,
        Vocabulary::Needed,
        resolve::engine_config(&args.device, Some(ctx))?,
    )?;
    let tokenizer = session.need_tokenizer()?.clone();
    let tokens = match &base {
        Some(base) => base.tokens().to_vec(),
        None => encode_prompt(&tokenizer, &text, Bos::AsFileSays, false),
    };
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());

    let windows = tokens.len() / ctx.max(1);
    let windows = args.chunks.map_or(windows, |chunks| windows.min(chunks));
    let bar = bar(windows, "{bar:30} {pos}/{len} windows, {msg}, {eta} left");
    bar.set_message("PPL n/a");
    let working = interrupt.guard();
    let started = Instant::now();
    let mut on_chunk = |so_far: &Perplexity| {
        bar.set_position(so_far.chunks as u64);
        bar.set_message(format!("PPL {:.4} +- {:.4}", so_far.ppl, so_far.stderr));
        match working.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let engine = &mut session.engine;
    let mut file = None;
    let result = match (&mut base, &args.kl_base, &args.save_logits) {
        (Some(base), Some(path), _) => divergence(engine, base, bos, args.chunks, &mut on_chunk)
            .map(Measured::Compared)
            .map_err(|error| of_file(error, format!("cannot compare with '{}'", shown(path)))),
        (_, _, Some(path)) => {
            let file = file.insert(create(path)?);
            let text = (&tokens[..], bos);
            save_logits(engine, text, ctx, args.chunks, file, &mut on_chunk)
                .map(Measured::Text)
                .map_err(|error| of_file(error, cannot_write(path)))
        }
        _ => perplexity(engine, &tokens, bos, ctx, args.chunks, on_chunk)
            .map(Measured::Text)
            .map_err(Into::into),
    };
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let result = result?;
    let stopped = working.asked();
    drop(working);
    if let (Some(file), Some(path), false) = (file, &args.save_logits, stopped) {
        let _writing = interrupt.guard_output();
        file.commit().with_context(|| cannot_write(path))?;
    }

    let mut out = Out::new();
    if args.json {
        let device = &session.engine.backend_info().device;
        out.json(&Report {
            model: &session.file.label,
            device,
            ctx,
            result: &result,
            seconds,
        })?;
    } else {
        result.lines().iter().try_for_each(|line| out.line(line))?;
    }
    out.finish()?;
    let chunks = result.perplexity().chunks;
    output::note(&format!(
        "[{} | {} of {} windows of {} tokens | {:.1} s, {:.1} tok/s | {}]",
        session.file.label,
        chunks,
        tokens.len() / ctx,
        ctx,
        seconds,
        (chunks * ctx) as f64 / seconds,
        session.engine.backend_info().device,
    ));
    if stopped {
        Err(Early::Interrupted.into())
    } else {
        Ok(())
    }
}
