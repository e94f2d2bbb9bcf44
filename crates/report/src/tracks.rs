//! Arranges the spans of a lane on tracks where they only nest, as trace viewers require.
//!
//! Times become whole nanoseconds since the first span. A span that partly overlaps another, such as a copy concurrent
//! with a kernel, goes to the next track of its lane.

use std::cmp::Reverse;

use rocmforge_profile::schema::{Lane, Span};

/// A span with its position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placed<'a> {
    pub(super) span: &'a Span,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// Track of its lane, from 0.
    pub(super) track: usize,
    /// Number of enclosing spans on the track.
    pub(super) depth: usize,
    /// Whether it encloses no other span.
    pub(super) is_leaf: bool,
}

/// Most tracks per lane. A span that fits on none is dropped.
const MAX_TRACKS: usize = 16;

/// Tolerance for rounding errors: ends this close count as equal.
const SLACK_NS: u64 = 1;

/// Both lanes, in the order of drawing.
pub(super) const LANES: [Lane; 2] = [Lane::Cpu, Lane::Device];

/// Returns the spans sorted by lane, then by start, outer before inner. Spans with non-finite times or negative
/// durations are dropped.
pub(super) fn place(spans: &[Span]) -> Vec<Placed<'_>> {
    let times = |span: &Span| (span.start_us, span.start_us + span.duration_us);
    let is_sound = |span: &&Span| {
        times(span).1.is_finite() && span.start_us.is_finite() && span.duration_us >= 0.0
    };
    let origin = spans
        .iter()
        .filter(is_sound)
        .map(|span| span.start_us)
        .fold(f64::INFINITY, f64::min);
    let ns = |us: f64| ((us - origin) * 1e3).round() as u64;
    let mut all = Vec::with_capacity(spans.len());
    for lane in LANES {
        let mut ordered: Vec<_> = spans
            .iter()
            .filter(is_sound)
            .filter(|span| span.lane == lane)
            .collect();
        ordered.sort_by_key(|span| (ns(span.start_us), Reverse(ns(times(span).1)), span.depth));
        place_lane(
            ordered
                .into_iter()
                .map(|span| (span, ns(span.start_us), ns(times(span).1))),
            &mut all,
        );
    }
    all
}

fn place_lane<'a>(spans: impl Iterator<Item = (&'a Span, u64, u64)>, all: &mut Vec<Placed<'a>>) {
    // The open spans of each track, outermost first, as indices into `all`.
    let mut tracks: Vec<Vec<usize>> = Vec::new();
    for (span, mut start_ns, mut end_ns) in spans {
        let mut track = 0;
        loop {
            if track == tracks.len() {
                tracks.push(Vec::new());
            }
            let open = &mut tracks[track];
            while let Some(ended) = open.pop_if(|outer| all[*outer].end_ns <= start_ns + SLACK_NS) {
                // A span of zero duration may be inside one that starts with it.
                if all[ended].start_ns == start_ns && end_ns <= all[ended].end_ns {
                    open.push(ended);
                    break;
                }
                start_ns = start_ns.max(all[ended].end_ns);
                end_ns = end_ns.max(start_ns);
            }
            match open.last() {
                Some(outer) if end_ns > all[*outer].end_ns + SLACK_NS => track += 1,
                outer => {
                    if let Some(&outer) = outer {
                        all[outer].is_leaf = false;
                        end_ns = end_ns.min(all[outer].end_ns);
                    }
                    break;
                }
            }
            if track == MAX_TRACKS {
                break;
            }
        }
        if track == MAX_TRACKS {
            continue;
        }
        let depth = tracks[track].len();
        tracks[track].push(all.len());
        all.push(Placed {
            span,
            start_ns,
            end_ns,
            track,
            depth,
            is_leaf: true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lane: Lane, start_us: f64, duration_us: f64) -> Span {
        Span {
            name: format!("{start_us}+{duration_us}"),
            kind: "matmul".to_owned(),
            lane,
            start_us,
            duration_us,
            depth: 0,
        }
    }

    #[test]
    fn spans_nest_or_go_to_another_track() {
        use Lane::{Cpu, Device};
        // (lane, start, duration) and the expected (track, depth, is_leaf).
        let cases = [
            ((Cpu, 10.0, 100.0), (0, 0, false)),
            ((Cpu, 10.0, 40.0), (0, 1, true)),
            ((Cpu, 50.0, 60.0), (0, 1, false)),
            ((Cpu, 60.0, 0.0), (0, 2, true)),
            // Overlaps the end of the second.
            ((Cpu, 100.0, 30.0), (1, 0, true)),
            ((Cpu, 120.0, 30.0), (0, 0, true)),
            ((Device, 10.0, 5.0), (0, 0, true)),
            // Starts a rounding error before the previous one ends.
            ((Device, 14.9999, 5.0), (0, 0, true)),
        ];
        let spans: Vec<_> = cases
            .iter()
            .map(|((lane, start, duration), _)| span(*lane, *start, *duration))
            .collect();
        let placed = place(&spans);
        assert_eq!(placed.len(), cases.len());
        for (placed, ((_, start, _), want)) in placed.iter().zip(cases) {
            assert_eq!(
                (placed.track, placed.depth, placed.is_leaf),
                want,
                "{}",
                placed.span.name
            );
            assert!(placed.start_ns.abs_diff(((start - 10.0) * 1e3) as u64) <= 1);
        }
    }

    #[test]
    fn drops_spans_without_valid_times() {
        let spans = [
            (f64::NAN, 1.0),
            (0.0, f64::INFINITY),
            (0.0, -1.0),
            (5.0, 1.0),
        ]
        .map(|(start, duration)| span(Lane::Cpu, start, duration));
        let placed = place(&spans);
        assert_eq!(
            placed
                .iter()
                .map(|p| (p.start_ns, p.end_ns))
                .collect::<Vec<_>>(),
            [(0, 1000)]
        );
        // Each starts within the previous one and ends after it: one track each.
        let stairs: Vec<_> = (0..40)
            .map(|i| span(Lane::Cpu, f64::from(i), 50.0))
            .collect();
        assert_eq!(
            place(&stairs).iter().map(|p| p.track).max(),
            Some(MAX_TRACKS - 1)
        );
    }
}
