//! What prompts may take of steps that other sequences need.

use std::sync::{Arc, Mutex};

use super::*;
use crate::recorder::{Sizes, expected};
use rocmforge_plan::Batch;

/// Rows of each sequence of a step, by the sequence's first position.
type Rows = Vec<(usize, usize)>;

/// Starts an engine that notes the rows of each step. `n_ctx` is 256, a step has up to 16 tokens, a page has 4.
fn noting(max_seqs: usize, step_target: Option<Duration>) -> (Engine, Arc<Mutex<Vec<Rows>>>) {
    let mut sizes = Sizes::small(max_seqs);
    sizes.limits.n_ctx = 256;
    sizes.limits.step_target = step_target;
    sizes.n_blocks = 64 * max_seqs;
    sizes.steps_in_flight = 1;
    let steps = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&steps);
    let note = move |batch: &Batch| {
        let rows = batch.seqs.iter().map(|seq| (seq.first_pos, seq.n_rows));
        noted.lock().unwrap().push(rows.collect());
        Ok(())
    };
    (sizes.engine(Box::new(note)), steps)
}

fn prompt(first: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (first + i * i) % 50).collect()
}

#[test]
fn sequences_that_generate_do_not_wait_for_a_prompt_before_them() {
    for step_target in [None, Some(Duration::ZERO)] {
        let (mut engine, steps) = noting(2, step_target);
        let short = Request::greedy(prompt(1, 3), 40);
        let id = engine.submit(short.clone()).unwrap();
        engine.step().unwrap();
        let long = Request {
            priority: 1,
            ..Request::greedy(prompt(2, 200), 2)
        };
        engine.submit(long).unwrap();
        let mut ids = Vec::new();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Token {
                    request, id: token, ..
                } = event
                    && request == id
                {
                    ids.push(token);
                }
            }
        }
        let of_first: Vec<u32> = expected(&short, 256, 4).ids;
        assert_eq!(ids[..], of_first[1..], "the first came before");
        // The short one has a row in each step until it ends, at position 3 + 39.
        let steps = steps.lock().unwrap();
        for (i, rows) in steps[1..40].iter().enumerate() {
            assert!(rows.contains(&(3 + i, 1)), "step {i}: {rows:?}");
        }
        // The prompt takes the rest, or a page.
        let of_prompt = |rows: &Rows| rows.iter().map(|(_, n)| n).sum::<usize>() - 1;
        let n = step_target.map_or(15, |_| 4);
        // The time of a first step with a prompt is to be seen.
        assert!(
            steps[3..10].iter().all(|rows| of_prompt(rows) == n),
            "{steps:?}"
        );
    }
}

#[test]
fn a_long_prompt_leaves_half_of_a_step_to_others() {
    let (mut engine, steps) = noting(4, None);
    let long = engine.submit(Request::greedy(prompt(1, 200), 2)).unwrap();
    engine.step().unwrap();
    let short = engine.submit(Request::greedy(prompt(2, 12), 2)).unwrap();
    let mut ended = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { request, .. } = event {
                ended.push(request);
            }
        }
    }
    assert_eq!(ended, [short, long]);
    let steps = steps.lock().unwrap();
    // Alone it takes a whole step.
    assert_eq!(steps[0], [(0, 16)]);
    assert_eq!(steps[1], [(16, 8), (0, 8)]);
    assert_eq!(steps[2], [(24, 8), (8, 4)]);
    assert_eq!(steps[3], [(32, 15), (12, 1)]);
    assert_eq!(steps[4], [(47, 16)]);
}
