//! Judges the rows of `bench` by `--target`, for scripts: a target that is missed ends the program with an exit code of
//! its own.

use std::time::Duration;

use anyhow::Result;

use super::Test;
use crate::args::{Metric, Targets};
use crate::exit::{Early, usage};
use crate::output;

/// The targets, and what came of them so far.
pub struct Gate {
    targets: Vec<(Metric, f64)>,
    missed: Vec<String>,
}

impl Gate {
    /// Refuses targets that none of the tests measures.
    pub fn new(targets: Option<&Targets>, tests: &[Test]) -> Result<Gate> {
        let targets = targets.map_or_else(Vec::new, |targets| targets.0.clone());
        for (metric, _) in &targets {
            let advice = match metric {
                Metric::TtftMs => "give a prompt alone with -p",
                Metric::TokensS => "generate alone with -n",
                Metric::VramGb => "use a GPU",
            };
            if !tests.iter().any(|test| metric.is_of(test)) {
                return Err(usage(format!(
                    "no test measures {}; {advice}",
                    metric.name()
                )));
            }
        }
        Ok(Gate {
            targets,
            missed: Vec::new(),
        })
    }

    /// Refuses targets that only a GPU has, where the CPU runs the model.
    pub fn refuse_without_gpu(&self) -> Result<()> {
        match self
            .targets
            .iter()
            .any(|(metric, _)| *metric == Metric::VramGb)
        {
            true => Err(usage(
                "vram_gb is the memory of a GPU, but the model runs on the CPU",
            )),
            false => Ok(()),
        }
    }

    /// Judges the medians of a test. `gpu_bytes`: what it took of a GPU's memory; `None` on the CPU.
    pub fn judge(&mut self, name: &str, test: &Test, samples: &[Duration], gpu_bytes: Option<u64>) {
        let seconds = median(samples);
        for (metric, limit) in &self.targets {
            if !metric.is_of(test) {
                continue;
            }
            let (measured, is_met) = match metric {
                Metric::TtftMs => (Some(1e3 * seconds), 1e3 * seconds <= *limit),
                Metric::TokensS => {
                    let rate = test.n_tokens() as f64 / seconds;
                    (Some(rate), rate >= *limit)
                }
                Metric::VramGb => {
                    let gb = gpu_bytes.map(|bytes| bytes as f64 / 1e9);
                    (gb, gb.is_some_and(|gb| gb <= *limit))
                }
            };
            let bound = match metric {
                Metric::TokensS => "at least",
                Metric::TtftMs | Metric::VramGb => "at most",
            };
            let measured = measured.map_or("not on a GPU".into(), |value| format!("{value:.2}"));
            let line = format!("{name}: {} is {measured}, {bound} {limit}", metric.name());
            match is_met {
                true => output::note(&format!("target met: {line}")),
                false => self.missed.push(line),
            }
        }
    }

    /// Fails if a target was missed.
    pub fn finish(self) -> Result<()> {
        match self.missed.is_empty() {
            true => Ok(()),
            false => Err(Early::TargetMissed(format!(
                "a target was missed: {}",
                self.missed.join("; ")
            ))
            .into()),
        }
    }
}

impl Metric {
    /// Whether a test measures it.
    fn is_of(self, test: &Test) -> bool {
        match self {
            Metric::TtftMs => test.n_prompt > 0 && test.n_gen == 0,
            Metric::TokensS => test.n_prompt == 0,
            Metric::VramGb => super::is_for_gpu(&test.offload),
        }
    }
}

/// The median in seconds.
fn median(samples: &[Duration]) -> f64 {
    let mut seconds: Vec<f64> = samples.iter().map(Duration::as_secs_f64).collect();
    seconds.sort_by(f64::total_cmp);
    let n = seconds.len();
    (seconds[(n - 1) / 2] + seconds[n / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use rocmforge_plan::KvTypes;
    use rocmforge_runtime::gpu::Offload;

    use super::*;

    fn test(n_prompt: usize, n_gen: usize) -> Test {
        Test {
            n_prompt,
            n_gen,
            n_depth: 0,
            n_seqs: 2,
            n_threads: 1,
            kv_types: KvTypes::default(),
            offload: Offload::default(),
        }
    }

    /// What is missed by runs of these milliseconds.
    fn missed(targets: &str, test: &Test, ms: &[u64], gpu_bytes: Option<u64>) -> Option<String> {
        let targets = targets.parse().unwrap();
        let mut gate = Gate::new(Some(&targets), std::slice::from_ref(test)).unwrap();
        let samples: Vec<Duration> = ms.iter().copied().map(Duration::from_millis).collect();
        gate.judge("x", test, &samples, gpu_bytes);
        gate.finish().err().map(|error| error.to_string())
    }

    #[test]
    fn medians_are_judged() {
        let (prompt, generation) = (test(512, 0), test(0, 50));
        for (targets, test, ms, gpu_bytes, expected) in [
            ("ttft_ms=200", &prompt, &[100, 900, 150][..], None, None),
            (
                "ttft_ms=200",
                &prompt,
                &[250, 100, 250],
                None,
                Some("ttft_ms is 250.00, at most 200"),
            ),
            // Two sequences: 100 tokens.
            ("tokens_s=40", &generation, &[2000, 3000], None, None),
            (
                "tokens_s=41",
                &generation,
                &[2000, 3000],
                None,
                Some("tokens_s is 40.00, at least 41"),
            ),
            ("vram_gb=6", &prompt, &[1], Some(6_000_000_000), None),
            (
                "vram_gb=6",
                &prompt,
                &[1],
                Some(6_100_000_000),
                Some("vram_gb is 6.10, at most 6"),
            ),
            (
                "vram_gb=6",
                &prompt,
                &[1],
                None,
                Some("vram_gb is not on a GPU"),
            ),
        ] {
            let missed = missed(targets, test, ms, gpu_bytes);
            match expected {
                None => assert_eq!(missed, None, "{targets}"),
                Some(part) => assert!(missed.unwrap().contains(part), "{targets}"),
            }
        }
    }

    #[test]
    fn targets_that_nothing_measures_are_refused() {
        let on_cpu = Test {
            offload: Offload::NOTHING,
            ..test(512, 0)
        };
        for (target, test) in [
            ("ttft_ms=1", test(0, 50)),
            ("tokens_s=1", test(512, 0)),
            ("ttft_ms=1", test(512, 50)),
            ("vram_gb=1", on_cpu),
        ] {
            let targets = target.parse().unwrap();
            let error = Gate::new(Some(&targets), &[test]).err().unwrap();
            assert!(
                error.to_string().starts_with("no test measures"),
                "{target}"
            );
        }
    }
}
