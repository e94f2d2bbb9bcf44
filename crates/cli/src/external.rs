//! `rocmforge profile-with`: runs a command under a vendor's profiler and prints its results.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use anyhow::Result;
use rocmforge_external::tools::FORMER;
use rocmforge_external::{
    CounterCategory, CounterRow, ExternalError, GpuFamily, OperationRow, Request, Roofline,
    TimeRow, Tool, ToolReport, Trace, available_tools,
};
use rocmforge_gguf::escape_control;
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::OpenOptions;
use serde_json::json;

use crate::args::ExternalArgs;
use crate::exit::{self, Early};
use crate::interrupt::Interrupt;
use crate::output::{Out, note, size};

pub fn run(args: &ExternalArgs) -> Result<()> {
    if args.list {
        return list(args);
    }
    if let Some(path) = &args.read {
        let tool: Tool = args
            .tool
            .as_deref()
            .unwrap_or_default()
            .parse()
            .map_err(ended)?;
        let report = Request::read(tool, path).map_err(ended)?;
        return print(args, tool, &report);
    }
    let request = request(args).map_err(ended)?;
    let path = env::var_os("PATH").unwrap_or_default();
    if args.dry_run {
        let mut out = Out::new();
        // Options depend on the tool's version.
        let request = match request.tool.find(&path) {
            Ok(program) => request.for_program(&program, &|| false),
            Err(_) => request,
        };
        for command in request.commands().map_err(ended)? {
            out.line(&escape_control(&command.to_string()))?;
        }
        return out.finish();
    }
    let program = request.tool.find(&path)?;
    let interrupt = Interrupt::install()?;
    let working = interrupt.guard_output();
    let found = request.run(&program, &|| working.asked());
    drop(working);
    let report = found.map_err(ended)?;
    print(args, request.tool, &report)
}

fn print(args: &ExternalArgs, tool: Tool, report: &ToolReport) -> Result<()> {
    let mut out = Out::new();
    match args.json {
        true => out.json(&json!({"tool": tool.name(), "report": report}))?,
        false => show(&mut out, tool, report, args.rows)?,
    }
    for remark in &report.notes {
        note(&format!("note: {}", escape_control(remark)));
    }
    out.finish()
}

/// Converts an error, with the exit codes of wrong usage and interruption.
fn ended(error: ExternalError) -> anyhow::Error {
    match error {
        ExternalError::Renamed { .. }
        | ExternalError::UnknownTool { .. }
        | ExternalError::BadRequest(_) => exit::usage(error.to_string()),
        ExternalError::Cancelled { .. } => Early::Interrupted.into(),
        error => error.into(),
    }
}

fn request(args: &ExternalArgs) -> Result<Request, ExternalError> {
    let tool: Tool = args.tool.as_deref().unwrap_or_default().parse()?;
    let categories = args.counters.iter().map(|name| name.parse());
    let categories = categories.collect::<Result<Vec<CounterCategory>, ExternalError>>()?;
    let traces = args.trace.iter().map(|name| name.parse());
    let traces = traces.collect::<Result<Vec<Trace>, ExternalError>>()?;
    let Some((app, rest)) = args.command.split_first() else {
        return Err(ExternalError::BadRequest(
            "no command to profile; add one after --, as in -- rocmforge bench".to_string(),
        ));
    };
    let family = match &args.arch {
        Some(name) => Some(GpuFamily::of_architecture(name).ok_or_else(|| {
            let name = escape_control(name);
            ExternalError::BadRequest(format!(
                "the counters of '{name}' are unknown; use --pmc with names from: rocprofv3-avail list --pmc"
            ))
        })?),
        None if tool == Tool::Rocprofv3 && !categories.is_empty() => found_family(),
        None => None,
    };
    Ok(Request {
        tool,
        version: None,
        dir: args.output.clone().unwrap_or_else(|| PathBuf::from("DIR")),
        app: app.clone(),
        args: rest.to_vec(),
        categories,
        counters: args.pmc.clone(),
        traces,
        roofline: match args.roofline {
            true => Roofline::With,
            false => Roofline::Without,
        },
        gpu: args.gpu.clone(),
        family,
        timeout: Some(args.timeout),
    })
}

/// Returns the architecture of the first AMD GPU.
fn found_family() -> Option<GpuFamily> {
    let survey = gpu::survey(&OpenOptions::from_env());
    let architectures = survey
        .devices
        .iter()
        .map(|device| device.architecture.as_str());
    architectures.filter_map(GpuFamily::of_architecture).next()
}

fn list(args: &ExternalArgs) -> Result<()> {
    let tools = available_tools();
    let mut out = Out::new();
    if args.json {
        let tools: Vec<_> = tools
            .iter()
            .map(|found| {
                json!({
                    "tool": found.tool.name(),
                    "purpose": found.tool.purpose(),
                    "path": found.path,
                    "version": found.version,
                })
            })
            .collect();
        let former: BTreeMap<_, _> = FORMER
            .iter()
            .map(|former| (former.name, former.successor.name()))
            .collect();
        out.json(&json!({"tools": tools, "former": former}))?;
        return out.finish();
    }
    for found in &tools {
        out.line(&format!(
            "{:<16} {}",
            found.tool.name(),
            found.tool.purpose()
        ))?;
        let state = match (&found.path, &found.version) {
            (None, _) => format!("not in PATH; {}", found.tool.install()),
            (Some(path), None) => path.display().to_string(),
            (Some(path), Some(version)) => format!("{} ({version})", path.display()),
        };
        out.line(&format!("{:<16} {}", "", escape_control(&state)))?;
    }
    let former = FORMER.map(|former| format!("{} is {}", former.name, former.successor.name()));
    out.line(&format!("former names: {}", former.join(", ")))?;
    out.finish()
}

fn show(out: &mut Out, tool: Tool, report: &ToolReport, n_rows: usize) -> Result<()> {
    for device in &report.devices {
        out.line(&escape_control(device))?;
    }
    let what = match tool {
        Tool::Perf => ("function", "samples"),
        _ => ("kernel", "calls"),
    };
    times(out, what, &report.kernels, n_rows)?;
    times(out, ("host call", "calls"), &report.calls, n_rows)?;
    times(out, ("memory copy", "copies"), &report.copies, n_rows)?;
    operations(out, &report.operations, n_rows)?;
    counters(out, &report.counters, n_rows)?;
    if !report.unavailable.is_empty() {
        let names = escape_control(&report.unavailable.join(", ")).into_owned();
        out.line(&format!("not available here: {names}"))?;
    }
    if let Some(found) = &report.utilization {
        let busy = &found.busy_percent;
        let verdict = match found.meets_target {
            true => "above 80 %",
            false => "not above 80 %",
        };
        out.line(&format!(
            "busy {:.0} % ({verdict}; p50 {:.0}, {} readings of {})",
            busy.mean, busy.p50, busy.n, found.source
        ))?;
        if let Some(bytes) = found.memory_used_bytes {
            out.line(&format!("memory in use {}", size(bytes)))?;
        }
        if let Some(condition) = found.condition() {
            out.line(&condition)?;
        }
    }
    Ok(())
}

fn times(out: &mut Out, (what, count): (&str, &str), rows: &[TimeRow], n: usize) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    out.line(&format!(
        "{:>9} {:>12} {:>12} {:>7}  {what}",
        count, "total ms", "mean us", "share"
    ))?;
    for row in rows.iter().take(n) {
        out.line(&format!(
            "{:>9} {:>12.3} {:>12.2} {:>6.1}%  {}",
            row.calls,
            row.total_ms,
            row.mean_us,
            100.0 * row.share,
            escape_control(&row.name)
        ))?;
    }
    rest(out, rows.len(), n)
}

fn operations(out: &mut Out, rows: &[OperationRow], n: usize) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    out.line(&format!(
        "{:>9} {:>12} {:>7} {:>8} {:>7} {:>9}  operation",
        "launches", "total ms", "share", "GB/s", "L2 hit", "occupancy"
    ))?;
    for row in rows.iter().take(n) {
        let number = |value: Option<f64>, unit| {
            value.map_or("n/a".to_string(), |value| format!("{value:.0}{unit}"))
        };
        out.line(&format!(
            "{:>9} {:>12.3} {:>6.1}% {:>8} {:>7} {:>9}  {}",
            row.launches,
            row.total_ms,
            100.0 * row.share,
            number(row.gb_s, ""),
            number(row.l2_hit_percent, "%"),
            number(row.occupancy_percent, "%"),
            escape_control(&row.name)
        ))?;
    }
    rest(out, rows.len(), n)
}

fn counters(out: &mut Out, rows: &[CounterRow], n: usize) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    out.line(&format!(
        "{:>9} {:>18} {:>18}  counter",
        "calls", "total", "mean"
    ))?;
    let mut kernel = None;
    for row in rows.iter().take(n) {
        if row.kernel != kernel {
            kernel.clone_from(&row.kernel);
            if let Some(name) = &kernel {
                out.line(&format!("{}:", escape_control(name)))?;
            }
        }
        let unit = row
            .unit
            .as_deref()
            .map(|unit| format!(" [{unit}]"))
            .unwrap_or_default();
        out.line(&format!(
            "{:>9} {:>18} {:>18}  {}",
            row.calls,
            row.total.map_or("-".to_string(), count_text),
            count_text(row.mean),
            escape_control(&format!("{}{unit}", row.counter))
        ))?;
    }
    rest(out, rows.len(), n)
}

/// Formats integers as they are and others with significant digits.
fn count_text(value: f64) -> String {
    match value.fract() == 0.0 || value.abs() >= 1e6 {
        true => format!("{value:.0}"),
        false => format!("{value:.3}"),
    }
}

fn rest(out: &mut Out, len: usize, shown: usize) -> Result<()> {
    match len > shown {
        true => out.line(&format!("({} more; see --rows)", len - shown)),
        false => Ok(()),
    }
}
