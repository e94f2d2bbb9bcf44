//! The roofline plot and the timeline: data for the page's scripts, and the markup around it.
//!
//! Roofline: S. Williams et al., CACM 52(4), 2009.

use std::collections::HashMap;

use rocmforge_profile::schema::{Ceilings, Lane, Phase, Profile};
use serde::Serialize;

use super::times::bound_name;
use crate::html::{Escaped, not_available};
use crate::kinds::Kinds;
use crate::numbers::{count, percent, scaled, time_ms};
use crate::tracks::{LANES, Placed};

/// The data embedded for the scripts.
#[derive(Serialize)]
pub(super) struct Data<'a> {
    roofline: Roofline<'a>,
    timeline: Timeline<'a>,
}

#[derive(Serialize)]
struct Roofline<'a> {
    /// Bytes per second.
    read: Option<f64>,
    roofs: Vec<Roof>,
    dots: Vec<Dot<'a>>,
    #[serde(skip)]
    n_without_place: usize,
}

/// A peak arithmetic rate.
#[derive(Serialize)]
struct Roof {
    name: &'static str,
    /// Operations a second.
    rate: f64,
}

/// An operation of a phase.
#[derive(Serialize)]
struct Dot<'a> {
    phase: &'a str,
    #[serde(skip)]
    kind: &'a str,
    colour: usize,
    /// Share of the phase's time.
    share: f64,
    /// Operations per byte.
    intensity: f64,
    /// Operations a second.
    rate: f64,
    /// Lines of its tooltip.
    lines: Vec<String>,
}

/// Spans in rows: tables of names and kinds, then numbers.
#[derive(Serialize)]
struct Timeline<'a> {
    names: Vec<&'a str>,
    kinds: Vec<Kind<'a>>,
    lanes: Vec<String>,
    /// Name, kind, lane, row of the lane, start and duration in microseconds.
    spans: Vec<(usize, usize, usize, usize, f64, f64)>,
    #[serde(skip)]
    n_left_out: usize,
}

#[derive(Serialize)]
struct Kind<'a> {
    name: &'a str,
    colour: Option<usize>,
}

/// Most spans of a page; more make it slow to open. The trace has all of them.
const MAX_SPANS: usize = 60_000;

impl<'a> Data<'a> {
    pub(super) fn of(profile: &'a Profile, placed: &[Placed<'a>], kinds: &Kinds<'a>) -> Data<'a> {
        Data {
            roofline: Roofline::of(profile, kinds),
            timeline: Timeline::of(profile, placed, kinds),
        }
    }
}

impl<'a> Roofline<'a> {
    fn of(profile: &'a Profile, kinds: &Kinds<'a>) -> Roofline<'a> {
        let is_rate = |x: &f64| x.is_finite() && *x > 0.0;
        let ceilings = profile.ceilings;
        let roof = |name, rate: fn(&Ceilings) -> Option<f64>| {
            ceilings
                .as_ref()
                .and_then(rate)
                .filter(is_rate)
                .map(|rate| Roof { name, rate })
        };
        let mut dots = Vec::new();
        let mut n_without_place = 0;
        for phase in &profile.phases {
            for row in &phase.ops {
                let n_ops = row.f32_ops.saturating_add(row.i8_ops) as f64;
                let intensity = n_ops / row.bytes as f64;
                let rate = n_ops / (row.total_ms / 1e3);
                if !is_rate(&intensity) || !is_rate(&rate) {
                    n_without_place += 1;
                    continue;
                }
                let share = if row.share.is_finite() {
                    row.share.clamp(0.0, 1.0)
                } else {
                    0.0
                };
                let mut lines = vec![
                    row.name.clone(),
                    format!(
                        "{}: {} in {} calls, {} of the phase",
                        phase.name,
                        time_ms(row.total_ms),
                        count(row.calls),
                        percent(row.share)
                    ),
                    format!(
                        "{} at {:.2} operations per byte",
                        scaled(rate, "op/s"),
                        intensity
                    ),
                ];
                if let (Some(reads), Some(arithmetic)) = (row.bandwidth_share, row.ops_share) {
                    lines.push(format!(
                        "{} of read bandwidth, {} of peak arithmetic",
                        percent(reads),
                        percent(arithmetic)
                    ));
                }
                if let Some(bound) = row.bound {
                    lines.push(format!("bound by {}", bound_name(bound)));
                }
                dots.push(Dot {
                    phase: &phase.name,
                    kind: &row.kind,
                    colour: kinds.colour(&row.kind).unwrap_or(8),
                    share,
                    intensity,
                    rate,
                    lines,
                });
            }
        }
        Roofline {
            read: ceilings
                .map(|ceilings| ceilings.read_bytes_per_s)
                .filter(is_rate),
            roofs: [
                roof("8-bit", |c| c.i8_ops_per_s),
                roof("floats", |c| c.f32_ops_per_s),
            ]
            .into_iter()
            .flatten()
            .collect(),
            dots,
            n_without_place,
        }
    }
}

impl<'a> Timeline<'a> {
    fn of(profile: &Profile, placed: &[Placed<'a>], kinds: &Kinds<'a>) -> Timeline<'a> {
        // The first spans of both lanes.
        let mut ordered: Vec<_> = placed.iter().collect();
        ordered.sort_by_key(|placed| placed.start_ns);
        ordered.truncate(MAX_SPANS);

        // The rows of a track follow those of the previous tracks.
        let number = |lane: Lane| usize::from(lane == Lane::Device);
        let mut depths: HashMap<(usize, usize), usize> = HashMap::new();
        for placed in &ordered {
            let n_rows = depths
                .entry((number(placed.span.lane), placed.track))
                .or_default();
            *n_rows = (*n_rows).max(placed.depth + 1);
        }
        let row = |placed: &Placed<'_>| -> usize {
            let above = (0..placed.track)
                .filter_map(|track| depths.get(&(number(placed.span.lane), track)));
            above.sum::<usize>() + placed.depth
        };
        let mut names = Interned::default();
        let mut kind_names = Interned::default();
        let us = |ns: u64| ns as f64 / 1e3;
        let spans = ordered
            .iter()
            .map(|placed| {
                (
                    names.index(&placed.span.name),
                    kind_names.index(&placed.span.kind),
                    number(placed.span.lane),
                    row(placed),
                    us(placed.start_ns),
                    us(placed.end_ns - placed.start_ns),
                )
            })
            .collect();
        let kind = |name: &&'a str| Kind {
            name,
            colour: kinds.colour(name),
        };
        Timeline {
            names: names.strings,
            kinds: kind_names.strings.iter().map(kind).collect(),
            lanes: LANES
                .map(|lane| match lane {
                    Lane::Cpu => "CPU".to_owned(),
                    Lane::Device => format!("Device: {}", profile.machine.device),
                })
                .to_vec(),
            spans,
            n_left_out: placed.len().saturating_sub(MAX_SPANS),
        }
    }
}

/// Numbers strings.
#[derive(Default)]
struct Interned<'a> {
    strings: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Interned<'a> {
    fn index(&mut self, string: &'a str) -> usize {
        *self.numbers.entry(string).or_insert_with(|| {
            self.strings.push(string);
            self.strings.len() - 1
        })
    }
}

/// Returns the section around the roofline plot.
pub(super) fn roofline(profile: &Profile, data: &Data<'_>, kinds: &Kinds<'_>) -> String {
    let roofline = &data.roofline;
    if roofline.dots.is_empty() {
        return not_available("no operation has both a time and a known amount of work");
    }
    let shape = |phase: &Phase| match phase.name.as_str() {
        "prefill" => "squares",
        _ => "circles",
    };
    let boxes: String = profile
        .phases
        .iter()
        .map(|phase| {
            let name = Escaped(&phase.name);
            format!("<label><input type=\"checkbox\" checked data-phase=\"{name}\"> {name} ({})</label>\n", shape(phase))
        })
        .collect();
    let mut remarks = match roofline.read {
        None => not_available("ceilings, because this run did not measure the machine's peak rates"),
        Some(_) if roofline.roofs.is_empty() => not_available("arithmetic peaks, because only the read bandwidth is measured on this device"),
        Some(_) => "<p class=\"muted\">The lines are this machine's peak rates, measured in the same run. An operation on the slope is limited by \
                    memory, one under a flat line by arithmetic, one far below both by something else. Above the lines, \
                    its data came from caches.</p>\n"
            .to_owned(),
    };
    if let Some(us) = profile.ceilings.and_then(|ceilings| ceilings.start_us) {
        remarks += &format!(
            "<p class=\"muted\">Starting an operation costs {}; operations that take little longer are limited by that.</p>\n",
            time_ms(us / 1e3)
        );
    }
    if roofline.n_without_place > 0 {
        remarks += &format!(
            "<p class=\"muted\">{} rows are omitted because they do no arithmetic or read no memory.</p>\n",
            count(roofline.n_without_place as u64)
        );
    }
    format!(
        "<div class=\"controls\">{boxes}<span class=\"muted\">the area of a mark shows its share of the phase's time</span></div>\n\
         <figure><div class=\"plot\" id=\"roofline-plot\"></div></figure>\n{}{remarks}",
        kinds.legend(|kind| roofline.dots.iter().any(|dot| dot.kind == kind))
    )
}

/// Returns the section around the timeline.
pub(super) fn timeline(data: &Data<'_>, kinds: &Kinds<'_>) -> String {
    let timeline = &data.timeline;
    if timeline.spans.is_empty() {
        return not_available("this run recorded no timeline");
    }
    let left_out = match timeline.n_left_out {
        0 => String::new(),
        n => format!(
            "<p class=\"missing\">{} later spans are omitted here; a trace (--trace) has them all.</p>\n",
            count(n as u64)
        ),
    };
    format!(
        "<div class=\"controls\"><button type=\"button\" data-zoom=\"+\">Zoom in</button>\
         <button type=\"button\" data-zoom=\"-\">Zoom out</button><button type=\"button\" data-zoom=\"h\">Steps</button>\
         <button type=\"button\" data-zoom=\"0\">All</button>\
         <span class=\"muted\">drag to move, Ctrl and wheel to zoom; with keyboard focus also the wheel, arrows, + and -</span></div>\n\
         <figure id=\"timeline-plot\"><canvas tabindex=\"0\" role=\"img\" aria-label=\"Timeline of {} spans; the tables below have the same times by operation\"></canvas></figure>\n\
         {}{left_out}",
        count(timeline.spans.len() as u64),
        kinds.legend(|kind| timeline.kinds.iter().any(|shown| shown.name == kind))
    )
}
