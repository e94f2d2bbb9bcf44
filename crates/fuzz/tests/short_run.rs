//! Runs every target on its committed inputs and a fixed number of mutations of them; deterministic.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rocmforge_fuzz::{Mutator, TARGETS, Target};

/// Mutations of a target, some seconds for all targets in a dev build; and those of each repeat of `ROCMFORGE_TEST_REPEATS`.
const ROUNDS: [(&str, usize, usize); 10] = [
    ("gguf", 20_000, 80_000),
    ("split", 500, 2_000),
    ("tokenizer", 3_000, 12_000),
    ("text", 1_000, 4_000),
    ("template", 1_000, 4_000),
    ("grammar", 200, 800),
    ("http", 10_000, 40_000),
    ("adapter", 5_000, 20_000),
    ("tuning", 20_000, 80_000),
    ("external", 60, 1_000),
];

/// Runs one input; saves it if it shows a bug.
fn run(target: Target, name: &str, data: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(data))).is_err() {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("crash-{}", target.name));
        std::fs::write(&path, data).unwrap();
        panic!(
            "target {} fails on {name}; the input was saved as {}",
            target.name,
            path.display()
        );
    }
}

fn short_run(name: &str) {
    let target = Target::find(name).unwrap();
    let &(_, few, many) = ROUNDS.iter().find(|(of, ..)| *of == name).unwrap();
    let mut corpus = Vec::new();
    for (file, data) in target.corpus().unwrap() {
        run(target, &file, &data);
        corpus.push(data);
    }
    let mut mutator = Mutator::new(1, target.max_bytes);
    let repeats = std::env::var("ROCMFORGE_TEST_REPEATS");
    let rounds = repeats.map_or(few, |repeats| {
        many * repeats.parse::<usize>().expect("a number")
    });
    for round in 0..rounds {
        run(
            target,
            &format!("mutation {round}"),
            &mutator.input(&corpus),
        );
    }
}

#[test]
fn gguf() {
    short_run("gguf");
}

#[test]
fn grammar() {
    short_run("grammar");
}

#[test]
fn http() {
    short_run("http");
}

#[test]
fn split() {
    short_run("split");
}

#[test]
fn tokenizer() {
    short_run("tokenizer");
}

#[test]
fn text() {
    short_run("text");
}

#[test]
fn template() {
    short_run("template");
}

#[test]
fn adapter() {
    short_run("adapter");
}

#[test]
fn tuning() {
    short_run("tuning");
}

#[test]
fn external() {
    short_run("external");
}

#[test]
fn committed_seeds_are_up_to_date() {
    for target in TARGETS {
        let committed: BTreeMap<_, _> = target.corpus().unwrap().into_iter().collect();
        for (name, data) in (target.seeds)() {
            assert!(
                committed.get(&name) == Some(&data),
                "fuzz/seeds/{}/{name} is out of date; run cargo xtask fuzz-seeds",
                target.name
            );
        }
    }
}
