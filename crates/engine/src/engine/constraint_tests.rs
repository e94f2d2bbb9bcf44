//! Constraints that fail end their own request.

use std::collections::BTreeMap;

use super::*;
use crate::event::StopCause;
use crate::recorder::{Answers, Chain, Knowing, Sizes, always, expected};
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

/// A [`Chain`] that forces some tokens: where its state says so, it allows only one at a time.
#[derive(Clone)]
struct Forcing {
    chain: Chain,
    /// The forced tokens that have not come.
    left: Vec<TokenId>,
    asks: bool,
}

impl Forcing {
    fn new(state: u64, asks: bool) -> Box<Forcing> {
        let n_left = usize::MAX;
        Box::new(Forcing {
            chain: Chain { state, n_left },
            left: Vec::new(),
            asks,
        })
    }
}

impl Constraint for Forcing {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        let Some(&first) = self.left.first() else {
            return self.chain.mask(allowed);
        };
        allowed.fill(0);
        allowed[first as usize / 32] |= 1 << (first % 32);
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
        if !self.left.is_empty() {
            assert_eq!(token, self.left.remove(0));
            return Ok(Progress::Open);
        }
        let progress = self.chain.accept(token)?;
        let n = self.chain.state as TokenId % 6;
        self.left = (0..n).map(|i| (token + i) % 50).collect();
        Ok(progress)
    }

    fn forced(&mut self) -> Vec<TokenId> {
        match self.asks {
            true => self.left.clone(),
            false => Vec::new(),
        }
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Tokens and steps of requests that run together, with a step that may fail.
fn answers(requests: &[Request], steps_in_flight: usize, failing: u64) -> (Vec<Vec<TokenId>>, u64) {
    let before = move |batch: &Batch| match batch.step == failing {
        true => Err(crate::recorder::lost_step()),
        false => Ok(()),
    };
    let sizes = Sizes {
        steps_in_flight,
        n_slots: 12,
        ..Sizes::small(4)
    };
    let mut engine = sizes.engine(Box::new(before));
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let mut tokens: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
    while !engine.is_idle() {
        // A step that fails with one request alone is tried again.
        let events = engine.step().unwrap_or_default();
        for event in events {
            match event {
                Event::Token { request, id, .. } => tokens.entry(request).or_default().push(id),
                Event::Failed { failure, .. } => panic!("{failure}"),
                _ => {}
            }
        }
        engine.check_integrity().unwrap();
    }
    let answers = ids.iter().map(|id| tokens.remove(id).unwrap()).collect();
    (answers, engine.n_computed_steps())
}

/// Forced tokens are those that would have come one by one, in fewer steps.
#[test]
fn forced_tokens_take_one_step() {
    let request = |state: u32, asks: bool, n: usize| Request {
        constraint: Some(Forcing::new(u64::from(state), asks)),
        ..Request::greedy(vec![state, 3, 7], n)
    };
    for steps_in_flight in [1, 2] {
        for n in [3, 12, 29] {
            let requests = |asks: bool| [1, 2, 3].map(|state| request(state, asks, n));
            let (by_step, n_steps) = answers(&requests(false), steps_in_flight, u64::MAX);
            assert_eq!(by_step[0], expected(&requests(false)[0], 32, 4).ids);
            let (forced, n_fewer) = answers(&requests(true), steps_in_flight, u64::MAX);
            assert_eq!(forced, by_step);
            assert!(n < 12 || n_fewer < n_steps, "{n_fewer} {n_steps}");
            println!("{n} tokens, {steps_in_flight} in flight: {n_steps} steps, {n_fewer}");
            // Beside one that chooses every token, and after a step that failed.
            let mixed = [
                request(1, true, n),
                request(2, false, n),
                request(3, true, n),
            ];
            for failing in 0..8 {
                let (mixed, _) = answers(&mixed, steps_in_flight, failing);
                assert_eq!(mixed, by_step, "{failing}");
            }
        }
    }
    // Where every choice is reported, each has its step.
    let with_logprobs = |asks| Request {
        logprobs: Some(1),
        ..request(1, asks, 20)
    };
    let each = answers(&[with_logprobs(false)], 2, u64::MAX);
    assert_eq!(answers(&[with_logprobs(true)], 2, u64::MAX), each);
}

/// A [`Chain`] whose masks take longer than drafts are worth.
#[derive(Clone)]
struct Slow(Chain);

impl Constraint for Slow {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        std::thread::sleep(Duration::from_millis(21));
        self.0.mask(allowed)
    }

    fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
        self.0.accept(token)
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// A draft whose masks take too long costs their time once, and no token.
#[test]
fn a_slow_constraint_ends_drafts() {
    let request = Request {
        constraint: Some(Box::new(Slow(Chain {
            state: 5,
            n_left: 50,
        }))),
        ..Request::greedy(vec![1, 2], 12)
    };
    let answer = expected(&request, 32, 4).ids;
    let mut engine = Sizes::small(1).engine(always());
    let id = engine.submit(request).unwrap();
    let answers = Answers::default();
    { answers.lock().unwrap() }.insert(id, (2, answer.clone()));
    let drafter = Knowing {
        answers,
        one_of: u64::MAX,
        n_draws: 0,
    };
    engine.speculate(Box::new(drafter), DraftLength::Always(5));
    let mut tokens = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { id, .. } = event {
                tokens.push(id);
            }
        }
        engine.check_integrity().unwrap();
    }
    assert_eq!(tokens, answer);
    assert_eq!(engine.stats().drafts.n_drafted, 5, "one draft");
}
