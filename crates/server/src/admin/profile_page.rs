//! A profile of live traffic as a page.

use rocmforge_report::chart::{Line, LineChart, Mark, Point};
use rocmforge_report::html::{
    Align, Cell, Column, Document, Table, Verdict, not_available, section, tile,
};
use rocmforge_report::numbers::{count, digits, percent, time_ms};

use super::profile::{Profile, Sums};
use crate::observe::steps::Phase;

/// Points of the chart: more cannot be told apart.
const MAX_POINTS: usize = 400;

/// Returns the page as a file that loads nothing.
pub(super) fn page(profile: &Profile) -> Vec<u8> {
    let body = format!(
        "<h1>Live traffic</h1>\n<dl class=\"tiles\">\n{}</dl>\n{}{}{}",
        tiles(profile),
        section("kinds", "Steps by kind", &kinds(profile)),
        section("times", "Steps over time", &chart(profile)),
        section("shapes", "Steps by shape", &shapes(profile)),
    );
    let document = Document {
        title: &format!("Live traffic of {}", profile.model),
        body: &body,
        scripts: &[],
    };
    let mut page = Vec::new();
    let written = document.write(profile, &mut page);
    written.expect("writing to memory does not fail, and the profile is JSON");
    page
}

fn tiles(profile: &Profile) -> String {
    let total = &profile.total;
    let tiles = [
        ("Model", profile.model.clone(), profile.device.clone()),
        (
            "Steps",
            count(total.steps as u64),
            format!(
                "in {} s, {} missed",
                digits(profile.seconds),
                profile.missed_steps
            ),
        ),
        (
            "Tokens per second",
            digits(total.tokens_per_s),
            format!(
                "{} generated, {} of prompts",
                total.generated_tokens, total.prompt_tokens
            ),
        ),
        (
            "Device in use",
            percent(total.device_share),
            "share of the time with a step".to_string(),
        ),
        (
            "Roofline",
            total
                .roofline_share
                .map_or_else(|| "n/a".to_string(), percent),
            "least time by the peaks, as a share of the steps' time".to_string(),
        ),
    ];
    let tiles = tiles
        .iter()
        .map(|(label, value, meaning)| tile(label, value, meaning, Verdict::None));
    tiles.collect()
}

fn column<'a>(label: &'a str, title: &'a str) -> Column<'a> {
    let align = Align::End;
    Column {
        label,
        title,
        align,
    }
}

/// The columns of [`cells`].
fn columns<'a>() -> Vec<Column<'a>> {
    vec![
        column("Steps", ""),
        column("Per second", "Steps by the time of the profile"),
        column("Tokens", "Generated tokens and those of prompts"),
        column("Device time", ""),
        column("Median", "Time of a step"),
        column("p95", "Time that 95 % of the steps keep"),
        column(
            "Roofline",
            "Least time by the peaks, as a share of the steps' time",
        ),
    ]
}

fn cells(sums: &Sums) -> Vec<Cell> {
    let step = sums.step_ms.as_ref();
    let tokens = sums.generated_tokens + sums.prompt_tokens;
    vec![
        Cell::number(Some(sums.steps as f64), |n| count(n as u64)),
        Cell::number(Some(sums.steps_per_s), digits),
        Cell::number(Some(tokens as f64), |n| count(n as u64)),
        Cell::number(Some(sums.device_share), percent),
        Cell::number(step.map(|step| step.p50), time_ms),
        Cell::number(step.map(|step| step.p95), time_ms),
        Cell::number(sums.roofline_share, percent),
    ]
}

fn kinds(profile: &Profile) -> String {
    if profile.kinds.is_empty() {
        return not_available("no step was computed meanwhile; profile while requests run");
    }
    let mut head = vec![Column {
        label: "Kind",
        title: "What the steps computed",
        align: Align::Start,
    }];
    head.extend(columns());
    let mut table = Table::new(
        "decode: answers; prefill: prompts; mixed: both in one step",
        &head,
    );
    for (kind, sums) in &profile.kinds {
        let mut row = vec![Cell::text(kind)];
        row.extend(cells(sums));
        table.row(&row);
    }
    table.finish()
}

fn shapes(profile: &Profile) -> String {
    let mut head = vec![
        column("Decode rows", "Sequences that generated, at most"),
        column("Prompt tokens", "Tokens of prompts, at most"),
    ];
    head.extend(columns());
    let mut table = Table::new("Numbers of rows are rounded up to powers of two", &head);
    for shape in &profile.shapes {
        let number = |n: usize| Cell::number(Some(n as f64), |n| count(n as u64));
        let mut row = vec![number(shape.decode_rows), number(shape.prompt_tokens)];
        row.extend(cells(&shape.sums));
        table.row(&row);
    }
    table.finish()
}

/// The times of steps, by kind. Of many steps, some are drawn: each is the longest of its neighbours.
fn chart(profile: &Profile) -> String {
    let per_point = profile.steps.len().div_ceil(MAX_POINTS).max(1);
    let line = |phase: Phase| {
        let steps: Vec<_> = profile
            .steps
            .iter()
            .filter(|step| step.phase() == phase)
            .collect();
        let longest = steps
            .chunks(per_point)
            .filter_map(|near| near.iter().max_by(|a, b| a.ms.total_cmp(&b.ms)));
        let points = longest.map(|step| Point {
            x: step.at_ms,
            y: step.ms,
            spread: None,
            mark: Mark::Plain,
            tooltip: format!(
                "{}: {} decode rows, {} prompt tokens",
                time_ms(step.ms),
                step.decode_rows,
                step.prompt_tokens
            ),
        });
        Line {
            label: phase.name(),
            points: points.collect(),
        }
    };
    let lines = Phase::ALL.map(line).into_iter();
    let end = format!("{} s", digits(profile.seconds));
    let chart = LineChart {
        title: "Time of a step",
        unit: "ms",
        ends: ["0 s", &end],
        lines: lines.filter(|line| !line.points.is_empty()).collect(),
    };
    chart.svg()
}
