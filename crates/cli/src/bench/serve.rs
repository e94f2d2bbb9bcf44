//! `bench serve`: measures a server under load.

use anyhow::Result;
use rocmforge_server::load::{Arrivals, Load, Percentiles, Report, Target, run as run_load};

use crate::args::{BenchOutput, BenchServeArgs};
use crate::exit::usage;
use crate::output::{Out, note};

pub fn run(args: &BenchServeArgs) -> Result<()> {
    let as_json = match args.output {
        BenchOutput::Table => false,
        BenchOutput::Json => true,
        _ => return Err(usage("--output: bench serve prints a table or json")),
    };
    let arrivals = match (args.rate, args.concurrency) {
        (Some(rate), _) => Arrivals::Rate(rate),
        (None, n) => Arrivals::Concurrency(n.unwrap_or(1) as usize),
    };
    note(&format!("{} requests to {}", args.n, args.url));
    let target = Target::new(&args.url, args.model.clone(), args.key.clone())?;
    let report = run_load(Load {
        target: target.with_fields(args.extra_body.clone().unwrap_or_default()),
        arrivals,
        n: args.n as usize,
        prompt_tokens: args.prompt_tokens as usize,
        max_tokens: args.max_tokens as usize,
        slo: args.slo.map(|times| times.0),
        seed: args.seed,
    })?;
    let mut out = Out::new();
    match as_json {
        true => out.json(&report)?,
        false => print(&mut out, &report)?,
    }
    for failure in &report.failures {
        note(&format!("failed: {failure}"));
    }
    out.finish()
}

fn print(out: &mut Out, report: &Report) -> Result<()> {
    let Report {
        n_ok,
        n_failed,
        duration_s,
        requests_s,
        output_tokens_s,
        ..
    } = report;
    out.line(&format!(
        "{n_ok} answers in {duration_s:.2} s, {n_failed} failed"
    ))?;
    out.line(&format!(
        "{requests_s:.2} answers/s, {output_tokens_s:.1} tok/s"
    ))?;
    if let Some(goodput) = report.goodput {
        out.line(&format!("{goodput:.2} answers/s kept the times asked for"))?;
    }
    out.line("")?;
    out.line(&format!(
        "{:<24}{:>10}{:>10}{:>10}",
        "ms", "p50", "p95", "p99"
    ))?;
    for (name, Percentiles { p50, p95, p99 }) in [
        ("to the first text", report.ttft_ms),
        ("between pieces of text", report.itl_ms),
        ("to the end", report.e2e_ms),
    ] {
        out.line(&format!("{name:<24}{p50:>10.1}{p95:>10.1}{p99:>10.1}"))?;
    }
    Ok(())
}
