//! Writes a profile as a self-contained page: summary, advice, plots, tables.
//!
//! Text and tables are written here; the page's scripts draw the roofline plot and the timeline from the data that
//! [`plots`] embeds. What was not measured is shown as n/a with the reason.

mod machine;
mod plots;
mod times;

use std::io::{self, Write};

use rocmforge_profile::schema::{Phase, Profile};

use super::html::{Document, Escaped, Verdict, not_available, section, tile};
use super::kinds::Kinds;
use super::numbers::{NOT_AVAILABLE, bytes, count, digits, percent, scaled, time_ms};
use super::tracks;

/// Writes the page.
///
/// # Errors
/// If writing to `out` fails.
pub fn write(profile: &Profile, out: impl Write) -> io::Result<()> {
    let placed = tracks::place(&profile.timeline);
    let kinds = Kinds::of(profile, &placed);
    let data = plots::Data::of(profile, &placed, &kinds);
    let body = [
        header(profile),
        tiles(profile),
        section("advice", "What to speed up next", &advice(profile)),
        section("ttft", "Time to first token", &times::ttft(&profile.ttft)),
        section(
            "roofline",
            "Roofline",
            &plots::roofline(profile, &data, &kinds),
        ),
        section("timeline", "Timeline", &plots::timeline(&data, &kinds)),
        section("phases", "Phases", &times::phases(profile)),
        section(
            "operations",
            "Operations and kernels",
            &times::operations(profile, &kinds),
        ),
        section("launches", "Kernel launches", &machine::launches(profile)),
        section("memory", "Memory", &machine::memory(&profile.memory)),
        section("telemetry", "Telemetry", &machine::telemetry(profile)),
        section("notes", "How it was measured", &notes(profile)),
        format!(
            "<footer>Written by rocmforge {}, {}. This file loads nothing.</footer>\n",
            Escaped(&profile.version),
            Escaped(&profile.created)
        ),
    ]
    .concat();
    let title = format!("{} {}: profile", profile.model.name, profile.model.format);
    Document {
        title: &title,
        body: &body,
        scripts: &[
            include_str!("assets/roofline.js"),
            include_str!("assets/timeline.js"),
        ],
    }
    .write(&data, out)
}

fn header(profile: &Profile) -> String {
    let Profile {
        model,
        machine,
        workload,
        ..
    } = profile;
    let facts = [
        (
            "Model",
            format!(
                "{}, {} parameters",
                model.arch,
                scaled(model.n_params as f64, "")
            ),
        ),
        (
            "Format",
            format!("{}, {}", model.format, bytes(model.weight_bytes)),
        ),
        (
            "Device",
            format!("{} ({})", machine.device, machine.backend),
        ),
        (
            "Driver",
            machine
                .driver
                .clone()
                .unwrap_or_else(|| format!("{NOT_AVAILABLE}: this backend has none")),
        ),
        (
            "Processor",
            format!(
                "{}, {}, {} threads",
                machine.cpu, machine.isa, machine.n_threads
            ),
        ),
        ("System", machine.os.clone()),
        (
            "Runs",
            format!(
                "{} with profiler, {} without",
                workload.n_profiled, workload.n_unprofiled
            ),
        ),
        ("Date", profile.created.clone()),
    ];
    let facts: String = facts
        .iter()
        .map(|(name, fact)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", Escaped(fact)))
        .collect();
    let sequences = match workload.n_seqs {
        1 => String::new(),
        n => format!(", {n} sequences at a time"),
    };
    let links: String = [
        ("advice", "Advice"),
        ("ttft", "First token"),
        ("roofline", "Roofline"),
        ("timeline", "Timeline"),
        ("operations", "Operations"),
        ("launches", "Launches"),
        ("memory", "Memory"),
        ("telemetry", "Telemetry"),
    ]
    .iter()
    .map(|(id, label)| format!("<li><a href=\"#{id}\">{label}</a></li>"))
    .collect();
    format!(
        "<header>\n<h1>{}</h1>\n<p>Profile of {} prompt tokens and {} generated{sequences}, on <span class=\"bidi\">{}</span></p>\n\
         <dl class=\"facts\">\n{facts}</dl>\n<code tabindex=\"0\" aria-label=\"Command\">{}</code>\n\
         <nav aria-label=\"Sections\"><ul>{links}</ul></nav>\n</header>\n",
        Escaped(&model.name),
        count(workload.n_prompt as u64),
        count(workload.n_gen as u64),
        Escaped(&machine.device),
        Escaped(&profile.command),
    )
}

fn tiles(profile: &Profile) -> String {
    let ttft = &profile.ttft;
    let (verdict, side) = match ttft.meets_target {
        true => (Verdict::Good, "within"),
        false => (Verdict::Bad, "misses"),
    };
    let mut tiles = tile(
        "Time to first token",
        &time_ms(ttft.total),
        &format!("{side} the target of {}", time_ms(ttft.target)),
        verdict,
    );
    for (name, label) in [("prefill", "Prompt"), ("decode", "Generation")] {
        tiles += &match phase(profile, name) {
            Some(phase) => tile(
                label,
                &format!("{} tok/s", digits(phase.tokens_per_s)),
                &format!(
                    "{} tokens in {}",
                    count(phase.n_tokens as u64),
                    time_ms(phase.unprofiled.mean)
                ),
                Verdict::None,
            ),
            None => tile(
                label,
                NOT_AVAILABLE,
                "not part of this workload",
                Verdict::None,
            ),
        };
    }
    let share = |name| phase(profile, name).and_then(Phase::roofline_share);
    tiles += &match (share("decode"), share("prefill")) {
        (Some(decode), Some(prefill)) => tile(
            "Share of the roofline",
            &percent(decode),
            &format!("decode; prefill {}", percent(prefill)),
            Verdict::None,
        ),
        (Some(decode), None) => tile(
            "Share of the roofline",
            &percent(decode),
            "generation",
            Verdict::None,
        ),
        (None, Some(prefill)) => tile(
            "Share of the roofline",
            &percent(prefill),
            "prompt",
            Verdict::None,
        ),
        (None, None) => tile(
            "Share of the roofline",
            NOT_AVAILABLE,
            "no peak rate was measured",
            Verdict::None,
        ),
    };
    let overhead = &profile.overhead;
    tiles += &tile(
        "Cost of profiling",
        &percent(overhead.profiled_ms / overhead.unprofiled_ms - 1.0),
        &format!(
            "{} against {}",
            time_ms(overhead.profiled_ms),
            time_ms(overhead.unprofiled_ms)
        ),
        Verdict::None,
    );
    format!("<dl class=\"tiles\">\n{tiles}</dl>\n")
}

fn phase<'a>(profile: &'a Profile, name: &str) -> Option<&'a Phase> {
    profile.phases.iter().find(|phase| phase.name == name)
}

fn advice(profile: &Profile) -> String {
    if profile.advice.is_empty() {
        return "<p>Nothing stands out.</p>\n".to_owned();
    }
    let items: String = profile
        .advice
        .iter()
        .map(|advice| {
            format!(
                "<li><strong>{}</strong> <span class=\"badge\">{}</span><p>{}</p></li>\n",
                Escaped(&advice.title),
                Escaped(&advice.gain_text()),
                Escaped(&advice.reason)
            )
        })
        .collect();
    format!("<ol class=\"advice\">\n{items}</ol>\n")
}

fn notes(profile: &Profile) -> String {
    let overhead = format!(
        "A timed scope costs {}, measured in the same run.",
        time_ms(profile.overhead.scope_ns / 1e6)
    );
    match profile.notes.is_empty() {
        true if !profile.overhead.scope_ns.is_finite() => not_available("no notes"),
        _ => {
            list(std::iter::once(overhead.as_str()).chain(profile.notes.iter().map(String::as_str)))
        }
    }
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: String = items
        .map(|item| format!("<li>{}</li>\n", Escaped(item)))
        .collect();
    format!("<ul>\n{items}</ul>\n")
}
