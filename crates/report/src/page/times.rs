//! Page sections on times: components of the time to first token, phases, tables of operations and kernels.

use rocmforge_profile::schema::{Bound, OpRow, Phase, Profile, Ttft};

use super::list;
use crate::html::{Align, Cell, Column, Escaped, Table, not_available};
use crate::kinds::Kinds;
use crate::numbers::{bytes, count, digits, percent, scaled, time_ms};

/// Returns the components as a stacked bar, with the target if it is near.
pub(super) fn ttft(ttft: &Ttft) -> String {
    let parts = parts(ttft);
    let measured: Vec<(&str, f64)> = parts
        .iter()
        .filter_map(|(name, ms)| Some((*name, (*ms)?)))
        .filter(|(_, ms)| ms.is_finite() && *ms >= 0.0)
        .collect();
    let sum: f64 = measured.iter().map(|(_, ms)| ms).sum();
    let whole = sum.max(ttft.total);
    if !(whole.is_finite() && whole > 0.0) {
        return not_available("the run produced no token");
    }
    let verdict = match ttft.meets_target {
        true => "It meets the target.",
        false => "It misses the target.",
    };
    let remarks = remarks(ttft, &parts, sum);
    format!(
        "<p><strong>{}</strong> from the request to the token; the longest part is <strong>{}</strong>. The target is {}. {verdict}</p>\n\
         {}<h3>Remarks</h3>\n{}",
        time_ms(ttft.total),
        Escaped(&ttft.dominant),
        time_ms(ttft.target),
        bar(&measured, whole, ttft.target),
        list(remarks.iter().chain(&ttft.notes).map(String::as_str))
    )
}

/// Returns the components in the order in which they happen.
fn parts(ttft: &Ttft) -> [(&'static str, Option<f64>); 6] {
    [
        ("Tokenize", ttft.tokenize),
        ("Copies to the device", ttft.h2d),
        ("Embedding", ttft.embedding),
        ("Prefill", ttft.prefill),
        ("First token", ttft.first_token),
        ("Copies from the device", ttft.d2h),
    ]
}

/// Returns the bar and its legend. `whole` is the time that the components divide.
fn bar(measured: &[(&str, f64)], whole: f64, target: f64) -> String {
    // A target far beyond the bar would shrink the bar too much.
    let shows_target = target > 0.0 && target <= whole * 2.5;
    let scale = match shows_target {
        true => whole.max(target),
        false => whole,
    };
    let sum: f64 = measured.iter().map(|(_, ms)| ms).sum();
    let rest = (whole - sum > whole * 0.001).then_some(("Between them", whole - sum));
    let (mut bar, mut legend) = (String::new(), String::new());
    for (i, (name, ms)) in measured.iter().copied().chain(rest).enumerate() {
        let class = match i < measured.len() {
            true => format!("k{i}"),
            false => "kn".to_owned(),
        };
        let text = format!("{name}: {}, {}", time_ms(ms), percent(ms / whole));
        bar += &format!(
            "<span class=\"{class}\" style=\"width:{:.3}%\" title=\"{text}\"></span>",
            ms / scale * 100.0
        );
        legend += &format!("<li class=\"{class}\">{text}</li>");
    }
    if shows_target {
        let at = target / scale * 100.0;
        let side = if at < 25.0 { " left" } else { "" };
        bar += &format!(
            "<span class=\"target{side}\" style=\"left:{at:.3}%\"><b>target {}</b></span>",
            time_ms(target)
        );
    }
    format!(
        "<div class=\"bar\" role=\"img\" aria-label=\"Parts of the time to first token, listed below\">{bar}</div>\n\
         <ul class=\"legend\">{legend}</ul>\n"
    )
}

/// Returns remarks on loading, overlapping components and missing ones. `sum` is the time of all components.
fn remarks(ttft: &Ttft, parts: &[(&str, Option<f64>)], sum: f64) -> Vec<String> {
    let mut remarks = vec![match ttft.model_load {
        Some(ms) => format!(
            "Loading the model took {}, before the request.",
            time_ms(ms)
        ),
        None => "Loading the model: n/a, it was loaded before the measurement began.".to_owned(),
    }];
    if sum > ttft.total * 1.01 {
        remarks.push(format!("Parts overlap: their sum is {}.", time_ms(sum)));
    }
    let missing: Vec<_> = parts
        .iter()
        .filter(|(_, ms)| ms.is_none())
        .map(|(name, _)| name.to_lowercase())
        .collect();
    if !missing.is_empty() {
        remarks.push(format!(
            "n/a, not timed separately in this run: {}.",
            missing.join(", ")
        ));
    }
    remarks
}

fn label<'a>(label: &'a str, title: &'a str) -> Column<'a> {
    Column {
        label,
        title,
        align: Align::Start,
    }
}

fn number<'a>(label: &'a str, title: &'a str) -> Column<'a> {
    Column {
        label,
        title,
        align: Align::End,
    }
}

/// Returns a table of the phases' times with and without the profiler.
pub(super) fn phases(profile: &Profile) -> String {
    if profile.phases.is_empty() {
        return not_available("the run had no phases");
    }
    let mut table = Table::new(
        "Times of the phases",
        &[
            label("Phase", ""),
            number("Tokens", ""),
            number("Steps", ""),
            number("Unprofiled", "Mean wall-clock time without the profiler"),
            number("Profiled", "Mean wall-clock time with the profiler"),
            number(
                "Operations",
                "Total time of the operations of a profiled run",
            ),
            number("Between", "Rest of the profiled run outside operations"),
            number(
                "Spread",
                "Standard deviation of the unprofiled runs divided by their mean",
            ),
            number("Roofline", "Time at the roofline"),
            number("Share", "Roofline time divided by the unprofiled time"),
            number("tok/s", ""),
        ],
    );
    for phase in &profile.phases {
        table.row(&[
            Cell::text(&phase.name),
            Cell::number(Some(phase.n_tokens as f64), digits_of_count),
            Cell::number(Some(phase.n_steps as f64), digits_of_count),
            Cell::number(Some(phase.unprofiled.mean), time_ms),
            Cell::number(Some(phase.profiled.mean), time_ms),
            Cell::number(Some(phase.ops_ms), time_ms),
            Cell::number(Some(phase.between_ops_ms), time_ms),
            Cell::number(Some(phase.unprofiled.noise()), percent),
            Cell::number(phase.least_ms, time_ms),
            Cell::number(phase.roofline_share(), percent),
            Cell::number(Some(phase.tokens_per_s), digits),
        ]);
    }
    table.finish()
}

fn digits_of_count(n: f64) -> String {
    count(n as u64)
}

/// Returns a table of operations and one of kernels per phase.
pub(super) fn operations(profile: &Profile, kinds: &Kinds<'_>) -> String {
    let mut text = String::new();
    for phase in &profile.phases {
        text += &format!("<h3>{}</h3>\n", Escaped(&phase.name));
        text += &match phase.ops.is_empty() {
            true => not_available("no operation was timed"),
            false => rows(
                &format!("Operations of {}", phase.name),
                "Operation",
                &phase.ops,
                kinds,
            ),
        };
        text += &match phase.kernels.is_empty() {
            true => kernels_missing(profile, phase),
            false => rows(
                &format!("Kernels of {}", phase.name),
                "Kernel",
                &phase.kernels,
                kinds,
            ),
        };
    }
    if text.is_empty() {
        return not_available("the run had no phases");
    }
    text
}

fn kernels_missing(profile: &Profile, phase: &Phase) -> String {
    match profile.machine.backend.as_str() {
        "cpu" => not_available(&format!(
            "kernels of {}, because on a CPU an operation is a function call",
            phase.name
        )),
        _ => not_available(&format!(
            "kernels of {}, because no kernel was timed individually",
            phase.name
        )),
    }
}

fn rows(caption: &str, what: &str, rows: &[OpRow], kinds: &Kinds<'_>) -> String {
    let mut table = Table::new(
        caption,
        &[
            label(what, ""),
            label("Type", ""),
            number("Calls", "Calls in one run"),
            number("Total", ""),
            number("Share", "Share of the time of all operations of the phase"),
            number("p50", "Median time of a call"),
            number("p95", "95th percentile of the time of a call"),
            number("Traffic", "Bytes that must be read from memory per time"),
            number("Rate", "Operations on f32 and 8-bit numbers per time"),
            number(
                "Reads",
                "Share of the read bandwidth measured in the same run",
            ),
            number(
                "Arithm.",
                "Share of the peak arithmetic rate measured in the same run",
            ),
            label("Bound", "What limits it"),
        ],
    );
    for row in rows {
        let seconds = row.total_ms / 1e3;
        let n_ops = row.f32_ops.saturating_add(row.i8_ops);
        let rate = |amount: u64| (amount > 0).then_some(amount as f64 / seconds);
        let colour = kinds.class(&row.kind);
        let share = format!(
            "<span class=\"share\"><i class=\"{colour}\" style=\"width:{:.1}%\"></i></span><span>{}</span>",
            row.share.clamp(0.0, 1.0) * 100.0,
            percent(row.share)
        );
        let us = |us: f64| time_ms(us / 1e3);
        table.row(&[
            Cell::text(&row.name),
            Cell::markup(
                format!(
                    "<span class=\"kind {colour}\">{}</span>",
                    Escaped(&row.kind)
                ),
                None,
            ),
            Cell::number(Some(row.calls as f64), digits_of_count),
            Cell::number(Some(row.total_ms), time_ms),
            Cell::markup(share, Some(row.share)),
            Cell::number(Some(row.call_us.p50), us),
            Cell::number(Some(row.call_us.p95), us),
            match rate(row.bytes) {
                Some(rate) => Cell::number(Some(rate), |x| scaled(x, "B/s")),
                None => Cell::markup(bytes(0), Some(0.0)),
            },
            match rate(n_ops) {
                Some(rate) => Cell::number(Some(rate), |x| scaled(x, "op/s")),
                None => Cell::markup("none".to_owned(), Some(0.0)),
            },
            share_of_peak(row.bandwidth_share, row.is_above_bandwidth()),
            share_of_peak(row.ops_share, row.is_above_ops()),
            match row.bound {
                Some(bound) => Cell::markup(
                    format!("<span class=\"badge\">{}</span>", bound_name(bound)),
                    None,
                ),
                None => Cell::text("n/a"),
            },
        ]);
    }
    table.finish()
}

/// A share of a peak; one above the peak has a mark, which a note explains.
fn share_of_peak(share: Option<f64>, is_above: bool) -> Cell {
    match share.filter(|_| is_above) {
        Some(share) => Cell::markup(format!("{}*", percent(share)), Some(share)),
        None => Cell::number(share, percent),
    }
}

pub(super) fn bound_name(bound: Bound) -> &'static str {
    match bound {
        Bound::Memory => "memory",
        Bound::Compute => "arithmetic",
        Bound::Launch => "launch",
    }
}
