//! What to do next for more speed, from the measurements of a profile alone.
//!
//! The gain of an advice is the time that would be saved if what it is about ran at its bound: the roofline of the same
//! run, what starting an operation costs, or nothing at all. Advice with little to gain is not given.

use crate::ops::Cost;
use crate::schema::{Advice, Bound, Ceilings, OpRow, Phase, Profile, Recommendation};

/// Shares of a phase below which nothing is said.
const LEAST_GAIN: f64 = 0.02;
/// Rows of a phase that are named.
const N_ROWS: usize = 3;
/// Share of the roofline from which a phase counts as at its limit.
const AT_LIMIT: f64 = 0.7;

/// What the advisor must know beside the profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Cores that the process may use, and what the machine does with all of them, where fewer threads computed.
    pub more_threads: Option<MoreThreads>,
    /// A smaller type of the KV cache that the device can use.
    pub smaller_kv: Option<SmallerKv>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MoreThreads {
    pub n_cores: usize,
    pub ceilings: Ceilings,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SmallerKv {
    pub name: String,
    /// Its bytes over those of the type in use.
    pub bytes_share: f64,
}

/// All advice, that which saves most of a run first.
pub fn advise(profile: &Profile, facts: &Facts) -> Vec<Advice> {
    let mut all: Vec<(f64, Advice)> = Vec::new();
    for phase in &profile.phases {
        let mut add = |advice: Option<Advice>| {
            if let Some(advice) = advice.filter(|advice| advice.gain >= LEAST_GAIN) {
                all.push((advice.gain * phase.unprofiled.mean, advice));
            }
        };
        if let Some(ceilings) = &profile.ceilings {
            slow_paths(profile, phase, ceilings).for_each(|advice| add(Some(advice)));
            far_from_bound(profile, phase, ceilings).for_each(|advice| add(Some(advice)));
            add(at_the_limit(phase, ceilings));
            add(more_threads(phase, ceilings, facts));
        }
        add(small_operations(phase, profile.ceilings.as_ref()));
        add(smaller_kv(phase, facts));
        add(between_operations(phase));
        add(launches(profile, phase));
    }
    if let Some((saved, advice)) = loading(profile) {
        all.push((saved, advice));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().map(|(_, advice)| advice).collect()
}

fn cost(row: &OpRow) -> Cost {
    Cost {
        bytes: row.bytes,
        f32_ops: row.f32_ops,
        i8_ops: row.i8_ops,
    }
}

/// Milliseconds that a row could save.
fn saving_ms(row: &OpRow, ceilings: &Ceilings) -> Option<f64> {
    let least_ms = cost(row).least_seconds(ceilings)? * 1e3;
    let start_ms = ceilings.start_us.unwrap_or(0.0) * row.calls as f64 / 1e3;
    Some((row.total_ms - least_ms.max(start_ms)).max(0.0))
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// How near to its ceilings a row runs.
fn speed(row: &OpRow) -> String {
    let bandwidth = row
        .bandwidth_share
        .map(|share| format!("{} of the read bandwidth", percent(share)));
    let arithmetic = row
        .ops_share
        .map(|share| format!("{} of the peak of its arithmetic", percent(share)));
    let parts: Vec<String> = [bandwidth, arithmetic].into_iter().flatten().collect();
    parts.join(" and ")
}

/// Whether a row's operation has no fast kernel.
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
                "Give {} a fast kernel, or take a format that has one",
                slow.reason
            ),
            reason: format!(
                "{} operations of a step take the slow path, {} of the time of {}'s operations",
                slow.count,
                percent(share),
                phase.name
            ),
            gain: saved / phase.profiled.mean,
            phase: phase.name.clone(),
        }
    })
}

/// The rows with the most to gain, small operations and slow paths left out.
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
    rows.into_iter().take(N_ROWS).map(|(saved, row, waits_for)| Advice {
        title: format!("Speed up {} in {}", row.name, phase.name),
        reason: format!(
            "it takes {} of the time of the operations, runs at {}, and should wait for {waits_for} only; see its \
             kernel with a profiler of the device",
            percent(row.share),
            speed(row)
        ),
        gain: saved / phase.profiled.mean,
        phase: phase.name.clone(),
    })
}

/// Operations that cost what starting them costs.
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
            "Run small operations of {} within their neighbours",
            phase.name
        ),
        reason: format!(
            "{calls} calls ({}) take {total:.3} ms and have work for {:.3} ms; starting one costs {:.1} us",
            names.join(", "),
            least * 1e3,
            ceilings.start_us.unwrap_or(0.0)
        ),
        gain: (total - least * 1e3).max(0.0) / phase.profiled.mean,
        phase: phase.name.clone(),
    })
}

/// A phase that waits for memory and reads it about as fast as it can be read.
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
    // What two sequences would read once.
    let gain = reads_ms / phase.profiled.mean / 2.0;
    (at_limit >= AT_LIMIT && reads_ms >= least_ms / 2.0).then(|| Advice {
        title: format!("Read fewer bytes for a token of {}: a smaller quantization, or more sequences together", phase.name),
        reason: format!(
            "its operations run at {} of the roofline, {:.0} MB a token at {:.1} GB/s; no kernel can do much more. Two \
             sequences in a step share the reads of the weights, which is the gain given",
            percent(at_limit),
            of_memory().map(|row| row.bytes).sum::<u64>() as f64 / 1e6 / phase.n_tokens.max(1) as f64,
            ceilings.read_bytes_per_s / 1e9
        ),
        gain,
        phase: phase.name.clone(),
    })
}

/// Each row as much faster as the ceilings of all cores are higher.
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
            "fewer threads computed; all cores read {:.1} GB/s instead of {:.1}",
            more.ceilings.read_bytes_per_s / 1e9,
            ceilings.read_bytes_per_s / 1e9
        ),
        gain: saved / phase.profiled.mean,
        phase: phase.name.clone(),
    })
}

/// Attention that waits for the cache.
fn smaller_kv(phase: &Phase, facts: &Facts) -> Option<Advice> {
    let smaller = facts.smaller_kv.as_ref()?;
    let is_of_kv = |row: &&OpRow| row.kind == "attention" && row.bound == Some(Bound::Memory);
    let rows = || phase.ops.iter().filter(is_of_kv);
    let total: f64 = rows().map(|row| row.total_ms).sum();
    let share: f64 = rows().map(|row| row.share).sum();
    Some(Advice {
        title: format!("Keep the KV cache as {} (--kv-type)", smaller.name),
        reason: format!(
            "attention takes {} of the time of {}'s operations and waits for the cache, which would have {} of its bytes",
            percent(share),
            phase.name,
            percent(smaller.bytes_share)
        ),
        gain: total * (1.0 - smaller.bytes_share) / phase.profiled.mean,
        phase: phase.name.clone(),
    })
}

fn between_operations(phase: &Phase) -> Option<Advice> {
    let gain = phase.between_ops_ms / phase.profiled.mean;
    Some(Advice {
        title: format!(
            "Shorten what happens between the operations of {}",
            phase.name
        ),
        reason: format!(
            "{:.3} of {:.3} ms belong to no operation: scheduling, handing steps over, text",
            phase.between_ops_ms, phase.profiled.mean
        ),
        gain,
        phase: phase.name.clone(),
    })
}

fn launches(profile: &Profile, phase: &Phase) -> Option<Advice> {
    let launches = profile.launches.as_ref()?;
    let title = match launches.recommendation {
        Recommendation::NoAction => return None,
        Recommendation::DeferSynchronization => "Let the host wait for the device later",
        Recommendation::BatchOperations => "Launch fewer and larger kernels",
        Recommendation::UseHipGraph => "Run tokens as graphs (without --no-graphs)",
    };
    let token_us = phase.unprofiled.mean * 1e3 / phase.n_tokens.max(1) as f64;
    (phase.name == "decode").then(|| Advice {
        title: title.to_string(),
        reason: launches.reason.clone(),
        gain: (launches.overhead_us / token_us).min(1.0),
        phase: phase.name.clone(),
    })
}

/// Loading, where it takes longer than anything else before the first token; milliseconds and advice.
fn loading(profile: &Profile) -> Option<(f64, Advice)> {
    let ttft = &profile.ttft;
    let load = ttft.model_load.filter(|load| *load > ttft.total)?;
    let gain = load / (load + ttft.total);
    Some((
        load,
        Advice {
            title: "Load the model once for many prompts".to_string(),
            reason: format!(
                "loading takes {load:.0} ms before a first token that takes {:.0} ms; a process that stays, such as \
                 chat, loads once",
                ttft.total
            ),
            gain,
            phase: "ttft".to_string(),
        },
    ))
}

#[cfg(test)]
mod tests;
