//! Page sections on the machine: launches, memory, backends and operation types, device utilization.

use rocmforge_profile::schema::{Memory, Profile, Recommendation, Utilization, Verdict};

use crate::html::{Align, Cell, Column, Escaped, Table, not_available};
use crate::numbers::{NOT_AVAILABLE, bytes, count, digits, percent, time_ms};

/// Returns a definition list of names and markup.
fn facts(facts: &[(&str, String)]) -> String {
    let items: String = facts
        .iter()
        .map(|(name, fact)| format!("<div><dt>{name}</dt><dd>{fact}</dd></div>\n"))
        .collect();
    format!("<dl class=\"facts\">\n{items}</dl>\n")
}

pub(super) fn launches(profile: &Profile) -> String {
    let Some(launches) = &profile.launches else {
        return match profile.machine.backend.as_str() {
            "cpu" => not_available("a CPU launches no kernels"),
            _ => not_available("launches were not recorded in this run"),
        };
    };
    let us = |us: f64| time_ms(us / 1e3);
    facts(&[
        ("Per token", digits(launches.per_token)),
        (
            "Graphs",
            if launches.graphs { "used" } else { "not used" }.to_owned(),
        ),
        ("Host time per launch, p50", us(launches.submit_us.p50)),
        ("Host time per launch, p95", us(launches.submit_us.p95)),
        ("Step time beyond kernels", us(launches.overhead_us)),
    ]) + &format!(
        "<p><strong>{}</strong>: <span class=\"bidi\">{}</span></p>\n",
        name_of(launches.recommendation),
        Escaped(&launches.reason)
    ) + &verdicts(&launches.verdicts)
}

fn name_of(recommendation: Recommendation) -> &'static str {
    match recommendation {
        Recommendation::NoAction => "No action",
        Recommendation::DeferSynchronization => "Defer synchronization",
        Recommendation::BatchOperations => "Batch operations",
        Recommendation::UseHipGraph => "Use graphs",
    }
}

fn verdicts(verdicts: &[Verdict]) -> String {
    if verdicts.is_empty() {
        return String::new();
    }
    let start = |label| column(label, Align::Start);
    let columns = [start("Recommendation"), start("Applies"), start("Reason")];
    let mut table = Table::new("Recommendations", &columns);
    for verdict in verdicts {
        table.row(&[
            Cell::text(name_of(verdict.recommendation)),
            Cell::text(if verdict.applies { "yes" } else { "no" }),
            Cell::text(&verdict.reason),
        ]);
    }
    table.finish()
}

pub(super) fn memory(memory: &Memory) -> String {
    let parts = [
        ("Weights", Some(memory.weights)),
        ("KV pool", Some(memory.kv_pool)),
        ("Scratch", memory.scratch),
    ];
    let total: f64 = parts
        .iter()
        .filter_map(|(_, size)| *size)
        .map(|size| size as f64)
        .sum();
    let mut bar = String::new();
    let mut legend = String::new();
    for (i, (name, size)) in parts.iter().enumerate() {
        match size {
            Some(size) => {
                let share = *size as f64 / total.max(1.0);
                let text = format!("{name}: {}, {}", bytes(*size), percent(share));
                bar += &format!(
                    "<span class=\"k{i}\" style=\"width:{:.3}%\" title=\"{text}\"></span>",
                    share * 100.0
                );
                legend += &format!("<li class=\"k{i}\">{text}</li>");
            }
            None => {
                legend += &format!(
                    "<li class=\"kn\">{name}: {NOT_AVAILABLE}, not reported by this backend</li>"
                )
            }
        }
    }
    let peak = match memory.peak {
        Some(peak) => bytes(peak),
        None => format!("{NOT_AVAILABLE}: not reported by the system"),
    };
    facts(&[
        ("KV cache per token", bytes(memory.kv_per_token)),
        ("Peak", peak),
        (
            "Fragmentation: allocated slots without a token",
            percent(memory.fragmentation),
        ),
    ]) + &format!(
        "<div class=\"bar\" role=\"img\" aria-label=\"Memory use, listed below\">{bar}</div>\n<ul class=\"legend\">{legend}</ul>\n"
    )
}

fn column(label: &str, align: Align) -> Column<'_> {
    Column {
        label,
        title: "",
        align,
    }
}

/// Returns the device utilization, and tables of backends, operation types and slow paths.
pub(super) fn telemetry(profile: &Profile) -> String {
    let busy = match &profile.utilization {
        None => not_available("device utilization, because no source of it could be read"),
        Some(found) => utilization(found),
    };
    format!(
        "{busy}<div class=\"two\"><div>{}{}</div><div>{}</div></div>\n",
        backends(profile),
        slow_ops(profile),
        op_types(profile)
    )
}

fn utilization(found: &Utilization) -> String {
    let busy = &found.busy_percent;
    let side = match found.meets_target {
        true => "above",
        false => "not above",
    };
    let mean = percent(busy.mean / 100.0);
    let memory = found.memory_used_bytes.map_or_else(
        || format!("{NOT_AVAILABLE}: not reported by the source"),
        bytes,
    );
    let condition = found.condition().map_or_else(
        || format!("{NOT_AVAILABLE}: not reported by the source"),
        |known| Escaped(&known).to_string(),
    );
    facts(&[
        ("Busy, mean", format!("{mean} ({side} the target of 80 %)")),
        (
            "Busy, p50 and minimum",
            format!(
                "{}, {}",
                percent(busy.p50 / 100.0),
                percent(busy.min / 100.0)
            ),
        ),
        ("Samples", count(busy.n as u64)),
        ("Memory in use", memory),
        ("Power, temperature, clock", condition),
        ("Read from", Escaped(&found.source).to_string()),
    ])
}

fn missing(text: &str) -> String {
    format!("<p class=\"missing\">{text}</p>\n")
}

fn count_cell(n: u64) -> Cell {
    Cell::markup(count(n), Some(n as f64))
}

fn backends(profile: &Profile) -> String {
    if profile.time_by_backend.is_empty() {
        return missing("Time by backend: n/a, no operation was timed.");
    }
    let columns = [
        column("Backend", Align::Start),
        column("Executions", Align::End),
        column("Time", Align::End),
        column("Share", Align::End),
    ];
    let mut table = Table::new("Time by backend", &columns);
    let total: f64 = profile.time_by_backend.values().sum();
    for (backend, ms) in &profile.time_by_backend {
        let executions = profile.ops_by_backend.get(backend);
        table.row(&[
            Cell::text(backend),
            executions.map_or_else(|| Cell::number(None, time_ms), |n| count_cell(*n)),
            Cell::number(Some(*ms), time_ms),
            Cell::number(Some(ms / total), percent),
        ]);
    }
    table.finish()
}

fn op_types(profile: &Profile) -> String {
    if profile.ops_by_type.is_empty() {
        return missing("Executions by type: n/a, none was counted.");
    }
    let columns = [
        column("Type", Align::Start),
        column("Executions", Align::End),
    ];
    let mut table = Table::new("Executions by operation type", &columns);
    for (kind, n) in &profile.ops_by_type {
        table.row(&[Cell::text(kind), count_cell(*n)]);
    }
    table.finish()
}

fn slow_ops(profile: &Profile) -> String {
    if profile.slow_ops.is_empty() {
        return missing("Every operation had a fast kernel.");
    }
    let columns = [
        column("Why", Align::Start),
        column("Operations", Align::End),
    ];
    let mut table = Table::new("Operations without a fast kernel", &columns);
    for op in &profile.slow_ops {
        table.row(&[Cell::text(&op.reason), count_cell(op.count as u64)]);
    }
    table.finish()
}
