//! `rocmforge imatrix`: computes an importance matrix: how strongly each weight column is activated by a text.

use crate::input;
use crate::resolve;
use rocmforge::parts::{Bos, encode_prompt};
use rocmforge_engine::{EngineConfig, PrefixSharing};
use rocmforge_plan::Fusion;
use std::time::Instant;

use anyhow::{Context as _, Result};
use rocmforge_evaluate::Perplexity;
use rocmforge_evaluate::{Chunks, gather};
use rocmforge_gguf::escape_control;
use rocmforge_gguf::{Existing, NewFile};
use rocmforge_quantize::imatrix::Imatrix;
use serde_json::json;
use std::ops::ControlFlow;

use crate::answer::bar;
use crate::args::ImatrixArgs;
use crate::exit::{Early, usage};
use crate::interrupt::Interrupt;
use crate::output::{self, Out};
use crate::session::{Session, Vocabulary};

pub fn run(args: &ImatrixArgs) -> Result<()> {
    if args.chunks == Some(0) {
        return Err(usage(
            "--chunks must be at least 1; omit it for the whole text",
        ));
    }
    let interrupt = Interrupt::install()?;
    let text = input::read_file(&args.file)?;
    let shown = escape_control(&args.output.to_string_lossy()).into_owned();
    let failed = || format!("cannot write '{shown}'");
    let existing = match args.force {
        true => Existing::Replace,
        false => Existing::Keep,
    };
    let create = || NewFile::create(&args.output, existing).with_context(failed);
    // Reports an unwritable path before the work.
    drop(create()?);
    let mut session = Session::start(
        &args.model,
        &args.device,
        Vocabulary::Needed,
        EngineConfig {
            prefix_sharing: PrefixSharing::Off,
            fusion: Fusion::Off,
            ..resolve::engine_config(&args.device, Some(args.ctx))?
        },
    )?;
    let tokenizer = session.need_tokenizer()?.clone();
    let tokens = encode_prompt(&tokenizer, &text, Bos::AsFileSays, args.parse_special);
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());

    let working = interrupt.guard();
    let windows = tokens.len() / args.ctx.max(1);
    let windows = args.chunks.map_or(windows, |chunks| windows.min(chunks));
    let bar = bar(windows, "{bar:30} {pos}/{len} windows, {msg}, {eta} left");
    bar.set_message("PPL n/a");
    let started = Instant::now();
    let mut on_chunk = |so_far: &Perplexity| {
        bar.set_position(so_far.chunks as u64);
        bar.set_message(format!("PPL {:.4} +- {:.4}", so_far.ppl, so_far.stderr));
        match working.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let gathered = gather(
        &mut session.engine,
        &session.model,
        &tokens,
        bos,
        args.ctx,
        Chunks {
            max: args.chunks,
            on_chunk: &mut on_chunk,
        },
    );
    bar.finish_and_clear();
    let (imatrix, result) = gathered?;
    if working.asked() {
        return Err(Early::Interrupted.into());
    }
    let imatrix = Imatrix {
        datasets: vec![args.file.to_string_lossy().into_owned()],
        ..imatrix
    };
    drop(working);
    let _writing = interrupt.guard_output();
    let mut file = create()?;
    let writer = imatrix.to_writer()?;
    writer.write_to(&mut file).with_context(failed)?;
    file.commit().with_context(failed)?;

    let seconds = started.elapsed().as_secs_f64();
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "model": session.file.label,
            "device": session.engine.backend_info().device,
            "ctx": args.ctx,
            "entries": imatrix.entries.len(),
            "ppl": result.ppl,
            "stderr": result.stderr,
            "tokens": result.tokens,
            "chunks": result.chunks,
            "seconds": seconds,
        }))?;
    }
    out.finish()?;
    output::note(&format!(
        "[{} | {} tensors, {} windows of {} tokens, PPL {:.4} | {:.1} s, {:.1} tok/s | {}]",
        session.file.label,
        imatrix.entries.len(),
        result.chunks,
        args.ctx,
        result.ppl,
        seconds,
        (result.chunks * args.ctx) as f64 / seconds,
        session.engine.backend_info().device,
    ));
    Ok(())
}
