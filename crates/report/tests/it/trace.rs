//! Tests of the trace against "Trace Event Format": required fields per kind of event, and nesting of the slices of a
//! thread, which Perfetto requires of complete events.

use std::collections::{BTreeMap, BTreeSet};

use rocmforge_profile::schema::Profile;
use rocmforge_report::trace;
use serde_json::Value;

use crate::fixture;
use crate::hostile::hostile;

/// The contents of a trace, from a strict reader.
#[derive(Default)]
struct Read {
    thread_names: BTreeMap<u64, String>,
    process_name: String,
    /// Name, kind, start and end in nanoseconds, per thread.
    slices: BTreeMap<u64, Vec<(String, String, u64, u64)>>,
    /// Time in microseconds and percent, per counter.
    counters: BTreeMap<String, Vec<(f64, f64)>>,
}

fn read(profile: &Profile) -> Read {
    let mut json = Vec::new();
    trace::write(profile, &mut json).unwrap();
    let trace: Value = serde_json::from_slice(&json).unwrap();
    assert!(["ms", "ns"].contains(&trace["displayTimeUnit"].as_str().unwrap()));
    let mut read = Read::default();
    for event in trace["traceEvents"].as_array().unwrap() {
        let name = event["name"].as_str().unwrap().to_owned();
        let tid = event["tid"].as_u64().unwrap();
        assert_eq!(event["pid"], 1);
        let number = |key: &str| {
            let x = event[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key} of {event}"));
            assert!(x.is_finite() && x >= 0.0, "{event}");
            x
        };
        let ns = |key: &str| (number(key) * 1e3).round() as u64;
        match event["ph"].as_str().unwrap() {
            "M" => {
                let text = || event["args"]["name"].as_str().unwrap().to_owned();
                match name.as_str() {
                    "process_name" => read.process_name = text(),
                    "thread_name" => assert_eq!(read.thread_names.insert(tid, text()), None),
                    "thread_sort_index" => assert!(event["args"]["sort_index"].is_u64()),
                    _ => panic!("metadata {event}"),
                }
            }
            "X" => {
                assert!(!event["cat"].as_str().unwrap().contains(','));
                let kind = event["args"]["kind"].as_str().unwrap().to_owned();
                let (start, duration) = (ns("ts"), ns("dur"));
                read.slices
                    .entry(tid)
                    .or_default()
                    .push((name, kind, start, start + duration));
            }
            "C" => {
                let percent = event["args"]["percent"].as_f64().unwrap();
                read.counters
                    .entry(name)
                    .or_default()
                    .push((number("ts"), percent));
            }
            other => panic!("event of kind {other}"),
        }
    }
    for (tid, slices) in &read.slices {
        assert!(
            read.thread_names.contains_key(tid),
            "thread {tid} has no name"
        );
        let mut open: Vec<u64> = Vec::new();
        let mut ordered = slices.clone();
        ordered.sort_by_key(|(_, _, start, end)| (*start, std::cmp::Reverse(*end)));
        for (name, _, start, end) in ordered {
            open.retain(|outer| *outer > start);
            assert!(
                open.last().is_none_or(|outer| end <= *outer),
                "{name} overlaps what it is not inside of"
            );
            open.push(end);
        }
    }
    read
}

#[test]
fn spans_become_slices_of_their_lanes() {
    for (profile, lanes) in [
        (fixture::cpu(), vec!["CPU"]),
        (
            fixture::gpu(),
            vec!["CPU", "Device: NVIDIA H200", "Device, concurrent (1)"],
        ),
        (fixture::bare(), vec![]),
    ] {
        let read = read(&profile);
        assert_eq!(read.process_name, "rocmforge: Llama 3.2 1B Instruct");
        assert_eq!(read.thread_names.values().collect::<Vec<_>>(), lanes);
        let slices: Vec<_> = read.slices.values().flatten().collect();
        assert_eq!(slices.len(), profile.timeline.len());
        let names = |of: &mut dyn Iterator<Item = (&str, &str)>| {
            of.map(|(name, kind)| (name.to_owned(), kind.to_owned()))
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(
            names(
                &mut slices
                    .iter()
                    .map(|(name, kind, ..)| (name.as_str(), kind.as_str()))
            ),
            names(
                &mut profile
                    .timeline
                    .iter()
                    .map(|span| (span.name.as_str(), span.kind.as_str()))
            )
        );
        // Times are exact to the nanosecond, or to two at the end of a nested span.
        let total: u64 = slices.iter().map(|(_, _, start, end)| end - start).sum();
        let want: f64 = profile
            .timeline
            .iter()
            .map(|span| span.duration_us * 1e3)
            .sum();
        assert!(
            (total as f64 - want).abs() <= 2.0 * slices.len() as f64,
            "{total} {want}"
        );
    }
}

#[test]
fn counters_add_up_to_the_busy_time() {
    let profile = fixture::cpu();
    let read = read(&profile);
    let busy = &read.counters["CPU busy"];
    assert!(
        busy.iter()
            .all(|(_, percent)| (0.0..=100.0).contains(percent)),
        "{busy:?}"
    );
    let area: f64 = busy
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0) * pair[0].1 / 100.0)
        .sum();
    let ran: f64 = profile
        .timeline
        .iter()
        .filter(|span| span.kind != "step")
        .map(|span| span.duration_us)
        .sum();
    assert!((area / ran - 1.0).abs() < 1e-3, "{area} {ran}");
    assert_eq!(busy.last().unwrap().1, 0.0);
}

#[test]
fn hostile_names_and_times_stay_data() {
    let mut profile = hostile(&fixture::gpu());
    profile.timeline[3].start_us = f64::NAN;
    profile.timeline[4].duration_us = f64::INFINITY;
    profile.timeline[5].duration_us = -1.0;
    let n: usize = read(&profile).slices.values().map(Vec::len).sum();
    assert_eq!(n, profile.timeline.len() - 3);
}
