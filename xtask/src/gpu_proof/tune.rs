//! The part `tune`: what autotuning finds, and what it gains.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::proof::{Proof, Words as _, output, run as run_command};
use super::records;

/// Clocks drift, so runs with and without tuning alternate.
const N_ROUNDS: usize = 3;

/// A model, and where its tuning results are kept.
struct Subject {
    shape: String,
    file: PathBuf,
    cache: PathBuf,
}

#[derive(Clone, Copy, PartialEq)]
enum Tuning {
    Off,
    On,
}

pub(super) fn run(proof: &mut Proof) -> Result<()> {
    for shape in proof.args.tune_shapes.clone() {
        println!("{shape}");
        let (name, layers) = match shape.split_once(':') {
            Some((name, layers)) => (name, Some(layers.parse()?)),
            None => (shape.as_str(), None),
        };
        let subject = Subject {
            shape: name.into(),
            file: proof.synthetic(name, "Q4_K_M", layers)?,
            cache: proof.work.join("tuning"),
        };
        let mut tune = proof.rocmforge("tune");
        tune.arg("-m")
            .arg(&subject.file)
            .arg("--cache-dir")
            .arg(&subject.cache);
        let result = run_command(tune.words("--budget 25 --again"));
        proof.check(result);
        let result = subject.compare_speeds(proof);
        proof.check(result);
        let result = subject.compare_texts(proof);
        proof.check(result);
    }
    Ok(())
}

impl Subject {
    /// The command with the tuning results, or without.
    fn command(&self, proof: &Proof, subcommand: &str, tuning: Tuning) -> Command {
        let mut command = proof.rocmforge(subcommand);
        command.arg("-m").arg(&self.file);
        command.arg("--cache-dir").arg(&self.cache);
        command.args(["--gpu-check", "never"]);
        if tuning == Tuning::Off {
            command.args(["--kernel-variant", "tuning=off"]);
        }
        command
    }

    fn compare_speeds(&self, proof: &Proof) -> Result<()> {
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for _ in 0..N_ROUNDS {
            for (tuning, records) in [(Tuning::Off, &mut off), (Tuning::On, &mut on)] {
                let mut bench = self.command(proof, "bench", tuning);
                bench.words("-p 512 -n 128 -r 2 -o jsonl");
                records.extend(records::lines(&output(&mut bench)?)?);
            }
        }
        let all = serde_json::json!({"off": off, "on": on});
        std::fs::write(
            proof.results.join(format!("tune-{}.json", self.shape)),
            all.to_string(),
        )?;
        for (test, key) in [("pp512", "n_prompt"), ("tg128", "n_gen")] {
            let of_test = |record: &Value| record[key] != 0;
            let off = records::mean_speed(&off, of_test)?;
            let on = records::mean_speed(&on, of_test)?;
            println!(
                "{} {test}: {off:.1} tok/s without, {on:.1} with tuning ({:+.1} %), {N_ROUNDS} rounds",
                self.shape,
                100.0 * (on / off - 1.0)
            );
        }
        Ok(())
    }

    fn compare_texts(&self, proof: &Proof) -> Result<()> {
        let ids = |tuning| -> Result<Value> {
            let mut generate = self.command(proof, "generate", tuning);
            generate.words("--ids 1,2,3,4,5,6,7,8 --temp 0 -n 32 --ignore-eos --json");
            let text = output(&mut generate)?;
            Ok(serde_json::from_str::<Value>(&text)?["ids"].take())
        };
        let (off, on) = (ids(Tuning::Off)?, ids(Tuning::On)?);
        ensure!(
            off.as_array().is_some_and(|ids| ids.len() == 32),
            "no text: {off}"
        );
        ensure!(off == on, "tuning changes the text: {off}, {on}");
        println!("the same text with and without");
        Ok(())
    }
}
