//! How fast the device is, and how many tokens of prompts a step takes. Sequences that generate wait for the prompts in
//! their steps, so these get as many tokens as keep the step's time near a target, by the times of earlier steps. A step
//! without such sequences takes as many as the device can.

use std::time::Duration;

/// Weight of the newest step in a mean.
const NEW: f64 = 0.25;

/// The tokens of a step, by their kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Sequences that generate.
    pub(crate) n_decoding: usize,
    /// Tokens that these check beside their own.
    pub(crate) n_drafted: usize,
    /// Tokens of prompts.
    pub(crate) n_prefill: usize,
}

impl Load {
    pub(crate) fn n_rows(self) -> usize {
        self.n_decoding + self.n_drafted + self.n_prefill
    }
}

/// The number of ends over which their mean is taken.
const N_ENDS: u32 = 16;

/// Share of the first tokens that should come no later than forecast.
const IN_TIME: f64 = 0.95;
/// How much one first token changes the allowance for late ones.
const LATE_STEP: f64 = 0.2;
/// Largest allowance.
const MAX_LATE: f64 = 4.0;

/// The speed of the device, learned from the times of steps and sequences.
#[derive(Debug)]
pub(super) struct Pace {
    /// Seconds of a step without tokens of prompts.
    decode: Option<f64>,
    /// Seconds that the tokens of prompts add to a step, and their number.
    prompts: Option<[f64; 2]>,
    /// Seconds from the admission of a sequence to its end.
    service: f64,
    /// Ends that `service` is of, up to [`N_ENDS`].
    n_ends: u32,
    /// The allowance for late first tokens: [`IN_TIME`] of them take at most so many times the forecast.
    late: f64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            decode: None,
            prompts: None,
            service: 0.0,
            n_ends: 0,
            late: 1.0,
        }
    }
}

impl Pace {
    /// Learns from a step. `time` begins when the device was free for it.
    pub(super) fn record(&mut self, load: Load, time: Duration) {
        let time = time.as_secs_f64();
        if load.n_prefill == 0 {
            self.decode = Some(mean(self.decode, time));
            return;
        }
        let of_decoding = match load.n_decoding {
            0 => 0.0,
            // It may have become faster since, and prompts take some time.
            _ => self.decode.unwrap_or(0.0).min(0.9 * time),
        };
        let [before_time, before_n] = self.prompts.map_or([None; 2], |both| both.map(Some));
        self.prompts = Some([
            mean(before_time, time - of_decoding),
            mean(before_n, load.n_prefill as f64),
        ]);
    }

    /// Learns from a sequence that ended `time` after its admission.
    pub(super) fn record_end(&mut self, time: Duration) {
        self.n_ends = (self.n_ends + 1).min(N_ENDS);
        self.service += (time.as_secs_f64() - self.service) / f64::from(self.n_ends);
    }

    /// Returns the allowance for late first tokens, as a factor on forecasts.
    pub(super) fn late(&self) -> f64 {
        self.late
    }

    /// Learns from a first token: how long it took, and the forecast. The allowance grows by each late one, and shrinks by
    /// each other one so much less that it rests where the share of late ones is right.
    pub(super) fn record_first_token(&mut self, took: Duration, forecast: Duration) {
        let is_late = took > forecast.mul_f64(self.late);
        let change = match is_late {
            true => IN_TIME,
            false => IN_TIME - 1.0,
        };
        self.late = (self.late * (1.0 + LATE_STEP * change)).clamp(1.0, MAX_LATE);
    }

    /// Returns the seconds in which `n` of `n_running` sequences end.
    pub(super) fn time_to_end(&self, n: usize, n_running: usize) -> f64 {
        self.service * n as f64 / n_running.max(1) as f64
    }

    /// Returns the seconds for `n` tokens of prompts, of which a step takes `per_step` beside sequences that generate;
    /// `None` if nothing is known yet.
    pub(super) fn prompt_time(&self, n: usize, per_step: usize, n_running: usize) -> Option<f64> {
        let [time, n_known] = self.prompts?;
        let n_steps = match n_running {
            0 => 0,
            _ => n.div_ceil(per_step.max(1)),
        };
        Some(n as f64 * time / n_known + n_steps as f64 * self.decode.unwrap_or(0.0))
    }

    /// Returns how many tokens of prompts fit into a step of `target` beside sequences that generate; `None` if nothing is
    /// known yet.
    pub(super) fn budget(&self, target: Duration) -> Option<usize> {
        let [time, n] = self.prompts?;
        let left = target.as_secs_f64() - self.decode.unwrap_or(0.0);
        // A cast of what is below 0 or not a number gives 0.
        Some((left / time * n) as usize)
    }
}

fn mean(before: Option<f64>, new: f64) -> f64 {
    before.map_or(new, |before| before + NEW * (new - before))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(50);

    fn load(n_decoding: usize, n_prefill: usize) -> Load {
        Load {
            n_decoding,
            n_drafted: 0,
            n_prefill,
        }
    }

    /// A device that takes 10 ms, and 1 ms more for each token of a prompt.
    #[test]
    fn learns_the_speed_of_a_device() {
        let mut pace = Pace::default();
        assert_eq!(pace.budget(TARGET), None);
        pace.record(load(4, 0), Duration::from_millis(10));
        assert_eq!(pace.budget(TARGET), None);
        for n in [100, 7, 64, 1, 30] {
            pace.record(load(4, n), Duration::from_millis(10 + n as u64));
        }
        let budget = pace.budget(TARGET).unwrap();
        assert!((39..=40).contains(&budget), "{budget}");
        // It becomes twice as fast.
        for _ in 0..40 {
            pace.record(load(4, 40), Duration::from_millis(25));
            pace.record(load(4, 0), Duration::from_millis(5));
        }
        let budget = pace.budget(TARGET).unwrap();
        assert!((89..=91).contains(&budget), "{budget}");
    }

    /// Times of half to one and a half times the forecast: 95 of 100 are below 1.45.
    #[test]
    fn learns_how_late_first_tokens_are() {
        let mut pace = Pace::default();
        let forecast = Duration::from_secs(1);
        let mut mean = 0.0;
        for i in 0..4000_u32 {
            let part = f64::from(i.wrapping_mul(2_654_435_761)) / f64::from(u32::MAX);
            pace.record_first_token(forecast.mul_f64(0.5 + part), forecast);
            if i >= 2000 {
                mean += pace.late() / 2000.0;
            }
        }
        assert!((1.35..1.55).contains(&mean), "{mean}");
        for _ in 0..1000 {
            pace.record_first_token(forecast / 2, forecast);
        }
        assert_eq!(pace.late(), 1.0);
    }

    #[test]
    fn odd_times_give_no_odd_budgets() {
        let mut pace = Pace::default();
        pace.record(load(0, 10), Duration::ZERO);
        assert_eq!(pace.budget(TARGET), Some(usize::MAX));
        pace.record(load(1, 0), Duration::from_secs(100));
        pace.record(load(1, 1), Duration::from_millis(1));
        assert_eq!(pace.budget(TARGET), Some(0));
        assert_eq!(pace.budget(Duration::ZERO), Some(0));
    }
}
