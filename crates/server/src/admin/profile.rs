//! A profile of live traffic: what each step of an engine computed, how long that took, and how close it came to the
//! roofline. Nothing changes in how steps run; times of single operations would need another way to run them, so
//! `rocmforge profile` has those.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rocmforge_engine::ComputedStep;
use rocmforge_profile::stats::Summary;
use serde::Serialize;
use tokio::time::timeout_at;

use crate::http::error::ApiError;
use crate::observe::steps::Phase;
use crate::serving::costs::Costs;
use crate::serving::model::Served;

/// Steps of a profile, at most.
pub(super) const MAX_STEPS: usize = 10_000;
/// Time of a profile, at most.
pub(super) const MAX_TIME: Duration = Duration::from_secs(60);

/// A profile of live traffic.
#[derive(Debug, Serialize)]
pub(super) struct Profile {
    pub(super) model: String,
    pub(super) device: String,
    pub(super) seconds: f64,
    /// Steps that the profile was too slow for; they are in no sum.
    pub(super) missed_steps: u64,
    pub(super) total: Sums,
    /// The sums of each kind of step that there was: `decode`, `prefill`, `mixed`.
    pub(super) kinds: BTreeMap<&'static str, Sums>,
    /// The sums of steps of similar shape, the most time first.
    pub(super) shapes: Vec<Shape>,
    pub(super) steps: Vec<Step>,
}

/// Steps together.
#[derive(Debug, Serialize)]
pub(super) struct Sums {
    pub(super) steps: usize,
    pub(super) steps_per_s: f64,
    /// Time of the device, and its share of the profile's.
    pub(super) device_seconds: f64,
    pub(super) device_share: f64,
    pub(super) generated_tokens: usize,
    pub(super) prompt_tokens: usize,
    /// Tokens of both kinds by the profile's time.
    pub(super) tokens_per_s: f64,
    /// Time of a step; absent without steps.
    pub(super) step_ms: Option<Summary>,
    /// Least time by the peaks of the device, as a share of its time; absent if the peaks are unknown.
    pub(super) roofline_share: Option<f64>,
}

/// Steps of similar shape: up to these numbers, and more than half of them.
#[derive(Debug, Serialize)]
pub(super) struct Shape {
    pub(super) decode_rows: usize,
    pub(super) prompt_tokens: usize,
    #[serde(flatten)]
    pub(super) sums: Sums,
}

/// A step.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    /// When its result came, since the profile began.
    pub(super) at_ms: f64,
    /// Sequences that generated.
    pub(super) decode_rows: usize,
    pub(super) prompt_tokens: usize,
    /// From when the device was free for it to its result.
    pub(super) ms: f64,
    pub(super) least_ms: Option<f64>,
    #[serde(skip)]
    phase: Phase,
}

/// When a profile ends: whichever comes first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until {
    pub(super) n_steps: usize,
    pub(super) time: Duration,
}

/// Follows the steps of a model.
///
/// # Errors
/// Too many profiles run.
pub(super) async fn follow(model: &Served, until: Until) -> Result<Profile, ApiError> {
    let mut followed = model.steps.follow().ok_or_else(|| {
        let message = "too many profiles run at the same time; wait for one of them";
        ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, message).retry_after(1)
    })?;
    let began = Instant::now();
    let end = (began + until.time).into();
    let mut steps = Vec::new();
    while steps.len() < until.n_steps {
        match timeout_at(end, followed.steps.recv()).await {
            Ok(Some(step)) => steps.push(Step::new(&step, began, &model.costs)),
            // The time is over, or the engine has ended.
            Ok(None) | Err(_) => break,
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let of_phase = |phase: Phase| steps.iter().filter(move |step| step.phase == phase);
    let kinds = Phase::ALL.map(|phase| (phase.name(), Sums::of(of_phase(phase), seconds)));
    let mut by_shape: BTreeMap<_, Vec<&Step>> = BTreeMap::new();
    for step in &steps {
        by_shape.entry(step.class()).or_default().push(step);
    }
    let shape = |((decode_rows, prompt_tokens), steps): (_, Vec<&Step>)| Shape {
        decode_rows,
        prompt_tokens,
        sums: Sums::of(steps.into_iter(), seconds),
    };
    let mut shapes: Vec<Shape> = by_shape.into_iter().map(shape).collect();
    shapes.sort_by(|a, b| b.sums.device_seconds.total_cmp(&a.sums.device_seconds));
    Ok(Profile {
        model: model.name.clone(),
        device: model.engine.backend_info().device.clone(),
        seconds,
        missed_steps: followed.n_missed.load(Relaxed),
        total: Sums::of(steps.iter(), seconds),
        kinds: kinds
            .into_iter()
            .filter(|(_, sums)| sums.steps > 0)
            .collect(),
        shapes,
        steps,
    })
}

impl Step {
    fn new(step: &ComputedStep, began: Instant, costs: &Costs) -> Step {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Step {
            at_ms: ms(step.at.saturating_duration_since(began)),
            decode_rows: step.n_decoding,
            prompt_tokens: step.n_prefill,
            ms: ms(step.time),
            least_ms: costs.least_seconds(&step.shape).map(|least| least * 1e3),
            phase: Phase::of(step),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns its numbers of rows, rounded up to powers of two.
    fn class(&self) -> (usize, usize) {
        let rounded = |n: usize| if n == 0 { 0 } else { n.next_power_of_two() };
        (rounded(self.decode_rows), rounded(self.prompt_tokens))
    }
}

impl Sums {
    fn of<'s>(steps: impl Iterator<Item = &'s Step>, seconds: f64) -> Sums {
        let steps: Vec<&Step> = steps.collect();
        let times: Vec<f64> = steps.iter().map(|step| step.ms).collect();
        let device_ms: f64 = times.iter().sum();
        let least_ms: Option<f64> = steps.iter().map(|step| step.least_ms).sum();
        let share = |of: f64, all: f64| if all > 0.0 { of / all } else { 0.0 };
        let generated_tokens: usize = steps.iter().map(|step| step.decode_rows).sum();
        let prompt_tokens: usize = steps.iter().map(|step| step.prompt_tokens).sum();
        Sums {
            steps: steps.len(),
            steps_per_s: share(steps.len() as f64, seconds),
            device_seconds: device_ms / 1e3,
            device_share: share(device_ms / 1e3, seconds),
            generated_tokens,
            prompt_tokens,
            tokens_per_s: share((generated_tokens + prompt_tokens) as f64, seconds),
            step_ms: Summary::of(&times),
            roofline_share: least_ms
                .filter(|_| device_ms > 0.0)
                .map(|least| least / device_ms),
        }
    }
}
