//! Derives advice on what to speed up next from the measurements of a profile.
//!
//! The gain of an advice is the time saved if its subject ran at its bound: the roofline of the same run, the cost of
//! starting an operation, or zero. Each gain is computed again from every single run ([`View`]). An advice is given only
//! if the smallest of these gains is worth it, so that one disturbed run is no reason for advice.

use crate::ops::Cost;
use crate::schema::{
    Advice, Bound, Ceilings, OpRow, Phase, Profile, Recommendation, is_above_peak,
};

/// Smallest gain worth an advice, as a share of its phase, and as a share of the whole run.
const LEAST_GAIN: f64 = 0.05;
const LEAST_OF_RUN: f64 = 0.02;
/// Most advice, and most rows named per phase.
const MAX_ADVICE: usize = 5;
const N_ROWS: usize = 3;
/// Share of the roofline above which a phase counts as at its limit.
const AT_LIMIT: f64 = 0.7;

/// Facts the advisor needs beyond the profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Set if fewer threads were used than the process may use cores.
    pub more_threads: Option<MoreThreads>,
    /// A smaller KV-cache type that the device supports.
    pub smaller_kv: Option<SmallerKv>,
}

/// All available cores and the ceilings measured with them.
#[derive(Debug, Clone, PartialEq)]
pub struct MoreThreads {
    pub n_cores: usize,
    pub ceilings: Ceilings,
}

/// A smaller KV-cache type.
#[derive(Debug, Clone, PartialEq)]
pub struct SmallerKv {
    pub name: String,
    /// Its size relative to the type in use.
    pub bytes_share: f64,
}

/// The phases of a single run, with one measurement of the peaks.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    pub phases: Vec<Phase>,
    pub ceilings: Option<Ceilings>,
}

/// Returns the advice that holds in each of `views`, largest saving of the whole run first.
pub fn advise(profile: &Profile, views: &[View], facts: &Facts) -> Vec<Advice> {
    let run_ms: f64 = profile.phases.iter().map(|of| of.unprofiled.mean).sum();
    let of_views: Vec<Vec<(f64, Advice)>> = views
        .iter()
        .map(|view| candidates(profile, view, facts))
        .collect();
    let whole = View {
        phases: profile.phases.clone(),
        ceilings: profile.ceilings,
    };
    let mut all = candidates(profile, &whole, facts);
    all.retain_mut(|(saved, advice)| {
        if of_views.len() > 1 {
            let gains = of_views.iter().map(|of| gain_of(of, advice));
            let gains = gains.chain([advice.gain]);
            let [low, high] = gains.fold([f64::INFINITY, 0.0], |[low, high]: [f64; 2], gain| {
                [low.min(gain), high.max(gain)]
            });
            advice.gain_range = Some([low, high]);
        }
        let least = advice.gain_range.map_or(advice.gain, |[low, _]| low);
        least >= LEAST_GAIN && *saved >= LEAST_OF_RUN * run_ms
    });
    if let Some((saved, advice)) = loading(profile) {
        all.push((saved, advice));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut n_rows = [0; 2];
    all.retain(|(_, advice)| {
        if !advice.title.starts_with(SPEED_UP) {
            return true;
        }
        let n = &mut n_rows[usize::from(advice.phase == "decode")];
        *n += 1;
        *n <= N_ROWS
    });
    all.truncate(MAX_ADVICE);
    all.into_iter().map(|(_, advice)| advice).collect()
}

/// Returns the gain that a view gives for the same advice; 0 if it gives none.
fn gain_of(of_view: &[(f64, Advice)], advice: &Advice) -> f64 {
    let same =
        |other: &&(f64, Advice)| (&other.1.title, &other.1.phase) == (&advice.title, &advice.phase);
    of_view.iter().find(same).map_or(0.0, |(_, same)| same.gain)
}

/// Returns everything that could be said about a view, with the milliseconds saved.
fn candidates(profile: &Profile, view: &View, facts: &Facts) -> Vec<(f64, Advice)> {
    let mut all: Vec<(f64, Advice)> = Vec::new();
    for phase in &view.phases {
        let mut add = |advice: Option<Advice>| {
            all.extend(advice.map(|advice| (advice.gain * phase.unprofiled.mean, advice)));
        };
        if let Some(ceilings) = &view.ceilings {
            slow_paths(profile, phase, ceilings).for_each(|advice| add(Some(advice)));
            far_from_bound(profile, phase, ceilings).for_each(|advice| add(Some(advice)));
            add(at_the_limit(phase, ceilings));
            add(more_threads(phase, ceilings, facts));
        }
        add(small_operations(phase, view.ceilings.as_ref()));
        add(smaller_kv(phase, facts));
        add(between_operations(phase));
        add(launches(profile, phase));
    }
    all
}

fn cost(row: &OpRow) -> Cost {
    Cost {
        bytes: row.bytes,
        f32_ops: row.f32_ops,
        i8_ops: row.i8_ops,
    }
}

/// Milliseconds a row would save if it ran at its bound.
fn saving_ms(row: &OpRow, ceilings: &Ceilings) -> Option<f64> {
    let least_ms = cost(row).least_seconds(ceilings)? * 1e3;
    let start_ms = ceilings.start_us.unwrap_or(0.0) * row.calls as f64 / 1e3;
    Some((row.total_ms - least_ms.max(start_ms)).max(0.0))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// Describes how close a row is to the ceilings.
fn speed(row: &OpRow) -> String {
    let bandwidth = row
        .bandwidth_share
        .map(|share| format!("{} of the read bandwidth", percent(share)));
    let arithmetic = row
        .ops_share
        .map(|share| format!("{} of the peak arithmetic rate", percent(share)));
    let parts: Vec<String> = [bandwidth, arithmetic].into_iter().flatten().collect();
    parts.join(" and ")
}

/// Returns the reason why a row's operation has no fast kernel.
fn slow_path<'a>(profile: &'a Profile, row: &OpRow) -> Option<&'a str> {
    let is_named = |reason: &str| match reason.strip_prefix("attention") {
        Some(_) => row.kind == "attention",
        None => row.name.split([' ', '+']).any(|word| word == reason),
    };
    let mut slow = profile.slow_ops.iter();
    slow.find(|op| is_named(&op.reason))
        .map(|op| op.reason.as_str())
}

fn slow_paths(
    profile: &Profile,
    phase: &Phase,
    ceilings: &Ceilings,
) -> impl Iterator<Item = Advice> {
    profile.slow_ops.iter().map(|slow| {
        let is_of = |row: &&OpRow| slow_path(profile, row) == Some(slow.reason.as_str());
        let rows = || phase.ops.iter().filter(is_of);
        let saved: f64 = rows().filter_map(|row| saving_ms(row, ceilings)).sum();
        let share: f64 = rows().map(|row| row.share).sum();
        Advice {
            title: format!(
                "Add a fast kernel for {}, or use a format that has one",
                slow.reason
            ),
            reason: format!(
                "{} operations per step take the slow path, {} of the operation time of {}",
                slow.count,
                percent(share),
                phase.name
            ),
            gain: saved / phase.profiled.mean,
            gain_range: None,
            phase: phase.name.clone(),
        }
    })
}

/// Begins the titles of [`far_from_bound`].
const SPEED_UP: &str = "Speed up ";

/// Advice on rows, those with the most to gain first, except small operations and slow paths.
fn far_from_bound(
    profile: &Profile,
    phase: &Phase,
    ceilings: &Ceilings,
) -> impl Iterator<Item = Advice> {
    let mut rows: Vec<(f64, &OpRow, &str)> = Vec::new();
    for row in &phase.ops {
        let waits_for = match row.bound {
            Some(Bound::Memory) => "memory",
            Some(Bound::Compute) => "arithmetic",
            Some(Bound::Launch) | None => continue,
        };
        if slow_path(profile, row).is_some() {
            continue;
        }
        if let Some(saved) = saving_ms(row, ceilings) {
            rows.push((saved, row, waits_for));
        }
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.into_iter().map(|(saved, row, waits_for)| Advice {
        title: format!("{SPEED_UP}{} in {}", row.name, phase.name),
        reason: format!(
            "it takes {} of the operation time, runs at {}, and should be limited by {waits_for} alone; inspect its \
             kernel with a profiler of the device",
            percent(row.share),
            speed(row)
        ),
        gain: saved / phase.profiled.mean,
        gain_range: None,
        phase: phase.name.clone(),
    })
}

/// Advice on operations whose cost is mostly that of starting them.
fn small_operations(phase: &Phase, ceilings: Option<&Ceilings>) -> Option<Advice> {
    let ceilings = ceilings?;
    let small = || {
        phase
            .ops
            .iter()
            .filter(|row| row.bound == Some(Bound::Launch))
    };
    let calls: u64 = small().map(|row| row.calls).sum();
    let total: f64 = small().map(|row| row.total_ms).sum();
    let least: f64 = small()
        .filter_map(|row| cost(row).least_seconds(ceilings))
        .sum();
    let names: Vec<&str> = small().take(N_ROWS).map(|row| row.kind.as_str()).collect();
    Some(Advice {
        title: format!(
            "Fuse small operations of {} into their neighbours",
            phase.name
        ),
        reason: format!(
            "{calls} calls ({}) take {total:.3} ms but have only {:.3} ms of work; starting one costs {:.1} us",
            names.join(", "),
            least * 1e3,
            ceilings.start_us.unwrap_or(0.0)
        ),
        gain: (total - least * 1e3).max(0.0) / phase.profiled.mean,
        gain_range: None,
        phase: phase.name.clone(),
    })
}

/// Advice for a memory-bound phase that already reads near the peak bandwidth.
fn at_the_limit(phase: &Phase, ceilings: &Ceilings) -> Option<Advice> {
    let least_ms = phase.least_ms?;
    let at_limit = least_ms / phase.ops_ms;
    let of_memory = || {
        phase
            .ops
            .iter()
            .filter(|row| row.bound == Some(Bound::Memory))
    };
    let reads_ms: f64 = of_memory()
        .map(|row| row.bytes as f64 / ceilings.read_bytes_per_s * 1e3)
        .sum();
    // Two sequences share these reads.
    let gain = reads_ms / phase.profiled.mean / 2.0;
    // Above the peak the data comes from a cache, and memory is no limit.
    (at_limit >= AT_LIMIT && !is_above_peak(at_limit) && reads_ms >= least_ms / 2.0).then(|| Advice {
        title: format!("Read fewer bytes per token of {}: use a smaller quantization, or batch more sequences", phase.name),
        reason: format!(
            "its operations run at {} of the roofline, {:.0} MB per token at {:.1} GB/s; no kernel can do much better. \
             The gain is that of two sequences per step, which share the weight reads",
            percent(at_limit),
            of_memory().map(|row| row.bytes).sum::<u64>() as f64 / 1e6 / phase.n_tokens.max(1) as f64,
            ceilings.read_bytes_per_s / 1e9
        ),
        gain,
        gain_range: None,
        phase: phase.name.clone(),
    })
}

/// Advice to use all cores: scales each row by the ratio of the ceilings.
fn more_threads(phase: &Phase, ceilings: &Ceilings, facts: &Facts) -> Option<Advice> {
    let more = facts.more_threads.as_ref()?;
    let mut saved = 0.0;
    for row in &phase.ops {
        let least = cost(row).least_seconds(ceilings)?;
        let least_with_all = cost(row).least_seconds(&more.ceilings)?;
        if row.bound != Some(Bound::Launch) && least > 0.0 {
            saved += row.total_ms * (1.0 - least_with_all / least).max(0.0);
        }
    }
    Some(Advice {
        title: format!(
            "Use all {} cores (--threads {})",
            more.n_cores, more.n_cores
        ),
        reason: format!(
            "fewer threads were used; all cores read {:.1} GB/s instead of {:.1}",
            more.ceilings.read_bytes_per_s / 1e9,
            ceilings.read_bytes_per_s / 1e9
        ),
        gain: saved / phase.profiled.mean,
        gain_range: None,
        phase: phase.name.clone(),
    })
}

/// Advice to use a smaller KV-cache type where attention is memory-bound.
fn smaller_kv(phase: &Phase, facts: &Facts) -> Option<Advice> {
    let smaller = facts.smaller_kv.as_ref()?;
    let is_of_kv = |row: &&OpRow| row.kind == "attention" && row.bound == Some(Bound::Memory);
    let rows = || phase.ops.iter().filter(is_of_kv);
    let total: f64 = rows().map(|row| row.total_ms).sum();
    let share: f64 = rows().map(|row| row.share).sum();
    Some(Advice {
        title: format!("Store the KV cache as {} (--kv-type)", smaller.name),
        reason: format!(
            "attention takes {} of the operation time of {} and is limited by reading the KV cache, which would shrink to {} of its size",
            percent(share),
            phase.name,
            percent(smaller.bytes_share)
        ),
        gain: total * (1.0 - smaller.bytes_share) / phase.profiled.mean,
        gain_range: None,
        phase: phase.name.clone(),
    })
}

fn between_operations(phase: &Phase) -> Option<Advice> {
    let gain = phase.between_ops_ms / phase.profiled.mean;
    Some(Advice {
        title: format!("Shorten the gaps between the operations of {}", phase.name),
        reason: format!(
            "{:.3} of {:.3} ms are spent outside operations: scheduling, hand-over of steps, text",
            phase.between_ops_ms, phase.profiled.mean
        ),
        gain,
        gain_range: None,
        phase: phase.name.clone(),
    })
}

fn launches(profile: &Profile, phase: &Phase) -> Option<Advice> {
    let launches = profile.launches.as_ref()?;
    let title = match launches.recommendation {
        Recommendation::NoAction => return None,
        Recommendation::DeferSynchronization => "Defer the host's wait for the device",
        Recommendation::BatchOperations => "Launch fewer and larger kernels",
        Recommendation::UseHipGraph => "Run tokens as graphs (without --no-graphs)",
    };
    let token_us = phase.unprofiled.mean * 1e3 / phase.n_tokens.max(1) as f64;
    (phase.name == "decode").then(|| Advice {
        title: title.to_string(),
        reason: launches.reason.clone(),
        gain: (launches.overhead_us / token_us).min(1.0),
        gain_range: None,
        phase: phase.name.clone(),
    })
}

/// Advice if loading takes longer than the rest of the time to the first token; with the milliseconds saved.
fn loading(profile: &Profile) -> Option<(f64, Advice)> {
    let ttft = &profile.ttft;
    let load = ttft.model_load.filter(|load| *load > ttft.total)?;
    let gain = load / (load + ttft.total);
    Some((
        load,
        Advice {
            title: "Load the model once for many prompts".to_string(),
            reason: format!(
                "loading takes {load:.0} ms before a first token that takes {:.0} ms; a long-running process, such \
                 as chat, loads once",
                ttft.total
            ),
            gain,
            gain_range: None,
            phase: "start".to_string(),
        },
    ))
}

#[cfg(test)]
mod tests;
