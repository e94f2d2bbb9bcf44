//! Writes a [`Trend`] as a page: regressions first, then a chart per benchmark and metric, with a line per machine.

use std::io::{self, Write};

use rocmforge_bench::baseline::{
    ComparisonResult, Direction, MetricComparison, Point, Series, Trend, direction, four_digits,
};
use rocmforge_profile::clock::rfc_3339;

use crate::chart::{self, Line, LineChart, Mark};
use crate::html::{self, Align, Cell, Column, Document, Escaped, Table, Verdict};
use crate::numbers;

/// Most charts of a page; browsers are slow with more. The table has all series.
const MAX_CHARTS: usize = 400;

/// Writes a self-contained page.
///
/// # Errors
/// If writing to `out` fails.
pub fn write(trend: &Trend, out: impl Write) -> io::Result<()> {
    let body = [
        header(trend),
        worse(trend),
        charts(trend),
        all(trend),
        unread(trend),
    ]
    .concat();
    let document = Document {
        title: "Performance over time",
        body: &body,
        scripts: &[],
    };
    document.write(&(), out)
}

fn header(trend: &Trend) -> String {
    let n_worse = trend.regressions().count();
    let points = || trend.series.iter().flat_map(|series| &series.points);
    let times = || points().map(|point| point.timestamp);
    let day =
        |time: Option<u64>| time.map_or(String::new(), |time| rfc_3339(time)[..10].to_string());
    let (first, last) = (day(times().min()), day(times().max()));
    let count = numbers::count(n_worse as u64);
    let worse = match n_worse {
        0 => ("none", "no loss above the threshold", Verdict::Good),
        _ => (
            count.as_str(),
            "series with a loss above the threshold that was not made good",
            Verdict::Bad,
        ),
    };
    format!(
        "<header>\n<h1>Performance over time</h1>\n<p>{first} to {last}</p>\n</header>\n<dl class=\"tiles\">\n{}{}{}</dl>\n",
        html::tile(
            "Baselines",
            &numbers::count(trend.n_baselines as u64),
            "files in the folder",
            Verdict::None
        ),
        html::tile(
            "Series",
            &numbers::count(trend.series.len() as u64),
            "benchmark, metric and machine",
            Verdict::None
        ),
        html::tile("Regressions", worse.0, worse.1, worse.2),
    )
}

fn worse(trend: &Trend) -> String {
    let mut rows = Rows::new("Series that got worse");
    trend.regressions().for_each(|series| rows.add(series));
    match trend.regressions().next() {
        Some(_) => html::section("worse", "What got worse", &rows.table.finish()),
        None => String::new(),
    }
}

fn charts(trend: &Trend) -> String {
    // A chart shows a metric of a benchmark on all machines; regressions come first.
    let mut charts: Vec<Vec<&Series>> = Vec::new();
    for series in trend.regressions().chain(&trend.series) {
        let of =
            |other: &&Series| other.benchmark == series.benchmark && other.metric == series.metric;
        match charts
            .iter_mut()
            .find(|chart| chart.first().is_some_and(of))
        {
            Some(chart) if chart.contains(&series) => {}
            Some(chart) => chart.push(series),
            None => charts.push(vec![series]),
        }
    }
    let shown = charts.len().min(MAX_CHARTS);
    let figures: String = charts[..shown].iter().map(|chart| figure(chart)).collect();
    let mut body = format!("<div class=\"charts\">\n{figures}</div>\n");
    if shown < charts.len() {
        let text = format!(
            "{} more charts are omitted; the table below has all series",
            charts.len() - shown
        );
        body += &format!("<p class=\"muted\">{}</p>\n", Escaped(&text));
    }
    if charts.is_empty() {
        body = html::not_available("no baseline has a comparable metric");
    }
    html::section("charts", "Every benchmark", &body)
}

fn all(trend: &Trend) -> String {
    let mut rows = Rows::new("All series, last point compared with the first");
    trend.series.iter().for_each(|series| rows.add(series));
    html::section("all", "All series", &rows.table.finish())
}

fn unread(trend: &Trend) -> String {
    if trend.unreadable.is_empty() {
        return String::new();
    }
    let items: String = trend
        .unreadable
        .iter()
        .map(|problem| format!("<li>{}</li>\n", Escaped(problem)))
        .collect();
    html::section(
        "unread",
        "Files that could not be read",
        &format!("<ul>\n{items}</ul>\n"),
    )
}

/// A table of series.
struct Rows<'a> {
    table: Table<'a>,
}

impl<'a> Rows<'a> {
    fn new(caption: &'a str) -> Rows<'a> {
        let column = |label, title, align| Column {
            label,
            title,
            align,
        };
        Rows {
            table: Table::new(
                caption,
                &[
                    column("Benchmark", "", Align::Start),
                    column("Metric", "", Align::Start),
                    column("Machine", "", Align::Start),
                    column("Points", "Number of baselines with this metric", Align::End),
                    column("First", "", Align::End),
                    column("Last", "", Align::End),
                    column(
                        "Change",
                        "Last point compared with the first, with 99 % confidence interval",
                        Align::End,
                    ),
                    column(
                        "Loss",
                        "What the last point still has lost, since which baseline",
                        Align::End,
                    ),
                ],
            ),
        }
    }

    fn add(&mut self, series: &Series) {
        let (first, last) = (series.points.first(), series.points.last());
        let value =
            |point: Option<&Point>| Cell::number(point.map(|point| point.value), four_digits);
        let since = series.since_first.as_ref();
        let change = match since {
            Some(of) => Cell::markup(Escaped(&of.change_text()).to_string(), Some(of.change)),
            None => Cell::text(numbers::NOT_AVAILABLE),
        };
        let lost = series.lost.as_ref().map(|lost| {
            let text = format!("{} since {}", lost.change.change_text(), lost.since);
            Cell::markup(Escaped(&text).to_string(), Some(lost.change.change))
        });
        self.table.row(&[
            Cell::text(&series.benchmark),
            Cell::text(&series.metric),
            Cell::text(&series.hardware),
            Cell::number(Some(series.points.len() as f64), |n| {
                numbers::count(n as u64)
            }),
            value(first),
            value(last),
            change,
            lost.unwrap_or_else(|| Cell::text("")),
        ]);
    }
}

/// Returns a chart of series with the same benchmark and metric.
fn figure(lines: &[&Series]) -> String {
    let Some(first) = lines.first() else {
        return String::new();
    };
    let times = || {
        lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|point| point.timestamp)
    };
    let ends = ends(times().min().zip(times().max()));
    let better = match direction(&first.metric) {
        Some(Direction::HigherIsBetter) => "higher is better",
        _ => "lower is better",
    };
    let unit = format!("{}, {better}", first.metric);
    let points = |series: &Series| series.points.iter().map(point).collect();
    let lines = lines.iter().map(|series| Line {
        label: &series.hardware,
        points: points(series),
    });
    let chart = LineChart {
        title: &first.benchmark,
        unit: &unit,
        ends: [&ends[0], &ends[1]],
        lines: lines.collect(),
    };
    chart.svg()
}

/// Returns the labels of an axis: days, with the time (UTC) if it spans less than a week.
fn ends(times: Option<(u64, u64)>) -> [String; 2] {
    const WEEK_S: u64 = 7 * 24 * 3600;
    let Some((first, last)) = times else {
        return Default::default();
    };
    [first, last].map(|time| {
        let text = rfc_3339(time);
        match last - first < WEEK_S {
            true => format!("{} {} UTC", &text[..10], &text[11..16]),
            false => text[..10].to_string(),
        }
    })
}

fn point(point: &Point) -> chart::Point {
    let mut tooltip = format!(
        "{}, {}: {}",
        point.baseline,
        rfc_3339(point.timestamp),
        four_digits(point.value)
    );
    if !point.program.is_empty() {
        tooltip += &format!(", rocmforge {}", point.program);
    }
    if let Some(before) = &point.before {
        tooltip += &format!(", {}", before.change_text());
    }
    chart::Point {
        x: point.timestamp as f64,
        y: point.value,
        spread: point.spread,
        mark: mark(point.before.as_ref()),
        tooltip,
    }
}

fn mark(comparison: Option<&MetricComparison>) -> Mark {
    match comparison.map(|of| of.result) {
        Some(ComparisonResult::Regression) => Mark::Worse,
        Some(ComparisonResult::Improved) => Mark::Better,
        _ => Mark::Plain,
    }
}
