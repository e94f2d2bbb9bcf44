//! Writes the timeline as a Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing.
//!
//! Format: "Trace Event Format" of the Catapult project. Complete events (`X`) with `ts` and `dur` in microseconds, a
//! thread per lane named by metadata events (`M`), and a counter (`C`) of each lane's utilization.

use std::io::{self, Write};

use rocmforge_profile::schema::{Lane, Profile};
use serde::Serialize;

use super::tracks::{self, LANES, Placed};

/// An event. Absent fields are not written.
#[derive(Serialize)]
struct Event<'a, A> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<String>,
    ph: &'static str,
    pid: u32,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: A,
}

/// Writes the events after the first.
struct Events<W>(W);

impl<W: Write> Events<W> {
    fn push(&mut self, event: &Event<'_, impl Serialize>) -> io::Result<()> {
        self.0.write_all(b",\n")?;
        serde_json::to_writer(&mut self.0, event)?;
        Ok(())
    }
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct SortIndex {
    sort_index: usize,
}

#[derive(Serialize)]
struct Kind<'a> {
    kind: &'a str,
}

#[derive(Serialize)]
struct Busy {
    percent: f64,
}

/// Facts that viewers show with the trace.
#[derive(Serialize)]
struct Facts<'a> {
    program: String,
    created: &'a str,
    command: &'a str,
    model: &'a str,
    format: &'a str,
    device: &'a str,
    prompt_tokens: usize,
    generated_tokens: usize,
}

const PID: u32 = 1;

/// Number of windows for which a counter has a value.
const COUNTER_WINDOWS: u64 = 200;

/// Writes the trace of `profile`'s timeline as a JSON object.
///
/// # Errors
/// If writing to `out` fails.
pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let placed = tracks::place(&profile.timeline);
    let facts = Facts {
        program: format!("rocmforge {}", profile.version),
        created: &profile.created,
        command: &profile.command,
        model: &profile.model.name,
        format: &profile.model.format,
        device: &profile.machine.device,
        prompt_tokens: profile.workload.n_prompt,
        generated_tokens: profile.workload.n_gen,
    };
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(&mut out, &facts)?;
    writeln!(out, ",\"traceEvents\":[")?;
    let process = format!("rocmforge: {}", profile.model.name);
    serde_json::to_writer(
        &mut out,
        &metadata("process_name", 0, Name { name: &process }),
    )?;
    let mut events = Events(&mut out);
    for lane in LANES {
        let mine: Vec<_> = placed
            .iter()
            .filter(|placed| placed.span.lane == lane)
            .collect();
        let Some(n_tracks) = mine.iter().map(|placed| placed.track + 1).max() else {
            continue;
        };
        for track in 0..n_tracks {
            let name = match (lane, track) {
                (Lane::Cpu, 0) => "CPU".to_owned(),
                (Lane::Device, 0) => format!("Device: {}", profile.machine.device),
                (Lane::Cpu, n) => format!("CPU, concurrent ({n})"),
                (Lane::Device, n) => format!("Device, concurrent ({n})"),
            };
            let tid = tid(lane, track);
            events.push(&metadata("thread_name", tid, Name { name: &name }))?;
            events.push(&metadata(
                "thread_sort_index",
                tid,
                SortIndex { sort_index: tid },
            ))?;
        }
        let counter = match lane {
            Lane::Cpu => "CPU busy",
            Lane::Device => "device busy",
        };
        for (ts_ns, percent) in busy(&mine) {
            events.push(&Event {
                name: counter,
                cat: None,
                ph: "C",
                pid: PID,
                tid: 0,
                ts: Some(us(ts_ns)),
                dur: None,
                args: Busy { percent },
            })?;
        }
    }
    for placed in &placed {
        events.push(&Event {
            name: &placed.span.name,
            // Categories are separated by commas.
            cat: Some(placed.span.kind.replace(',', " ")),
            ph: "X",
            pid: PID,
            tid: tid(placed.span.lane, placed.track),
            ts: Some(us(placed.start_ns)),
            dur: Some(us(placed.end_ns - placed.start_ns)),
            args: Kind {
                kind: &placed.span.kind,
            },
        })?;
    }
    write!(out, "\n]}}\n")
}

fn metadata<A>(name: &str, tid: usize, args: A) -> Event<'_, A> {
    Event {
        name,
        cat: None,
        ph: "M",
        pid: PID,
        tid,
        ts: None,
        dur: None,
        args,
    }
}

fn tid(lane: Lane, track: usize) -> usize {
    match lane {
        Lane::Cpu => 1 + track,
        Lane::Device => 101 + track,
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Returns for each window of a lane its start in nanoseconds and its utilization in percent by innermost spans; then
/// zero at the end of the lane.
fn busy(spans: &[&Placed<'_>]) -> Vec<(u64, f64)> {
    let first = spans
        .iter()
        .map(|placed| placed.start_ns)
        .min()
        .unwrap_or(0);
    let last = spans.iter().map(|placed| placed.end_ns).max().unwrap_or(0);
    let window = (last - first).div_ceil(COUNTER_WINDOWS).max(1);
    let mut busy_ns = vec![0; (last - first).div_ceil(window) as usize];
    let mut counted_to = first;
    let mut leaves: Vec<_> = spans.iter().filter(|placed| placed.is_leaf).collect();
    leaves.sort_by_key(|placed| placed.start_ns);
    for leaf in leaves {
        // Concurrent spans are counted once.
        let mut at = leaf.start_ns.max(counted_to);
        while at < leaf.end_ns {
            let index = (at - first) / window;
            let to = leaf.end_ns.min(first + (index + 1) * window);
            busy_ns[index as usize] += to - at;
            at = to;
        }
        counted_to = counted_to.max(leaf.end_ns);
    }
    let windows = busy_ns.iter().enumerate().map(|(i, ns)| {
        let start = first + i as u64 * window;
        let size = window.min(last - start);
        // One digit after the point.
        (start, (*ns as f64 / size as f64 * 1e3).round() / 10.0)
    });
    windows.chain([(last, 0.0)]).collect()
}
