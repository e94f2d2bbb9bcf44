//! `rocmforge baseline`: lists, shows, compares and charts saved benchmark results. `keep` saves and compares them at
//! the end of a benchmark.

mod keep;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use rocmforge_bench::baseline::{
    BaselineError, ComparisonResult, PerformanceBaseline, RegressionReport, Rules, Series, Store,
    Trend, four_digits,
};
use rocmforge_gguf::escape_control;
use rocmforge_gguf::{Existing, NewFile};
use rocmforge_hub::dirs;
use rocmforge_profile::clock::rfc_3339;
use rocmforge_report::numbers::digits;
use rocmforge_report::{junit, markdown};
use serde_json::json;

pub use keep::{Keeper, hardware};

use crate::args::{
    BaselineArgs, BaselineCommand, BaselineCompareArgs, BaselineListArgs, BaselineRmArgs,
    BaselineShowArgs, BaselineStoreArgs, BaselineTrendArgs, ReportForm, RuleArgs,
};
use crate::exit::{Early, usage};
use crate::output::{self, Out};

pub fn run(args: &BaselineArgs) -> Result<()> {
    match &args.command {
        BaselineCommand::List(args) => list(args),
        BaselineCommand::Show(args) => show(args),
        BaselineCommand::Compare(args) => compare(args),
        BaselineCommand::Trend(args) => trend(args),
        BaselineCommand::Rm(args) => remove(args),
    }
}

/// Opens the folder given in `args`, or the user's.
fn store(args: &BaselineStoreArgs) -> Result<Store> {
    let dir = match &args.baseline_dir {
        Some(dir) => dir.clone(),
        None => dirs::data()
            .context("no baselines folder: HOME is not set; use --baseline-dir")?
            .join("baselines"),
    };
    Ok(Store::at(dir))
}

/// Reports invalid names as wrong usage and other errors as failures.
fn told(error: BaselineError) -> anyhow::Error {
    match error {
        BaselineError::BadName { .. } => usage(error.to_string()),
        other => other.into(),
    }
}

fn list(args: &BaselineListArgs) -> Result<()> {
    let store = store(&args.store)?;
    let all = store.all()?;
    let mut out = Out::new();
    let date = |baseline: &PerformanceBaseline| baseline.timestamp().map(rfc_3339);
    if args.json {
        let baselines: Vec<_> = all
            .iter()
            .map(|stored| {
                let baseline = stored.baseline.as_ref().ok();
                json!({
                    "name": stored.name,
                    "path": stored.path.to_string_lossy(),
                    "date": baseline.and_then(date),
                    "benchmarks": baseline.map(|baseline| baseline.benchmarks.len()),
                    "hardware": baseline.map(machines),
                    "problem": stored.baseline.as_ref().err().map(ToString::to_string),
                })
            })
            .collect();
        let dir = store.dir().to_string_lossy();
        out.json(&json!({ "baseline_dir": dir, "baselines": baselines }))?;
        return out.finish();
    }
    let rows: Vec<[String; 4]> = all
        .iter()
        .filter_map(|stored| {
            let baseline = stored.baseline.as_ref().ok()?;
            Some([
                stored.name.clone(),
                date(baseline).unwrap_or_default(),
                format!("{} benchmarks", baseline.benchmarks.len()),
                machines(baseline).join("; "),
            ])
        })
        .collect();
    print_rows(&mut out, &rows)?;
    out.finish()?;
    for problem in all
        .iter()
        .filter_map(|stored| stored.baseline.as_ref().err())
    {
        output::note(&format!("warning: {problem}"));
    }
    if all.is_empty() {
        output::note(&format!(
            "no baselines in {} yet; save one with rocmforge bench --save-baseline NAME",
            shown(store.dir())
        ));
    }
    Ok(())
}

/// Returns the distinct machines of a baseline's benchmarks.
fn machines(baseline: &PerformanceBaseline) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for benchmark in &baseline.benchmarks {
        let label = benchmark.hardware.label();
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

fn show(args: &BaselineShowArgs) -> Result<()> {
    let baseline = store(&args.store)?.load(&args.name).map_err(told)?;
    let mut out = Out::new();
    if args.json {
        out.bytes(output::escape_json(&baseline.to_json()).as_bytes())?;
        return out.finish();
    }
    for (fact, text) in &baseline.metadata {
        out.line(&escape_control(&format!("{fact}: {text}")))?;
    }
    let mut machine = None;
    for benchmark in &baseline.benchmarks {
        let hardware = &benchmark.hardware;
        if machine != Some(hardware) {
            machine = Some(hardware);
            let facts = [
                ("", Some(hardware.label())),
                ("architecture ", hardware.gpu_architecture.clone()),
                ("driver ", hardware.driver.clone()),
                ("ROCm ", hardware.rocm_version.clone()),
                ("", hardware.os.clone()),
                ("rocmforge ", hardware.program_version.clone()),
                ("commit ", hardware.program_commit.clone()),
                ("rustc ", hardware.rustc_version.clone()),
            ];
            let facts = facts
                .into_iter()
                .filter_map(|(what, fact)| Some(format!("{what}{}", fact?)));
            let facts: Vec<String> = facts.collect();
            out.line("")?;
            out.line(&escape_control(&facts.join(", ")))?;
        }
        let measured = &benchmark.measured;
        let metrics = measured
            .metrics
            .iter()
            .map(|(name, value)| format!("{name} {}", four_digits(*value)));
        let metrics: Vec<String> = metrics.collect();
        let samples = measured.samples.values().map(Vec::len).max().unwrap_or(0);
        out.line(&escape_control(&format!(
            "  {} ({}, {samples} samples): {}",
            measured.name,
            rfc_3339(benchmark.timestamp),
            metrics.join(", ")
        )))?;
    }
    out.finish()
}

fn remove(args: &BaselineRmArgs) -> Result<()> {
    let store = store(&args.store)?;
    for name in &args.names {
        let path = store.remove(name).map_err(told)?;
        output::note(&format!("deleted {}", shown(&path)));
    }
    Ok(())
}

fn compare(args: &BaselineCompareArgs) -> Result<()> {
    let store = store(&args.store)?;
    let load = |reference: &str| store.load(reference).map_err(told);
    let (then, now) = (load(&args.baseline)?, load(&args.current)?);
    let report = RegressionReport::compare(&then, &now, &args.rules.rules())
        .called(&args.baseline, &args.current);
    match &args.output {
        Some(path) => write(path, in_form(&report, args.format).as_bytes())?,
        None => {
            let mut out = Out::new();
            out.bytes(in_form(&report, args.format).as_bytes())?;
            out.finish()?;
        }
    }
    verdict(&report, &args.rules)
}

fn in_form(report: &RegressionReport, form: ReportForm) -> String {
    match form {
        ReportForm::Terminal => report.to_terminal(),
        ReportForm::Json => output::escape_json(&report.to_json()),
        ReportForm::Junit => junit::text(report),
        ReportForm::Markdown => markdown::text(report),
    }
}

/// Returns the error that a report calls for.
fn verdict(report: &RegressionReport, rules: &RuleArgs) -> Result<()> {
    let baseline = escape_control(&report.baseline);
    let compared = report
        .results
        .iter()
        .filter(|of| !of.metrics.is_empty())
        .count();
    match report.count(ComparisonResult::Regression) {
        0 => {}
        n => {
            return Err(Early::Regression(format!(
                "{n} of {compared} benchmarks are worse than in '{baseline}'"
            ))
            .into());
        }
    }
    if report.count(ComparisonResult::HardwareMismatch) > 0 {
        if let Some(of) = report.results.iter().find(|of| of.is_other_model()) {
            let models = of.hardware.iter().find(|of| of.fact == "model");
            let models = models.map(ToString::to_string).unwrap_or_default();
            return Err(Early::HardwareMismatch(format!(
                "'{baseline}' was measured with another model ({}); save a baseline of this one",
                escape_control(&models)
            ))
            .into());
        }
        let differences = report.results.iter().flat_map(|of| &of.hardware);
        let first = differences
            .map(ToString::to_string)
            .next()
            .unwrap_or_default();
        return Err(Early::HardwareMismatch(format!(
            "'{baseline}' was measured on other hardware ({}); use --allow-other-hardware to compare anyway",
            escape_control(&first)
        ))
        .into());
    }
    if compared == 0 {
        anyhow::bail!(
            "nothing to compare with '{baseline}': no benchmark and metric in common; list its benchmarks with rocmforge baseline show"
        );
    }
    match report.inconclusive() {
        n if n > 0 && rules.fail_inconclusive => Err(Early::Inconclusive(format!(
            "{n} metrics could not be judged against '{baseline}'; measure more often, on an idle machine"
        ))
        .into()),
        _ => Ok(()),
    }
}

fn trend(args: &BaselineTrendArgs) -> Result<()> {
    let store = store(&args.store)?;
    let rules = Rules {
        thresholds: args.threshold.clone().unwrap_or_default(),
        ..Rules::default()
    };
    let trend = Trend::of(&store.all()?, &rules);
    for problem in &trend.unreadable {
        output::note(&format!("warning: {}", escape_control(problem)));
    }
    if trend.n_baselines == 0 {
        anyhow::bail!(
            "no baselines in {}; save some with rocmforge bench --save-baseline NAME",
            shown(store.dir())
        );
    }
    if let Some(path) = &args.output {
        let mut page = Vec::new();
        rocmforge_report::trend::write(&trend, &mut page).context("cannot create the page")?;
        write(path, &page)?;
    } else {
        let mut out = Out::new();
        let head = ["benchmark", "metric", "machine", "values", "change"].map(String::from);
        let rows = trend.series.iter().map(trend_row);
        let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
        print_rows(&mut out, &rows)?;
        out.finish()?;
    }
    let points = || trend.series.iter().flat_map(|series| &series.points);
    let times = points().map(|point| point.timestamp);
    let ends = times.clone().min().zip(times.max());
    let ends = ends.map(|(first, last)| format!(" from {} to {}", rfc_3339(first), rfc_3339(last)));
    output::note(&format!(
        "{} trends over {} baselines{}, {} with regressions",
        trend.series.len(),
        trend.n_baselines,
        ends.unwrap_or_default(),
        trend.regressions().count()
    ));
    Ok(())
}

/// Columns: benchmark, metric, machine, values over time, change from first to last.
fn trend_row(series: &Series) -> [String; 5] {
    let values: Vec<String> = series
        .points
        .iter()
        .map(|point| {
            let result = point.before.as_ref().map(|of| of.result);
            let mark = match result {
                Some(ComparisonResult::Regression) => "!",
                _ => "",
            };
            format!("{}{mark}", digits(point.value))
        })
        .collect();
    let change = series.since_first.as_ref();
    [
        series.benchmark.clone(),
        series.metric.clone(),
        series.hardware.clone(),
        values.join(" "),
        change.map_or(String::new(), |of| format!("{:+.1} %", 100.0 * of.change)),
    ]
}

/// Aligns rows in columns; the last column is not padded.
fn print_rows<const N: usize>(out: &mut Out, rows: &[[String; N]]) -> Result<()> {
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| escape_control(cell).into_owned()))
        .collect();
    let width = |i: usize| {
        rows.iter()
            .map(|row: &[String; N]| row[i].chars().count())
            .max()
    };
    for row in &rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = width(i).unwrap_or(0);
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.line(line.trim_end())?;
    }
    Ok(())
}

/// Writes a file atomically and creates its folder if needed.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let make = || {
        let mut file = begin(path)?;
        file.write_all(bytes)?;
        file.commit()
    };
    make().with_context(|| format!("cannot write {}", shown(path)))
}

/// Reports a file that cannot be written before anything is measured.
fn check_writable(path: &Path) -> Result<()> {
    begin(path)
        .map(drop)
        .with_context(|| format!("cannot write {}", shown(path)))
}

/// Creates the folder and the unfinished file.
fn begin(path: &Path) -> io::Result<NewFile> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        fs::create_dir_all(folder)?;
    }
    NewFile::create(path, Existing::Replace)
}

fn shown(path: &Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}
