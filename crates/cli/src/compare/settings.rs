//! The settings of llama-bench that change its speed, and the search for the best of them for each test.

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};

use super::groups::Group;
use super::programs::{Peer, Programs, Side, row_of};
use super::rows::Test;
use crate::answer::bar;
use crate::args::CompareArgs;
use crate::interrupt::Working;

/// Rows that llama-bench computes at once in a prompt. The first is its default.
const UBATCHES: [u64; 3] = [512, 1024, 2048];
/// Most repetitions of a test in a trial.
const REPETITIONS: u32 = 2;
/// Settings are tried again if they reach this share of the best speed: short runs differ by less than the rest.
const CLOSE: f64 = 0.75;

/// A way to run the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Index of the program in [`Programs::theirs`].
    pub program: usize,
    /// `None`: given by the user's own arguments, as the others.
    pub n_threads: Option<usize>,
    flash_attention: Option<bool>,
    n_ubatch: Option<u64>,
}

impl Setting {
    /// Returns the flags of this setting, without threads.
    pub fn tuning(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if let Some(on) = self.flash_attention {
            flags.extend(["-fa".to_string(), u8::from(on).to_string()]);
        }
        if let Some(n) = self.n_ubatch {
            flags.extend(["-ub".to_string(), n.to_string()]);
        }
        flags
    }

    /// Returns whether the test can run differently with this setting than with a smaller micro-batch.
    fn matters(&self, test: &Test) -> bool {
        match self.n_ubatch {
            Some(n) if n > UBATCHES[0] => test.n_prompt > n / 2,
            _ => true,
        }
    }
}

/// Returns the settings to try, the peer's defaults first; a single one needs no trial.
pub fn candidates(args: &CompareArgs, programs: &Programs, tests: &[Test]) -> Vec<Setting> {
    let given = |names: [&str; 2]| {
        let mut theirs = programs.only_theirs.iter();
        theirs.any(|arg| names.iter().any(|name| arg == name))
    };
    let is_searched = programs.peer == Peer::LlamaBench && !args.fixed;
    let tried = |names| is_searched && !given(names);
    let mut threads = match given(["-t", "--threads"]) && programs.peer == Peer::LlamaBench {
        true => vec![None],
        false => vec![Some(programs.n_threads)],
    };
    let on_cpu = args.device.as_deref().is_none_or(|device| device == "cpu");
    // One thread per core, unless the user asks for another number: two may be faster.
    let all = thread::available_parallelism().map_or(1, |n| n.get());
    if tried(["-t", "--threads"]) && args.threads.is_none() && on_cpu && all > programs.n_threads {
        threads.push(Some(all));
    }
    let flash_attention = match tried(["-fa", "--flash-attn"]) {
        true => vec![Some(false), Some(true)],
        false => vec![None],
    };
    let n_ubatch = match tried(["-ub", "--ubatch-size"]) {
        true => UBATCHES.map(Some).to_vec(),
        false => vec![None],
    };
    let mut found = Vec::new();
    for program in 0..programs.theirs.len() {
        for &n_threads in &threads {
            for &flash_attention in &flash_attention {
                for &n_ubatch in &n_ubatch {
                    found.push(Setting {
                        program,
                        n_threads,
                        flash_attention,
                        n_ubatch,
                    });
                }
            }
        }
    }
    found.retain(|setting| tests.iter().any(|test| setting.matters(test)));
    found
}

/// A setting and what was measured with it.
pub struct Tried {
    pub setting: Setting,
    /// Tokens per second of each run, for each test; empty where the setting does not matter.
    pub speeds: Vec<Vec<f64>>,
    /// Why its runs failed.
    pub failure: Option<String>,
}

impl Tried {
    /// Returns the mean speed of the runs of a test.
    pub fn speed(&self, test: usize) -> Option<f64> {
        let speeds = &self.speeds[test];
        let is_usable = self.failure.is_none() && !speeds.is_empty();
        is_usable.then(|| speeds.iter().sum::<f64>() / speeds.len() as f64)
    }

    /// Runs the tests `wanted` unless the setting failed before. Returns whether the user lets it go on.
    fn run(
        &mut self,
        programs: &Programs,
        tests: &[Test],
        wanted: &[usize],
        (repetitions, working): (u32, &Working<'_>),
    ) -> bool {
        let of_wanted: Vec<Test> = wanted.iter().map(|&test| tests[test]).collect();
        for group in Group::of(&of_wanted) {
            if self.failure.is_some() {
                return true;
            }
            let side = Side::Theirs(&self.setting);
            let rows = match programs.run(side, &group, repetitions.min(REPETITIONS), working) {
                Ok(Some(rows)) => rows,
                Ok(None) => return false,
                Err(error) => {
                    self.failure = Some(format!("{error:#}"));
                    continue;
                }
            };
            for &test in wanted.iter().filter(|&&test| group.has(&tests[test])) {
                match row_of(&rows, &tests[test], programs.peer.name()) {
                    Ok(row) => self.speeds[test].push(row.tokens_s),
                    Err(error) => {
                        self.failure.get_or_insert_with(|| format!("{error:#}"));
                    }
                }
            }
        }
        true
    }
}

/// Settings that were tried.
pub struct Search {
    pub tried: Vec<Tried>,
    pub seconds: f64,
}

impl Search {
    /// Tries every setting, then those close to the best again in reverse order. A setting that fails is left out.
    /// `None` if the user stopped it.
    ///
    /// # Errors
    /// No setting works for one of the tests.
    pub fn run(
        programs: &Programs,
        settings: Vec<Setting>,
        tests: &[Test],
        repetitions: u32,
        working: &Working<'_>,
    ) -> Result<Option<Search>> {
        let started = Instant::now();
        let of_setting = |setting| Tried {
            setting,
            speeds: vec![Vec::new(); tests.len()],
            failure: None,
        };
        let mut search = Search {
            tried: settings.into_iter().map(of_setting).collect(),
            seconds: 0.0,
        };
        let n = search.tried.len();
        let bar = bar(2 * n, "{bar:30} {msg}, {eta} left");
        let all = |tried: &Tried| -> Vec<usize> {
            let matter = |test: &usize| tried.setting.matters(&tests[*test]);
            (0..tests.len()).filter(matter).collect()
        };
        let first: Vec<Vec<usize>> = search.tried.iter().map(all).collect();
        let trial = |search: &mut Search, i: usize, wanted: &[usize]| {
            let tried = &mut search.tried[i];
            let flags = programs.flags(&tried.setting).join(" ");
            bar.set_message(format!("trying {} {flags}", programs.peer.name()));
            let goes_on = tried.run(programs, tests, wanted, (repetitions, working));
            bar.inc(1);
            goes_on
        };
        for (i, wanted) in first.iter().enumerate() {
            if !trial(&mut search, i, wanted) {
                return Ok(None);
            }
        }
        let close: Vec<Vec<usize>> = (0..n).map(|i| search.close(i)).collect();
        for (i, wanted) in close.iter().enumerate().rev() {
            if !trial(&mut search, i, wanted) {
                return Ok(None);
            }
        }
        bar.finish_and_clear();
        search.seconds = started.elapsed().as_secs_f64();
        for (i, test) in tests.iter().enumerate() {
            if search.best(i).is_none() {
                let mut failures = search.tried.iter().filter_map(|of| of.failure.as_deref());
                let failure = failures.next().unwrap_or("no result");
                bail!(
                    "no setting of {} works for {}: {}",
                    programs.peer.name(),
                    test.name(),
                    failure
                );
            }
        }
        Ok(Some(search))
    }

    /// Returns the setting with the best speed in a test.
    pub fn best(&self, test: usize) -> Option<&Tried> {
        let mut best: Option<(&Tried, f64)> = None;
        for tried in &self.tried {
            let speed = tried.speed(test);
            // Of equals, the first.
            if let Some(speed) = speed.filter(|speed| best.is_none_or(|(_, most)| *speed > most)) {
                best = Some((tried, speed));
            }
        }
        best.map(|(tried, _)| tried)
    }

    /// Returns the tests in which a setting and another are close to the best.
    fn close(&self, setting: usize) -> Vec<usize> {
        let is_close = |tried: &Tried, test: usize| {
            let best = self.best(test).and_then(|best| best.speed(test));
            let pair = tried.speed(test).zip(best);
            pair.is_some_and(|(speed, best)| speed >= CLOSE * best)
        };
        let n_tests = self.tried[setting].speeds.len();
        (0..n_tests)
            .filter(|&test| {
                let n_close = self.tried.iter().filter(|of| is_close(of, test)).count();
                n_close > 1 && is_close(&self.tried[setting], test)
            })
            .collect()
    }
}
