//! Draws a flame graph of the run, its phases, their operation types and operations.
//!
//! Widths are times of a profiled run. [`write()`] writes a self-contained SVG file; in a browser, a click on a frame
//! zooms in. [`collapsed`] writes the same stacks as text for flamegraph.pl, inferno and speedscope. Source: B. Gregg,
//! "The Flame Graph", CACM 59(6), 2016.

use std::io::{self, Write};

use rocmforge_profile::schema::{Phase, Profile};

use super::html::Escaped;
use super::kinds::Kinds;
use super::numbers::{percent, time_ms};

const STYLE: &str = include_str!("assets/flamegraph.css");
const SCRIPT: &str = include_str!("assets/flamegraph.js");

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 12.0;
/// Space above the frames for title and subtitle.
const HEAD: f64 = 62.0;
const ROW: f64 = 26.0;
/// Levels: run, phase, type, operation.
const N_LEVELS: usize = 4;

/// A frame and its children.
struct Frame<'a> {
    name: &'a str,
    ms: f64,
    /// Operation type, which determines the colour.
    kind: Option<&'a str>,
    inner: Vec<Frame<'a>>,
}

/// Writes the flame graph as SVG.
///
/// # Errors
/// If writing to `out` fails.
pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let root = run(profile);
    let kinds = Kinds::of(profile, &[]);
    let height = HEAD + N_LEVELS as f64 * ROW + MARGIN;
    let title = format!("{} · {}", profile.model.name, profile.model.format);
    let note = format!(
        "{} of operations on {}, {} prompt tokens and {} generated",
        time_ms(root.ms),
        profile.machine.device,
        profile.workload.n_prompt,
        profile.workload.n_gen
    );
    write!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <title>Flame graph of {}</title>\n<style><![CDATA[\n{STYLE}]]></style>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"26\">{}</text>\n<text class=\"note\" x=\"{MARGIN}\" y=\"48\">{}</text>\n",
        Escaped(&title),
        Escaped(&title),
        Escaped(&note)
    )?;
    match root.ms > 0.0 {
        true => write_frame(
            &root,
            &kinds,
            Place {
                x: MARGIN,
                level: 0,
                px_per_ms: (WIDTH - 2.0 * MARGIN) / root.ms,
                total_ms: root.ms,
            },
            &mut out,
        )?,
        false => writeln!(
            out,
            "<text x=\"{MARGIN}\" y=\"{}\">n/a: no operation was timed</text>",
            HEAD + ROW
        )?,
    }
    write!(out, "<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>\n")
}

/// The position of a frame.
#[derive(Clone, Copy)]
struct Place {
    x: f64,
    level: usize,
    px_per_ms: f64,
    total_ms: f64,
}

fn write_frame(
    frame: &Frame<'_>,
    kinds: &Kinds<'_>,
    place: Place,
    out: &mut impl Write,
) -> io::Result<()> {
    let name = Escaped(frame.name);
    let class = frame
        .kind
        .map_or_else(|| "kn".to_owned(), |kind| kinds.class(kind));
    // Frames grow upwards: the run is the lowest row. An inner `svg` clips its text.
    let y = HEAD + (N_LEVELS - 1 - place.level) as f64 * ROW;
    writeln!(
        out,
        "<g class=\"frame {class}\" tabindex=\"0\"><title>{name}: {}, {}</title>\
         <svg x=\"{:.3}\" y=\"{y}\" width=\"{:.3}\" height=\"{ROW}\"><rect width=\"100%\" height=\"100%\"/>\
         <text x=\"6\" y=\"17\">{name}</text></svg></g>",
        time_ms(frame.ms),
        percent(frame.ms / place.total_ms),
        place.x,
        frame.ms * place.px_per_ms
    )?;
    let mut x = place.x;
    for inner in &frame.inner {
        let above = Place {
            x,
            level: place.level + 1,
            ..place
        };
        write_frame(inner, kinds, above, out)?;
        x += inner.ms * place.px_per_ms;
    }
    Ok(())
}

/// Writes one stack per line: names from the outside in, separated by semicolons, then whole microseconds.
///
/// # Errors
/// If writing to `out` fails.
pub fn collapsed(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    write_stacks(&run(profile), &mut Vec::new(), &mut out)
}

fn write_stacks<'a>(
    frame: &Frame<'a>,
    stack: &mut Vec<&'a str>,
    out: &mut impl Write,
) -> io::Result<()> {
    stack.push(frame.name);
    if frame.inner.is_empty() {
        // The format has no escapes.
        let names: Vec<_> = stack
            .iter()
            .map(|name| name.replace([';', '\n', '\r'], " "))
            .collect();
        let us = (frame.ms * 1e3).round() as u64;
        if us > 0 {
            writeln!(out, "{} {us}", names.join(";"))?;
        }
    }
    for inner in &frame.inner {
        write_stacks(inner, stack, out)?;
    }
    stack.pop();
    Ok(())
}

/// Builds the tree of a profile. Phases keep their order, the rest is sorted by time.
fn run(profile: &Profile) -> Frame<'_> {
    let inner: Vec<_> = profile.phases.iter().map(phase).collect();
    Frame::around("run", None, inner)
}

fn phase(phase: &Phase) -> Frame<'_> {
    let mut kinds: Vec<Frame> = Vec::new();
    for row in phase
        .ops
        .iter()
        .filter(|row| row.total_ms.is_finite() && row.total_ms > 0.0)
    {
        let op = Frame {
            name: &row.name,
            ms: row.total_ms,
            kind: Some(&row.kind),
            inner: Vec::new(),
        };
        match kinds.iter_mut().find(|kind| kind.name == row.kind) {
            Some(kind) => kind.inner.push(op),
            None => kinds.push(Frame::around(&row.kind, Some(&row.kind), vec![op])),
        }
    }
    for kind in &mut kinds {
        kind.ms = kind.inner.iter().map(|op| op.ms).sum();
        kind.inner.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    }
    kinds.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    if phase.between_ops_ms.is_finite() && phase.between_ops_ms > 0.0 {
        kinds.push(Frame {
            name: "between operations",
            ms: phase.between_ops_ms,
            kind: None,
            inner: Vec::new(),
        });
    }
    Frame::around(&phase.name, None, kinds)
}

impl<'a> Frame<'a> {
    fn around(name: &'a str, kind: Option<&'a str>, inner: Vec<Frame<'a>>) -> Frame<'a> {
        Frame {
            name,
            ms: inner.iter().map(|frame| frame.ms).sum(),
            kind,
            inner,
        }
    }
}
