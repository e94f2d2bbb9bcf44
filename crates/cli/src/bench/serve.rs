//! `bench serve`: measures a server under load.

use anyhow::Result;
use rocmforge_server::load::{
    Arrivals, Conversation, Load, Percentiles, Report, Target, TurnReport, run as run_load,
};

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
    let conversation = args.turns.map(|n_turns| Conversation {
        n_turns: n_turns as usize,
        turn_tokens: args.turn_tokens as usize,
        n_tools: args.tools as usize,
    });
    let what = match args.turns {
        Some(n_turns) => format!("conversations of {n_turns} turns with"),
        None => "requests to".to_string(),
    };
    note(&format!("{} {what} {}", args.n, args.url));
    let target = Target::new(&args.url, args.model.clone(), args.key.clone())?;
    let report = run_load(Load {
        target: target.with_fields(args.extra_body.clone().unwrap_or_default()),
        arrivals,
        n: args.n as usize,
        prompt_tokens: args.prompt_tokens as usize,
        max_tokens: args.max_tokens as usize,
        conversation,
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
    let mut rows = vec![
        ("to the first text", report.ttft_ms),
        ("between pieces of text", report.itl_ms),
        ("to the end", report.e2e_ms),
    ];
    if let Some(turns) = &report.turns {
        let of_turns = [
            ("of first turns", turns.first_ttft_ms),
            ("of last turns", turns.last_ttft_ms),
        ];
        rows.splice(1..1, of_turns);
    }
    for (name, Percentiles { p50, p95, p99 }) in rows {
        out.line(&format!("{name:<24}{p50:>10.1}{p95:>10.1}{p99:>10.1}"))?;
    }
    match &report.turns {
        Some(turns) => print_turns(out, turns),
        None => Ok(()),
    }
}

fn print_turns(out: &mut Out, turns: &TurnReport) -> Result<()> {
    let each: Vec<String> = turns.ttft_ms.iter().map(|ms| format!("{ms:.1}")).collect();
    out.line("")?;
    out.line("ms to the first text, by turn (median):")?;
    out.line(&each.join(" "))?;
    out.line("")?;
    out.line(&format!(
        "{} prompt tokens, the longest prompt {}",
        turns.prompt_tokens, turns.max_prompt_tokens
    ))?;
    let (Some(cached), Some(share), Some(of_earlier)) = (
        turns.cached_tokens,
        turns.cached_share,
        turns.earlier_cached_share,
    ) else {
        return out.line("The server does not say how many it had in its cache.");
    };
    let (share, of_earlier) = (100.0 * share, 100.0 * of_earlier);
    out.line(&format!(
        "{cached} in the cache: {share:.1} %, {of_earlier:.1} % of what the turn before had"
    ))
}
