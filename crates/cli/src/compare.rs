//! `rocmforge compare`: runs llama-bench and `rocmforge bench` alternately on the same file.
//!
//! Each run is a process of its own: it starts with an empty heap, loads the file from the page cache and warms up. The
//! order within a pair alternates, so that a machine that becomes slower affects both programs. Each pair gives a ratio;
//! the median ratio has a bootstrap interval over the pairs.

mod child;
mod rows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use rocmforge_bench::baseline::{Interval, median_interval};
use rocmforge_cpu::default_threads;
use rocmforge_profile::stats::Summary;
use serde_json::{Value as Json, json};

use crate::answer::bar;
use crate::args::{CompareArgs, numbers};
use crate::exit::{Early, usage};
use crate::interrupt::{Interrupt, Working};
use crate::output::{self, Out};
use rows::{Row, Test};

const OURS: &str = "rocmforge";
const THEIRS: &str = "llama-bench";

/// Both programs and their arguments.
struct Programs {
    ours: PathBuf,
    theirs: PathBuf,
    /// Common arguments.
    common: Vec<OsString>,
    only_ours: Vec<OsString>,
    only_theirs: Vec<OsString>,
}

/// One of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
}

/// The results of finished pairs.
#[derive(Default)]
struct Found {
    /// Rows of ours and theirs, by pair and test.
    pairs: Vec<Vec<[Row; 2]>>,
}

pub fn run(args: &CompareArgs) -> Result<()> {
    let (tool, path) = (&args.with[0], Path::new(&args.with[1]));
    if tool != THEIRS {
        return Err(usage(format!(
            "--with {} is not supported; use --with {THEIRS} PATH",
            output::for_terminal(&tool.to_string_lossy())
        )));
    }
    if args.threads == Some(0) {
        return Err(usage("-t must be at least 1"));
    }
    let tests = tests(args)?;
    if !path.is_file() {
        bail!(
            "no {THEIRS} at {}; build llama.cpp and use the path of its bin/{THEIRS}",
            output::for_terminal(&path.to_string_lossy())
        );
    }
    let programs = programs(args, path)?;
    let interrupt = Interrupt::install()?;
    let mut found = Found::default();
    let result = measure(args, &programs, &tests, &interrupt, &mut found);
    // Finished pairs are printed even after an error.
    if !found.pairs.is_empty() {
        let mut out = Out::new();
        match args.json {
            true => out.json(&found.json(args, &tests))?,
            false => out.bytes(found.table(&tests).as_bytes())?,
        }
        out.finish()?;
        if result.is_err() {
            let n = found.pairs.len();
            output::note(&format!(
                "notice: only {n} of {} pairs finished",
                args.pairs
            ));
        }
    }
    result
}

/// The tests, in the order that both programs run them.
fn tests(args: &CompareArgs) -> Result<Vec<Test>> {
    let list = |numbers: Vec<usize>| numbers.into_iter().map(|n| n as u64);
    let mut tests = Vec::new();
    for n_depth in list(numbers(&args.n_depth, 0)) {
        let of = |n_prompt, n_gen| Test {
            n_prompt,
            n_gen,
            n_depth,
        };
        tests.extend(list(numbers(&args.n_prompt, 512)).map(|n| of(n, 0)));
        tests.extend(list(numbers(&args.n_gen, 128)).map(|n| of(0, n)));
    }
    tests.retain(|test| test.n_prompt + test.n_gen > 0);
    if tests.is_empty() {
        return Err(usage(
            "nothing to measure: -p and -n are 0; set one of them",
        ));
    }
    Ok(tests)
}

fn programs(args: &CompareArgs, theirs: &Path) -> Result<Programs> {
    let model = rocmforge_hub::resolve(&args.model, args.store.models_dir.as_deref())?;
    if !model.is_file() {
        bail!(
            "no such file: {}",
            output::for_terminal(&model.to_string_lossy())
        );
    }
    let list = |numbers: Vec<usize>| {
        let texts: Vec<String> = numbers.iter().map(usize::to_string).collect();
        texts.join(",")
    };
    let mut common: Vec<OsString> = vec!["-m".into(), model.into()];
    for (flag, value) in [
        ("-p", list(numbers(&args.n_prompt, 512))),
        ("-n", list(numbers(&args.n_gen, 128))),
        ("-d", list(numbers(&args.n_depth, 0))),
        (
            "-t",
            args.threads.unwrap_or_else(default_threads).to_string(),
        ),
        ("-r", args.repetitions.to_string()),
        ("-o", "json".to_string()),
    ] {
        common.extend([flag.into(), value.into()]);
    }
    let device = args.device.iter();
    // Without a folder, the program would be searched in PATH.
    let theirs = match theirs.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new(".").join(theirs),
        _ => theirs.to_owned(),
    };
    Ok(Programs {
        ours: std::env::current_exe().context("cannot determine the path of this program")?,
        theirs,
        common,
        only_ours: device
            .flat_map(|device| ["--device".into(), device.into()])
            .collect(),
        only_theirs: args.theirs.clone(),
    })
}

impl Programs {
    /// Runs one of the programs and returns its rows; `None` if the user stopped it.
    fn run(&self, side: Side, working: &Working<'_>) -> Result<Option<Vec<Row>>> {
        let (name, mut command, only) = match side {
            Side::Ours => (OURS, Command::new(&self.ours), &self.only_ours),
            Side::Theirs => (THEIRS, Command::new(&self.theirs), &self.only_theirs),
        };
        if side == Side::Ours {
            command.arg("bench");
        }
        command.args(&self.common).args(only);
        match child::stdout_of(command, name, working)? {
            Some(text) => rows::rows(&text, name).map(Some),
            None => Ok(None),
        }
    }
}

fn measure(
    args: &CompareArgs,
    programs: &Programs,
    tests: &[Test],
    interrupt: &Interrupt,
    found: &mut Found,
) -> Result<()> {
    let bar = bar(2 * args.pairs as usize, "{bar:30} {msg}, {eta} left");
    let working = interrupt.guard();
    for i in 0..args.pairs {
        let order = match i % 2 {
            0 => [Side::Ours, Side::Theirs],
            _ => [Side::Theirs, Side::Ours],
        };
        let mut runs = [Vec::new(), Vec::new()];
        for side in order {
            bar.set_message(format!("pair {} of {}", i + 1, args.pairs));
            let Some(rows) = programs.run(side, &working)? else {
                bar.finish_and_clear();
                return Err(Early::Interrupted.into());
            };
            runs[usize::from(side == Side::Theirs)] = rows;
            bar.inc(1);
        }
        let of_test = |test: &Test| {
            let row = |side: usize, name: &str| {
                let found = runs[side].iter().find(|row| row.test == *test).cloned();
                found.with_context(|| format!("{name} printed no row for {}", test.name()))
            };
            Ok([row(0, OURS)?, row(1, THEIRS)?])
        };
        found
            .pairs
            .push(tests.iter().map(of_test).collect::<Result<_>>()?);
    }
    bar.finish_and_clear();
    Ok(())
}

impl Found {
    /// Returns a test's tokens per second in each pair.
    fn speeds(&self, test: usize, side: usize) -> Vec<f64> {
        self.pairs
            .iter()
            .map(|pair| pair[test][side].tokens_s)
            .collect()
    }

    /// Returns ours over theirs for each pair.
    fn ratios(&self, test: usize) -> Vec<f64> {
        let ratio = |pair: &Vec<[Row; 2]>| pair[test][0].tokens_s / pair[test][1].tokens_s;
        self.pairs.iter().map(ratio).collect()
    }

    fn table(&self, tests: &[Test]) -> String {
        let [ours, theirs] = &self.pairs[0][0];
        let mut text = format!(
            "{}\n{OURS} {} {}, {THEIRS} {} {}\n\n",
            ours.model, ours.build, ours.backends, theirs.build, theirs.backends
        );
        text.push_str(&format!(
            "| {:<16} | {:>34} | {:>34} | {:>22} |\n",
            "test",
            format!("{OURS} t/s [min, max]"),
            format!("{THEIRS} t/s [min, max]"),
            "ratio [95 %]"
        ));
        text.push_str(&format!(
            "| {:-<16} | {:->33}: | {:->33}: | {:->21}: |\n",
            "", "", "", ""
        ));
        for (i, test) in tests.iter().enumerate() {
            let speeds = |side| {
                let speeds = summary(&self.speeds(i, side));
                format!("{:.2} [{:.2}, {:.2}]", speeds.p50, speeds.min, speeds.max)
            };
            let ratio = interval(&self.ratios(i));
            text.push_str(&format!(
                "| {:<16} | {:>34} | {:>34} | {:>22} |\n",
                test.name(),
                speeds(0),
                speeds(1),
                format!(
                    "{:.3} [{:.3}, {:.3}]",
                    ratio.estimate, ratio.low, ratio.high
                )
            ));
        }
        text.push_str(&format!(
            "\n{} pairs; above 1, {OURS} is faster\n",
            self.pairs.len()
        ));
        text
    }

    fn json(&self, args: &CompareArgs, tests: &[Test]) -> Json {
        let [ours, theirs] = &self.pairs[0][0];
        let program = |row: &Row| json!({ "build": row.build, "backends": row.backends });
        let side = |i, side| {
            let speeds = self.speeds(i, side);
            let summary = summary(&speeds);
            json!({ "median": summary.p50, "min": summary.min, "max": summary.max, "runs": speeds })
        };
        let of_test = |(i, test): (usize, &Test)| {
            let ratios = self.ratios(i);
            let ratio = interval(&ratios);
            json!({
                "test": test.name(),
                "n_prompt": test.n_prompt,
                "n_gen": test.n_gen,
                "n_depth": test.n_depth,
                "ours": side(i, 0),
                "theirs": side(i, 1),
                "ratio": { "median": ratio.estimate, "low": ratio.low, "high": ratio.high, "pairs": ratios },
            })
        };
        json!({
            "model": ours.model,
            "ours": program(ours),
            "theirs": program(theirs),
            "pairs": self.pairs.len(),
            "pairs_asked": args.pairs,
            "repetitions": args.repetitions,
            "tests": tests.iter().enumerate().map(of_test).collect::<Vec<_>>(),
        })
    }
}

fn summary(speeds: &[f64]) -> Summary {
    Summary::of(speeds).expect("a finished pair has a speed above 0 for each test")
}

fn interval(ratios: &[f64]) -> Interval {
    median_interval(ratios).expect("there is a finished pair")
}
