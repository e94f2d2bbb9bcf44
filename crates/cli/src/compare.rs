//! `rocmforge compare`: runs another program and `rocmforge bench` alternately on the same file. The other program is
//! llama-bench, or another build of rocmforge.
//!
//! Each run is a process of its own: it starts with an empty heap, loads the file from the page cache and warms up. The
//! order within a pair alternates, so that a machine that becomes slower affects both programs. Each pair gives a ratio;
//! the median ratio has an interval from the ranks of the pairs, and two builds of rocmforge get a verdict. llama-bench
//! first runs briefly with each of the settings that matter, and each test then meets the best for it.

mod child;
mod groups;
mod programs;
mod report;
mod rows;
mod settings;

use anyhow::Result;

use crate::answer::bar;
use crate::args::CompareArgs;
use crate::exit::{Early, usage};
use crate::interrupt::{Interrupt, Working};
use crate::output::{self, Out};
use groups::Group;
use programs::{Peer, Programs, Side, row_of};
use report::Found;
use rows::Test;
use settings::{Search, Setting, candidates};

const OURS: &str = "rocmforge";
const LLAMA_BENCH: &str = "llama-bench";
/// Pairs, where the user does not say: another build gets a verdict, which needs more.
const PAIRS: u32 = 5;
const PAIRS_OF_BUILDS: u32 = 10;

pub fn run(args: &CompareArgs) -> Result<()> {
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
    let tests = groups::tests(args)?;
    let programs = Programs::new(args)?;
    let interrupt = Interrupt::install()?;
    let working = interrupt.guard();
    let settings = candidates(args, &programs, &tests);
    let (settings, search) = match settings.len() {
        1 => (vec![settings[0].clone(); tests.len()], None),
        _ => {
            let search = search(args, &programs, settings, &tests, &working)?;
            let best = |test| search.best(test).map(|tried| tried.setting.clone());
            let best: Option<Vec<Setting>> = (0..tests.len()).map(best).collect();
            (best.expect("a finished search found one"), Some(search))
        }
    };
    let mut found = Found {
        n_asked: args.pairs.unwrap_or(match programs.peer {
            Peer::LlamaBench => PAIRS,
            Peer::Rocmforge => PAIRS_OF_BUILDS,
        }),
        threshold: threshold.default,
        repetitions: args.repetitions,
        programs,
        settings,
        search,
        tests,
        pairs: Vec::new(),
    };
    let result = measure(&mut found, &working);
    // Finished pairs are printed even after an error.
    if !found.pairs.is_empty() {
        let mut out = Out::new();
        match args.json {
            true => out.json(&found.json())?,
            false => out.bytes(found.table().as_bytes())?,
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
    found.judge(args.fail_inconclusive)
}

/// Finds the peer's best setting for each test.
fn search(
    args: &CompareArgs,
    programs: &Programs,
    settings: Vec<Setting>,
    tests: &[Test],
    working: &Working<'_>,
) -> Result<Search> {
    output::note(&format!(
        "notice: first trying {} settings of {} in short runs; --fixed skips this",
        settings.len(),
        programs.peer.name()
    ));
    let search = Search::run(programs, settings, tests, args.repetitions, working)?;
    search.ok_or_else(|| Early::Interrupted.into())
}

/// Returns what one command of the peer can run: the tests with the same setting, in groups.
fn batches<'a>(tests: &[Test], settings: &'a [Setting]) -> Vec<(&'a Setting, Group)> {
    let mut batches = Vec::new();
    for (i, setting) in settings.iter().enumerate() {
        if settings[..i].contains(setting) {
            continue;
        }
        let pairs = tests.iter().zip(settings);
        let same = pairs.filter(|(_, of_test)| *of_test == setting);
        let same: Vec<Test> = same.map(|(test, _)| *test).collect();
        batches.extend(Group::of(&same).into_iter().map(|group| (setting, group)));
    }
    batches
}

fn measure(found: &mut Found, working: &Working<'_>) -> Result<()> {
    let n_pairs = found.n_asked;
    let programs = &found.programs;
    let batches = batches(&found.tests, &found.settings);
    let bar = bar(
        2 * n_pairs as usize * batches.len(),
        "{bar:30} {msg}, {eta} left",
    );
    for i in 0..n_pairs {
        bar.set_message(format!("pair {} of {n_pairs}", i + 1));
        let mut runs = [Vec::new(), Vec::new()];
        for (setting, group) in &batches {
            let mut order = [(0, Side::Ours), (1, Side::Theirs(setting))];
            if i % 2 == 1 {
                order.reverse();
            }
            for (side, what) in order {
                let Some(rows) = programs.run(what, group, found.repetitions, working)? else {
                    bar.finish_and_clear();
                    return Err(Early::Interrupted.into());
                };
                runs[side].extend(rows.into_iter().filter(|row| group.has(&row.test)));
                bar.inc(1);
            }
        }
        let of_test = |test: &Test| {
            let theirs = row_of(&runs[1], test, programs.peer.name())?;
            Ok([row_of(&runs[0], test, OURS)?, theirs])
        };
        let pair = found.tests.iter().map(of_test).collect::<Result<_>>()?;
        found.pairs.push(pair);
    }
    bar.finish_and_clear();
    Ok(())
}
