//! `cargo xtask fuzz`: fuzzing without libFuzzer, by random mutations of the committed inputs. It has no coverage
//! feedback, so it finds bugs more slowly than `fuzz/`, but it runs on every platform.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rocmforge_fuzz::{Mutator, TARGETS, Target};

/// An input that takes longer is a hang.
const HANG: Duration = Duration::from_secs(20);

/// The input that runs now, and since when.
type Current = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

pub(crate) fn run(name: &str, seconds: u64, seed: u64) -> Result<()> {
    let target = Target::find(name).ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        anyhow!(
            "there is no target '{name}'; the targets are {}",
            names.join(", ")
        )
    })?;
    let dir = target.corpus_dir();
    let corpus: Vec<Vec<u8>> = target
        .corpus()
        .with_context(|| format!("cannot read {}", dir.display()))?
        .into_iter()
        .map(|(_, data)| data)
        .collect();
    if corpus.is_empty() {
        bail!("no inputs in {}; run cargo xtask fuzz-seeds", dir.display());
    }
    let current = Current::default();
    watch(target, Arc::clone(&current));
    let mut mutator = Mutator::new(seed, target.max_bytes);
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut n = 0u64;
    while started.elapsed() < Duration::from_secs(seconds) {
        let input = match corpus.get(n as usize) {
            Some(input) => input.clone(),
            None => mutator.input(&corpus),
        };
        n += 1;
        let began = Instant::now();
        *current.lock().expect("the watcher does not panic") = Some((began, input.clone()));
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            bail!(
                "input {n} crashes; it was saved as {}",
                keep(target, &input)?.display()
            );
        }
        slowest = slowest.max(began.elapsed());
    }
    *current.lock().expect("the watcher does not panic") = None;
    println!(
        "{name}: {n} inputs in {} s, the slowest took {} ms",
        started.elapsed().as_secs(),
        slowest.as_millis()
    );
    Ok(())
}

/// Starts a thread that saves an input that hangs, and ends the program.
fn watch(target: Target, current: Current) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let guard = current
                .lock()
                .expect("the runner does not panic with the lock");
            if let Some((began, input)) = &*guard
                && began.elapsed() > HANG
            {
                match keep(target, input) {
                    Ok(path) => {
                        eprintln!("error: an input hangs; it was saved as {}", path.display())
                    }
                    Err(error) => eprintln!("error: an input hangs, and {error:#}"),
                }
                std::process::exit(1);
            }
        }
    });
}

/// Saves an input below `target/`.
fn keep(target: Target, input: &[u8]) -> Result<PathBuf> {
    let path = crate::root()
        .join("target")
        .join(format!("fuzz-{}", target.name));
    fs::create_dir_all(crate::root().join("target"))
        .and_then(|()| fs::write(&path, input))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// `cargo xtask fuzz-seeds`: writes the seeds of every target.
pub(crate) fn write_seeds() -> Result<()> {
    for target in TARGETS {
        let dir = target.corpus_dir();
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for (name, data) in (target.seeds)() {
            let path = dir.join(name);
            fs::write(&path, data).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}
