//! Tests of the flame graph: widths are times, names are text, and collapsed stacks add up.

use rocmforge_profile::schema::Profile;
use rocmforge_report::flamegraph;

use crate::fixture;
use crate::hostile::{HOSTILE, hostile};

fn svg(profile: &Profile) -> String {
    let mut svg = Vec::new();
    flamegraph::write(profile, &mut svg).unwrap();
    String::from_utf8(svg).unwrap()
}

/// Name, x and width of the frames, from the attributes of the inner `svg` elements.
fn frames(svg: &str) -> Vec<(String, f64, f64)> {
    let between = |text: &str, open: &str, close: &str| {
        let from = text.find(open).unwrap() + open.len();
        text[from..from + text[from..].find(close).unwrap()].to_owned()
    };
    svg.split("<g class=\"frame ")
        .skip(1)
        .map(|frame| {
            let number = |open: &str| between(frame, open, "\"").parse().unwrap();
            (
                between(frame, "y=\"17\">", "</text>"),
                number("<svg x=\""),
                number(" width=\""),
            )
        })
        .collect()
}

#[test]
fn widths_are_times() {
    let profile = fixture::cpu();
    let frames = frames(&svg(&profile));
    let total: f64 = profile
        .phases
        .iter()
        .map(|phase| phase.ops_ms + phase.between_ops_ms)
        .sum();
    let width = |ms: f64| ms / total * 1176.0;
    assert_eq!(frames[0].0, "run");
    assert!((frames[0].2 - 1176.0).abs() < 0.01);
    let n_ops: usize = profile.phases.iter().map(|phase| phase.ops.len()).sum();
    for phase in &profile.phases {
        let (_, x, wide) = frames.iter().find(|frame| frame.0 == phase.name).unwrap();
        assert!((wide - width(phase.ops_ms + phase.between_ops_ms)).abs() < 0.01);
        for op in &phase.ops {
            let inside = |frame: &&(String, f64, f64)| {
                frame.1 >= x - 0.01 && frame.1 + frame.2 <= x + wide + 0.01
            };
            let frame = frames
                .iter()
                .filter(inside)
                .find(|frame| frame.0 == op.name)
                .unwrap();
            assert!((frame.2 - width(op.total_ms)).abs() < 0.01, "{}", op.name);
        }
    }
    // run, phases, types in each, operations, and the time between operations of each phase.
    assert_eq!(frames.len(), 1 + 2 + 2 * 6 + n_ops + 2);
}

#[test]
fn stacks_add_up() {
    let profile = hostile(&fixture::cpu());
    let mut text = Vec::new();
    flamegraph::collapsed(&profile, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let mut total = 0;
    for line in text.lines() {
        let (stack, us) = line.rsplit_once(' ').unwrap();
        total += us.parse::<u64>().unwrap();
        assert!((3..=4).contains(&stack.split(';').count()), "{line}");
        assert!(
            stack.starts_with("run;prefill;") || stack.starts_with("run;decode;"),
            "{line}"
        );
    }
    let want: f64 = profile
        .phases
        .iter()
        .map(|phase| phase.ops_ms + phase.between_ops_ms)
        .sum();
    assert!((total as f64 / 1e3 - want).abs() < 0.1, "{total} {want}");
}

#[test]
fn draws_any_profile() {
    assert!(svg(&fixture::bare()).contains("n/a: no operation was timed"));
    let svg = svg(&hostile(&fixture::cpu()));
    assert_eq!(svg.matches("<script>").count(), 1);
    assert!(!svg.contains(HOSTILE) && !svg.contains("<img") && !svg.contains('\0'));
    assert_eq!(svg.matches("]]>").count(), 2);
}
