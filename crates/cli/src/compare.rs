//! `rocmforge compare`: runs another program and `rocmforge bench` alternately on the same file. The other program is
//! llama-bench, or another build of rocmforge.
//!
//! Each run is a process of its own: it starts with an empty heap, loads the file from the page cache and warms up. The
//! order within a pair alternates, so that a machine that becomes slower affects both programs. Each pair gives a ratio;
//! the median ratio has an interval from the ranks of the pairs, and two builds of rocmforge get a verdict.

mod child;
mod rows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use rocmforge_bench::baseline::{Pairs, Verdict};
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
const LLAMA_BENCH: &str = "llama-bench";
/// Pairs, where the user does not say: another build gets a verdict, which needs more.
const PAIRS: u32 = 5;
const PAIRS_OF_BUILDS: u32 = 10;

/// The program to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    LlamaBench,
    /// Another build of this program.
    Rocmforge,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::LlamaBench => LLAMA_BENCH,
            Peer::Rocmforge => "other build",
        }
    }
}

/// Both programs and their arguments.
struct Programs {
    peer: Peer,
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
struct Found {
    peer: Peer,
    n_asked: u32,
    threshold: f64,
    /// Rows of ours and theirs, by pair and test.
    pairs: Vec<Vec<[Row; 2]>>,
}

pub fn run(args: &CompareArgs) -> Result<()> {
    let (tool, path) = (&args.with[0], Path::new(&args.with[1]));
    let peer = match tool.to_str() {
        Some(LLAMA_BENCH) => Peer::LlamaBench,
        Some(OURS) => Peer::Rocmforge,
        _ => {
            return Err(usage(format!(
                "--with {} is not supported; use --with {LLAMA_BENCH} PATH or --with {OURS} PATH",
                output::for_terminal(&tool.to_string_lossy())
            )));
        }
    };
    if args.threads == Some(0) {
        return Err(usage("-t must be at least 1"));
    }
    let threshold = args.threshold.clone().unwrap_or_default();
    if let Some((metric, _)) = threshold.per_metric.first() {
        return Err(usage(format!(
            "--threshold names the metric '{}', and only speeds are compared here; write --threshold 5",
            output::for_terminal(metric)
        )));
    }
    let tests = tests(args)?;
    if !path.is_file() {
        let path = output::for_terminal(&path.to_string_lossy());
        match peer {
            Peer::LlamaBench => bail!(
                "no {LLAMA_BENCH} at {path}; build llama.cpp and use the path of its bin/{LLAMA_BENCH}"
            ),
            Peer::Rocmforge => {
                bail!("no program at {path}; use the path of the other build of {OURS}")
            }
        }
    }
    let programs = programs(args, peer, path)?;
    let interrupt = Interrupt::install()?;
    let mut found = Found {
        peer,
        n_asked: args.pairs.unwrap_or(match peer {
            Peer::LlamaBench => PAIRS,
            Peer::Rocmforge => PAIRS_OF_BUILDS,
        }),
        threshold: threshold.default,
        pairs: Vec::new(),
    };
    let result = measure(&programs, &tests, &interrupt, &mut found);
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
                found.n_asked
            ));
        }
    }
    result?;
    found.judge(&tests, args.fail_inconclusive)
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

fn programs(args: &CompareArgs, peer: Peer, theirs: &Path) -> Result<Programs> {
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
    let device: Vec<OsString> = device
        .flat_map(|device| ["--device".into(), device.into()])
        .collect();
    // Without a folder, the program would be searched in PATH.
    let theirs = match theirs.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new(".").join(theirs),
        _ => theirs.to_owned(),
    };
    Ok(Programs {
        ours: std::env::current_exe().context("cannot determine the path of this program")?,
        theirs,
        common,
        only_theirs: match peer {
            Peer::LlamaBench => args.theirs.clone(),
            Peer::Rocmforge => device.iter().chain(&args.theirs).cloned().collect(),
        },
        only_ours: device,
        peer,
    })
}

impl Programs {
    /// Runs one of the programs and returns its rows; `None` if the user stopped it.
    fn run(&self, side: Side, working: &Working<'_>) -> Result<Option<Vec<Row>>> {
        let (name, mut command, only) = match side {
            Side::Ours => (OURS, Command::new(&self.ours), &self.only_ours),
            Side::Theirs => (
                self.peer.name(),
                Command::new(&self.theirs),
                &self.only_theirs,
            ),
        };
        if side == Side::Ours || self.peer == Peer::Rocmforge {
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
    programs: &Programs,
    tests: &[Test],
    interrupt: &Interrupt,
    found: &mut Found,
) -> Result<()> {
    let n_pairs = found.n_asked;
    let bar = bar(2 * n_pairs as usize, "{bar:30} {msg}, {eta} left");
    let working = interrupt.guard();
    for i in 0..n_pairs {
        let order = match i % 2 {
            0 => [Side::Ours, Side::Theirs],
            _ => [Side::Theirs, Side::Ours],
        };
        let mut runs = [Vec::new(), Vec::new()];
        for side in order {
            bar.set_message(format!("pair {} of {n_pairs}", i + 1));
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
            Ok([row(0, OURS)?, row(1, programs.peer.name())?])
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
        let theirs_name = self.peer.name();
        let mut text = format!(
            "{}\n{OURS} {} {}, {theirs_name} {} {}\n\n",
            ours.model, ours.build, ours.backends, theirs.build, theirs.backends
        );
        text.push_str(&format!(
            "| {:<16} | {:>34} | {:>34} | {:>22} |\n",
            "test",
            format!("{OURS} t/s [min, max]"),
            format!("{theirs_name} t/s [min, max]"),
            match self.pairs.len() < 6 {
                true => "ratio [min, max]",
                false => "ratio [95 %]",
            }
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
            let ratio = self.ratio(i);
            let [low, high] = ratio.interval().unwrap_or(ratio.range());
            text.push_str(&format!(
                "| {:<16} | {:>34} | {:>34} | {:>22} |\n",
                test.name(),
                speeds(0),
                speeds(1),
                format!("{:.3} [{low:.3}, {high:.3}]", ratio.median())
            ));
        }
        text.push_str(&match self.peer {
            Peer::LlamaBench => {
                format!("\n{} pairs; above 1, {OURS} is faster\n", self.pairs.len())
            }
            Peer::Rocmforge => format!(
                "\n{} pairs; above 1, this build is faster\n{}",
                self.pairs.len(),
                self.verdicts(tests)
            ),
        });
        text
    }

    fn is_of_builds(&self) -> bool {
        self.peer == Peer::Rocmforge
    }

    fn ratio(&self, test: usize) -> Pairs {
        Pairs::of(&self.ratios(test)).expect("a finished pair has speeds above 0 for each test")
    }

    /// Returns a line per test of two builds.
    fn verdicts(&self, tests: &[Test]) -> String {
        let lines = tests.iter().enumerate().map(|(i, test)| {
            let text = match self.ratio(i).verdict(self.threshold) {
                Verdict::Worse => "REGRESSION",
                Verdict::Better => "improved",
                Verdict::Same => "ok",
                Verdict::NotJudged if self.pairs.len() < 6 => "not judged: fewer than 6 pairs",
                Verdict::NotJudged => "not judged: too noisy, take more --pairs",
            };
            format!("{}: {text}\n", test.name())
        });
        lines.collect()
    }

    /// Returns the error that the verdicts on two builds call for.
    fn judge(&self, tests: &[Test], fails_inconclusive: bool) -> Result<()> {
        if !self.is_of_builds() {
            return Ok(());
        }
        let count = |wanted| {
            let verdicts = (0..tests.len()).map(|i| self.ratio(i).verdict(self.threshold));
            verdicts.filter(|verdict| *verdict == wanted).count()
        };
        let n = tests.len();
        match (count(Verdict::Worse), count(Verdict::NotJudged)) {
            (0, open) if open > 0 && fails_inconclusive => Err(Early::Inconclusive(format!(
                "{open} of {n} tests could not be judged; take more --pairs"
            ))
            .into()),
            (0, _) => Ok(()),
            (worse, _) => Err(Early::Regression(format!(
                "{worse} of {n} tests are slower than with the other build"
            ))
            .into()),
        }
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
            let ratio = self.ratio(i);
            let [low, high] = ratio.interval().unwrap_or(ratio.range());
            json!({
                "test": test.name(),
                "n_prompt": test.n_prompt,
                "n_gen": test.n_gen,
                "n_depth": test.n_depth,
                "ours": side(i, 0),
                "theirs": side(i, 1),
                "ratio": {
                    "median": ratio.median(),
                    "low": low,
                    "high": high,
                    "interval": match ratio.interval() {
                        Some(_) => "95 %",
                        None => "min and max",
                    },
                    "pairs": self.ratios(i),
                },
                "verdict": self.is_of_builds().then(|| word(ratio.verdict(self.threshold))),
            })
        };
        json!({
            "model": ours.model,
            "ours": program(ours),
            "theirs": program(theirs),
            "pairs": self.pairs.len(),
            "pairs_asked": self.n_asked,
            "repetitions": args.repetitions,
            "tests": tests.iter().enumerate().map(of_test).collect::<Vec<_>>(),
        })
    }
}

fn summary(speeds: &[f64]) -> Summary {
    Summary::of(speeds).expect("a finished pair has a speed above 0 for each test")
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Worse => "regression",
        Verdict::Better => "improved",
        Verdict::Same => "ok",
        Verdict::NotJudged => "not_judged",
    }
}
