//! Constraints that fail end their own request.

use std::collections::BTreeMap;

use super::*;
use crate::event::StopCause;
use crate::recorder::{Chain, Sizes, always, expected};
use rocmforge_gguf::TokenId;
use rocmforge_plan::{Batch, Constraint, ConstraintError, Progress};

/// Works for some tokens, then fails.
#[derive(Clone)]
struct Failing {
    n_left: usize,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    NoMask,
    Panic,
    Refuse,
}

impl Constraint for Failing {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        allowed.fill(u32::MAX);
        match (self.n_left, self.how) {
            (0, How::NoMask) => Err(ConstraintError("no more".into())),
            (0, How::Panic) => panic!("a defect"),
            _ => Ok(()),
        }
    }

    fn accept(&mut self, _: TokenId) -> Result<Progress, ConstraintError> {
        match (self.n_left, self.how) {
            (0, How::Refuse) => Err(ConstraintError("no more".into())),
            (n_left, _) => {
                self.n_left = n_left.saturating_sub(1);
                Ok(Progress::Open)
            }
        }
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_that_fails_ends_its_request_alone() {
    for how in [How::NoMask, How::Panic, How::Refuse] {
        for n_left in [0, 3] {
            let mut engine = Sizes::small(4).engine(always());
            let free = Request::greedy(vec![1, 2], 10);
            let chained = Request {
                constraint: Some(Box::new(Chain {
                    state: 7,
                    n_left: 6,
                })),
                ..free.clone()
            };
            let failing = Request {
                constraint: Some(Box::new(Failing { n_left, how })),
                ..free.clone()
            };
            let requests = [free, failing, chained];
            let ids = requests
                .clone()
                .map(|request| engine.submit(request).unwrap());
            let mut tokens: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
            let (mut failed, mut finished) = (Vec::new(), Vec::new());
            while !engine.is_idle() {
                for event in engine.step().unwrap() {
                    let id = event.request();
                    match event {
                        Event::Token { id: token, .. } => tokens.entry(id).or_default().push(token),
                        Event::Failed { failure, .. } => failed.push((id, failure.to_string())),
                        Event::Finished { reason, .. } => finished.push((id, reason)),
                        _ => {}
                    }
                }
                engine.check_integrity().unwrap();
            }
            assert_eq!(failed.len(), 1, "{failed:?}");
            assert_eq!(failed[0].0, ids[1]);
            let part = if how == How::Panic {
                "not computed"
            } else {
                "no more"
            };
            assert!(failed[0].1.contains(part), "{failed:?}");
            assert_eq!(tokens.get(&ids[1]).map_or(0, Vec::len), n_left);
            for at in [0, 2] {
                assert_eq!(tokens[&ids[at]], expected(&requests[at], 32, 4).ids);
            }
            let complete = FinishReason::Stop(StopCause::Constraint);
            assert!(finished.contains(&(ids[2], complete)), "{finished:?}");
            assert_eq!(engine.stats().blocks.used, 0);
        }
    }
}

/// A failed step leaves steps in flight that wait for masks which never come.
#[test]
fn constrained_sequences_outlive_failed_steps_and_the_engine() {
    let requests: Vec<Request> = (0..3)
        .map(|i| Request {
            constraint: Some(Box::new(Chain {
                state: u64::from(i),
                n_left: 20,
            })),
            ..Request::greedy(vec![i, 3], 8)
        })
        .collect();
    for failing in 0..10 {
        let fail = move |batch: &Batch| match batch.step == failing {
            true => Err(DeviceError::LostStep {
                step: failing,
                found: 0,
            }
            .into()),
            false => Ok(()),
        };
        let mut engine = Sizes::small(4).engine(Box::new(fail));
        let ids: Vec<RequestId> = requests
            .iter()
            .map(|request| engine.submit(request.clone()).unwrap())
            .collect();
        let mut tokens: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Token { request, id, .. } = event {
                    tokens.entry(request).or_default().push(id);
                }
            }
        }
        for (request, id) in requests.iter().zip(&ids) {
            assert_eq!(tokens[id], expected(request, 32, 4).ids, "{failing}");
        }
        // The engine ends with steps in flight.
        let mut engine = Sizes::small(4).engine(always());
        for request in &requests {
            engine.submit(request.clone()).unwrap();
        }
        for _ in 0..failing {
            engine.step().unwrap();
        }
    }
}

/// More sequences than threads, some of which are aborted while their masks are computed.
#[test]
fn many_constrained_sequences_are_each_as_alone() {
    let mut engine = Sizes::small(40).engine(always());
    let requests: Vec<Request> = (0..40)
        .map(|i| Request {
            constraint: Some(Box::new(Chain {
                state: u64::from(i),
                n_left: 20,
            })),
            ..Request::greedy(vec![i % 50, 3], 15)
        })
        .collect();
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let mut tokens: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
    let mut n_steps = 0;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { request, id, .. } = event {
                tokens.entry(request).or_default().push(id);
            }
        }
        if n_steps < 10 {
            engine.abort(ids[4 * n_steps]);
        }
        n_steps += 1;
    }
    for (i, (request, id)) in requests.iter().zip(&ids).enumerate() {
        if i % 4 != 0 {
            assert_eq!(tokens[id], expected(request, 32, 4).ids, "{i}");
        }
    }
}
