//! The results of finished pairs as a table and as JSON, and the verdicts on two builds.

use anyhow::Result;
use rocmforge_bench::baseline::{Pairs, Verdict};
use rocmforge_profile::stats::Summary;
use serde_json::{Value as Json, json};

use super::OURS;
use super::programs::{Peer, Programs};
use super::rows::{Row, Test};
use super::settings::{Search, Setting};
use crate::exit::Early;
use crate::output;

/// The results of finished pairs.
pub struct Found {
    pub programs: Programs,
    pub tests: Vec<Test>,
    /// The peer's setting for each test.
    pub settings: Vec<Setting>,
    /// How the settings were found.
    pub search: Option<Search>,
    pub n_asked: u32,
    pub threshold: f64,
    pub repetitions: u32,
    /// Rows of ours and theirs, by pair and test.
    pub pairs: Vec<Vec<[Row; 2]>>,
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

    /// Returns the program and build of each side, and its backends.
    fn header(&self) -> String {
        let ours = &self.pairs[0][0][0];
        let mut builds: Vec<String> = Vec::new();
        for [_, theirs] in &self.pairs[0] {
            let build = format!("{} {}", theirs.build, theirs.backends);
            if !builds.contains(&build) {
                builds.push(build);
            }
        }
        format!(
            "{}\n{OURS} {} {}, {} {}\n\n",
            ours.model,
            ours.build,
            ours.backends,
            self.programs.peer.name(),
            builds.join(" and ")
        )
    }

    pub fn table(&self) -> String {
        let theirs_name = self.programs.peer.name();
        let mut text = self.search.as_ref().map_or_else(String::new, |search| {
            search_table(search, &self.programs, &self.tests)
        });
        text.push_str(&self.header());
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
        for (i, test) in self.tests.iter().enumerate() {
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
        text.push_str(&match self.programs.peer {
            Peer::LlamaBench => format!(
                "\n{} pairs; above 1, {OURS} is faster\n{}",
                self.pairs.len(),
                self.flags_taken()
            ),
            Peer::Rocmforge => format!(
                "\n{} pairs; above 1, this build is faster\n{}",
                self.pairs.len(),
                self.verdicts()
            ),
        });
        text
    }

    /// Returns a line for each setting of the peer, with the tests that it ran.
    fn flags_taken(&self) -> String {
        let mut lines = String::new();
        for (i, setting) in self.settings.iter().enumerate() {
            if self.settings[..i].contains(setting) {
                continue;
            }
            let pairs = self.tests.iter().zip(&self.settings);
            let same = pairs.filter(|(_, of_test)| *of_test == setting);
            let names: Vec<String> = same.map(|(test, _)| test.name()).collect();
            let name = self.programs.peer.name();
            let label = label(&self.programs, setting);
            lines.push_str(&format!("{name} for {}: {label}\n", names.join(", ")));
        }
        lines
    }

    fn is_of_builds(&self) -> bool {
        self.programs.peer == Peer::Rocmforge
    }

    fn ratio(&self, test: usize) -> Pairs {
        Pairs::of(&self.ratios(test)).expect("a finished pair has speeds above 0 for each test")
    }

    /// Returns a line per test of two builds.
    fn verdicts(&self) -> String {
        let lines = self.tests.iter().enumerate().map(|(i, test)| {
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
    pub fn judge(&self, fails_inconclusive: bool) -> Result<()> {
        if !self.is_of_builds() {
            return Ok(());
        }
        let count = |wanted| {
            let verdicts = (0..self.tests.len()).map(|i| self.ratio(i).verdict(self.threshold));
            verdicts.filter(|verdict| *verdict == wanted).count()
        };
        let n = self.tests.len();
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

    pub fn json(&self) -> Json {
        let [ours, theirs] = &self.pairs[0][0];
        let program = |row: &Row| json!({ "build": row.build, "backends": row.backends });
        let side = |i, side| {
            let speeds = self.speeds(i, side);
            let summary = summary(&speeds);
            json!({ "median": summary.p50, "min": summary.min, "max": summary.max, "runs": speeds })
        };
        let theirs_of = |i: usize| {
            let setting = &self.settings[i];
            let mut json = side(i, 1);
            json["program"] = json!(self.programs.theirs[setting.program].to_string_lossy());
            json["build"] = json!(self.pairs[0][i][1].build);
            json["flags"] = json!(self.programs.flags(setting));
            json
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
                "theirs": theirs_of(i),
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
            "repetitions": self.repetitions,
            "search": self.search.as_ref().map(|search| search_json(search, &self.programs, &self.tests)),
            "tests": self.tests.iter().enumerate().map(of_test).collect::<Vec<_>>(),
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

/// Returns the program, where there are several, and the flags of a setting.
fn label(programs: &Programs, setting: &Setting) -> String {
    let flags = programs.flags(setting).join(" ");
    let text = match programs.theirs.len() {
        1 => flags,
        _ => {
            let path = programs.theirs[setting.program].to_string_lossy();
            format!("{path} {flags}")
        }
    };
    output::for_terminal(&text)
}

/// Returns what was tried: a row per setting, a column per test.
fn search_table(search: &Search, programs: &Programs, tests: &[Test]) -> String {
    let labels: Vec<String> = { search.tried.iter() }
        .map(|tried| label(programs, &tried.setting))
        .collect();
    let width = { labels.iter() }
        .map(|label| label.chars().count())
        .fold(7, usize::max);
    let mut text = format!(
        "{} settings of {} tried in {:.0} s, t/s (* the best of a test):\n\n| {:<width$} |",
        search.tried.len(),
        programs.peer.name(),
        search.seconds,
        "setting"
    );
    for test in tests {
        text.push_str(&format!(" {:>16} |", test.name()));
    }
    text.push_str(&format!("\n| {:-<width$} |", ""));
    text.push_str(&format!(" {:->15}: |", "").repeat(tests.len()));
    for (tried, label) in search.tried.iter().zip(&labels) {
        text.push_str(&format!("\n| {label:<width$} |"));
        for i in 0..tests.len() {
            let is_best = { search.best(i) }.is_some_and(|best| best.setting == tried.setting);
            let cell = match (tried.speed(i), is_best) {
                (Some(speed), true) => format!("* {speed:.2}"),
                (Some(speed), false) => format!("{speed:.2}"),
                (None, _) if tried.failure.is_some() => "failed".to_string(),
                (None, _) => String::new(),
            };
            text.push_str(&format!(" {cell:>16} |"));
        }
    }
    text.push_str("\n\n");
    for (tried, label) in search.tried.iter().zip(&labels) {
        if let Some(failure) = &tried.failure {
            text.push_str(&format!("{label}: {failure}\n\n"));
        }
    }
    text
}

fn search_json(search: &Search, programs: &Programs, tests: &[Test]) -> Json {
    let of_setting = |tried: &super::settings::Tried| {
        let runs = tests.iter().zip(&tried.speeds);
        let runs = runs.filter(|(_, speeds)| !speeds.is_empty());
        let runs = runs.map(|(test, speeds)| json!({ "test": test.name(), "runs": speeds }));
        json!({
            "program": programs.theirs[tried.setting.program].to_string_lossy(),
            "flags": programs.flags(&tried.setting),
            "tests": runs.collect::<Vec<_>>(),
            "failure": tried.failure,
        })
    };
    json!({
        "seconds": search.seconds,
        "settings": search.tried.iter().map(of_setting).collect::<Vec<_>>(),
    })
}
