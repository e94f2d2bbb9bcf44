//! `rocmforge check`: compares the device's kernels with the scalar reference, operation by operation.

use crate::resolve;
use anyhow::{Result, bail};
use rocmforge::parts::{Bos, encode_prompt};
use rocmforge_cpu::{Isa, default_threads};
use rocmforge_engine::{Device, EngineConfig};
use rocmforge_gguf::{TokenId, shown};
use rocmforge_model::{Model, Purpose};
use rocmforge_runtime::check;
use rocmforge_runtime::check::{Coverage, Extent, OpCheck, Report, Step};
use serde::Serialize;

use crate::args::{CheckArgs, GpuCheckArg};
use crate::output::Out;
use crate::session::{Session, Vocabulary};

/// Input text.
const TEXT: &str = "The ship had been at sea for eleven days when the wind turned. Nobody on board had seen \
    such a sky before: green at the edges, and in the middle as black as the inside of a stove.";

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    device: &'a str,
    passed: bool,
    n_ops: usize,
    n_checked: usize,
    checks: &'a [OpCheck],
}

pub fn run(args: &CheckArgs) -> Result<()> {
    let coverage = match args.all {
        true => Coverage::All,
        false => Coverage::Distinct,
    };
    let extent = Extent::after(args.depth, coverage).with_prompt(args.prompt_tokens.into());
    // Wrong results are the subject of this command, not a reason to refuse the GPU.
    let mut device_args = args.device.clone();
    device_args.on.gpu.gpu_check = GpuCheckArg::Never;
    let config = EngineConfig {
        max_seqs: args.max_seqs,
        ..resolve::engine_config(&device_args, Some(extent.n_ctx()))?
    };
    // Reports problems with the file, flags or memory like every other command.
    let session = Session::start_for(
        Purpose::Either,
        &args.model,
        &device_args,
        Vocabulary::Optional,
        |_| config.clone(),
    )?;
    if config.isa == Isa::Scalar && matches!(config.device, Device::Cpu) {
        bail!("nothing to compare: this CPU only runs the scalar reference; see rocmforge devices");
    }
    let tokens = tokens(&session, &session.model);
    let Session {
        file,
        engine,
        model,
        ..
    } = session;
    let damaged = check::non_finite(&file.gguf, config.n_threads.unwrap_or_else(default_threads));
    if let Some(first) = damaged.first() {
        let others = match damaged.len() - 1 {
            0 => String::new(),
            n => format!("; so do {n} other tensors"),
        };
        bail!(
            "tensor '{}' has {} values that are NaN or infinite, the first at index {}{others}; the file is damaged: \
             download or convert it again",
            shown(&first.tensor),
            first.n_values,
            first.first,
        );
    }
    let device = engine.backend_info().device.clone();
    // The device may not fit the model twice.
    drop(engine);
    let report = check::check(&model, &config, &tokens, &extent)?;
    let failed: Vec<&OpCheck> = report.failures().collect();
    let mut out = Out::new();
    if args.json {
        out.json(&Output {
            model: &file.label,
            device: &device,
            passed: failed.is_empty(),
            n_ops: report.n_ops,
            n_checked: report.checks.len(),
            checks: &report.checks,
        })?;
    } else {
        print(&mut out, &device, &report, coverage)?;
    }
    out.finish()?;
    match failed.first() {
        None => Ok(()),
        Some(first) => bail!(
            "{} of {} operations differ from the scalar reference, first {} ({}, {}){}: {:.1e} of at most {:.0e}; \
             this model's results are wrong on this machine, please report it",
            failed.len(),
            report.checks.len(),
            first.op,
            first.shape,
            first.format,
            first
                .tensor
                .as_ref()
                .map_or(String::new(), |name| format!(" of {name}")),
            first.max_rel,
            first.bound,
        ),
    }
}

/// Returns the tokens of the text, or arbitrary ids without a vocabulary.
fn tokens(session: &Session, model: &Model) -> Vec<TokenId> {
    let n_vocab = model.config.n_vocab as u64;
    let of_text = session
        .tokenizer
        .as_ref()
        .map(|tokenizer| encode_prompt(tokenizer, TEXT.as_bytes(), Bos::AsFileSays, false));
    match of_text {
        Some(ids) if !ids.is_empty() && ids.iter().all(|&id| u64::from(id) < n_vocab) => ids,
        _ => (0..64u64)
            .map(|i| (i * 2_654_435_761 % n_vocab) as TokenId)
            .collect(),
    }
}

fn print(out: &mut Out, device: &str, report: &Report, coverage: Coverage) -> Result<()> {
    let cells = |check: &OpCheck| {
        [
            match check.step {
                Step::Prompt => "prompt".to_string(),
                Step::Decode => "decode".to_string(),
                Step::Few => "few".to_string(),
                Step::Single => "single".to_string(),
            },
            check.op.to_string(),
            check.shape.clone(),
            check.format.clone(),
            format!("{:.1e}", check.max_abs),
            format!("{:.1e}", check.max_rel),
            format!("{:.0e}", check.bound),
            if check.passed { "ok" } else { "WRONG" }.to_string(),
            check.tensor.clone().unwrap_or_default(),
        ]
    };
    let header = [
        "step",
        "operation",
        "shape",
        "format",
        "error",
        "relative",
        "bound",
        "",
        "tensor",
    ];
    let mut rows = vec![header.map(str::to_string)];
    rows.extend(report.checks.iter().map(cells));
    let widths: [usize; 9] = std::array::from_fn(|column| {
        let width = |row: &[String; 9]| row[column].chars().count();
        rows.iter().map(width).max().unwrap_or(0)
    });
    for row in &rows {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        out.line(line.join("  ").trim_end())?;
    }
    let rest = match coverage {
        Coverage::All => "",
        Coverage::Distinct => ", one per kind, shape and format (--all: every operation)",
    };
    out.line(&format!(
        "\n{} of {} operations compared{rest}; {}",
        report.checks.len(),
        report.n_ops,
        device
    ))?;
    match report.failures().count() {
        0 => out.line("passed: every result agrees with the scalar reference"),
        n => out.line(&format!("FAILED: {n} operations are wrong")),
    }
}
