//! `rocmforge perplexity`: measures perplexity like llama-perplexity.

use crate::input;
use crate::resolve;
use rocmforge::parts::{Bos, encode_prompt};
use std::time::Instant;

use anyhow::Result;
use rocmforge_evaluate::{Perplexity, perplexity};
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
    result: Perplexity,
    seconds: f64,
}

pub fn run(args: &PerplexityArgs) -> Result<()> {
    if args.chunks == Some(0) {
        return Err(usage(
            "--chunks must be at least 1; omit it for the whole text",
        ));
    }
    let interrupt = Interrupt::install()?;
    let text = input::read_file(&args.file)?;
    let mut session = Session::start(
        &args.model,
        &args.device,
        Vocabulary::Needed,
        resolve::engine_config(&args.device, Some(args.ctx))?,
    )?;
    let tokenizer = session.need_tokenizer()?.clone();
    let tokens = encode_prompt(&tokenizer, &text, Bos::AsFileSays, false);
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());

    let windows = tokens.len() / args.ctx.max(1);
    let windows = args.chunks.map_or(windows, |chunks| windows.min(chunks));
    let bar = bar(windows, "{bar:30} {pos}/{len} windows, {msg}, {eta} left");
    bar.set_message("PPL n/a");
    let working = interrupt.guard();
    let started = Instant::now();
    let result = perplexity(
        &mut session.engine,
        &tokens,
        bos,
        args.ctx,
        args.chunks,
        |so_far| {
            bar.set_position(so_far.chunks as u64);
            bar.set_message(format!("PPL {:.4} +- {:.4}", so_far.ppl, so_far.stderr));
            if working.asked() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let result = result?;
    let stopped = working.asked();
    drop(working);

    let mut out = Out::new();
    if args.json {
        let device = &session.engine.backend_info().device;
        out.json(&Report {
            model: &session.file.label,
            device,
            ctx: args.ctx,
            result,
            seconds,
        })?;
    } else {
        out.line(&format!("PPL = {:.4} +- {:.4}", result.ppl, result.stderr))?;
    }
    out.finish()?;
    output::note(&format!(
        "[{} | {} of {} windows of {} tokens | {:.1} s, {:.1} tok/s | {}]",
        session.file.label,
        result.chunks,
        tokens.len() / args.ctx,
        args.ctx,
        seconds,
        (result.chunks * args.ctx) as f64 / seconds,
        session.engine.backend_info().device,
    ));
    if stopped {
        Err(Early::Interrupted.into())
    } else {
        Ok(())
    }
}
