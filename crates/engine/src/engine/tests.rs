//! The engine against a device that computes nothing but remembers everything: its "model" is a hash of what it made of
//! exactly those tokens that the block table makes visible, so a wrong slot, a stale block, a lost or
//! doubled token, a wrong prefix or a token that is moved wrongly changes the output.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::*;
use crate::request::PromptOutput;
use rocmforge_gguf::TokenId;
use rocmforge_plan::KvShift;
use rocmforge_plan::SamplingParams;
use rocmforge_plan::{Batch, InputToken, StepOutput, Want};
use rocmforge_runtime::gpu::Offload;
use rocmforge_runtime::{Backend, OpObserver, Reply, StepObserver};
use rocmforge_runtime::{DeviceError, PrefixSharing, RuntimeError};

const N_VOCAB: u32 = 50;

/// What the device makes of `token` after what it made of the tokens before it.
fn computed(before: &[u64], token: TokenId) -> u64 {
    let fold = |h: u64, x: u64| (h ^ x).wrapping_mul(0x0100_0000_01b3);
    fold(
        before.iter().copied().fold(0xcbf2_9ce4_8422_2325, fold),
        u64::from(token) + 1,
    )
}

/// What the device makes of all `tokens`.
fn states(tokens: &[TokenId]) -> Vec<u64> {
    tokens.iter().fold(Vec::new(), |mut states, &token| {
        states.push(computed(&states, token));
        states
    })
}

fn next_token(state: u64) -> TokenId {
    ((state >> 20) % u64::from(N_VOCAB)) as TokenId
}

fn score(state: u64, target: TokenId) -> f32 {
    -(((state >> 30) % 1000 + u64::from(target)) as f32)
}

/// What a slot holds.
#[derive(Clone, Copy)]
struct Entry {
    state: u64,
    position: usize,
}

/// A cache of what tokens became instead of keys and values.
struct Recorder {
    page: usize,
    slots: Vec<Option<Entry>>,
    last: Vec<Option<TokenId>>,
}

impl Recorder {
    fn run(&mut self, batch: &Batch) -> StepOutput {
        assert!(!batch.tokens.is_empty(), "an empty step was submitted");
        batch.shifts.iter().for_each(|shift| self.shift(shift));
        let resolve = |token: &InputToken| match *token {
            InputToken::Id(id) => id,
            InputToken::Sampled { row } => self.last[row].expect("the row sampled"),
        };
        let tokens: Vec<TokenId> = batch.tokens.iter().map(resolve).collect();
        let mut made = vec![0; tokens.len()];
        for seq in &batch.seqs {
            for row in seq.first_row..seq.first_row + seq.n_rows {
                let position = seq.first_pos + row - seq.first_row;
                let slot =
                    |p: usize| seq.block_table[p / self.page] as usize * self.page + p % self.page;
                assert_eq!(batch.positions[row] as usize, position);
                assert_eq!(batch.slots[row] as usize, slot(position));
                let before: Vec<u64> = (0..position)
                    .map(|p| {
                        let entry = self.slots[slot(p)].expect("written before");
                        assert_eq!(entry.position, p, "its place in the sequence");
                        entry.state
                    })
                    .collect();
                made[row] = computed(&before, tokens[row]);
                let state = made[row];
                self.slots[slot(position)] = Some(Entry { state, position });
            }
        }
        let wanted = batch.logits.iter();
        let rows: Vec<RowOutput> = wanted
            .map(|wanted| output(made[wanted.row], batch.positions[wanted.row], &wanted.want))
            .collect();
        let sampled = |row: &RowOutput| {
            if let RowOutput::Sampled { sampled, .. } = row {
                Some(sampled.id)
            } else {
                None
            }
        };
        self.last = rows.iter().map(sampled).collect();
        StepOutput {
            step: batch.step,
            rows,
        }
    }

    fn shift(&mut self, shift: &KvShift) {
        for (runs, back_by) in [(&shift.copied, 0), (&shift.turned, shift.back_by)] {
            for run in runs {
                for i in 0..run.n_tokens {
                    let mut entry = self.slots[(run.from + i) as usize].expect("written before");
                    entry.position -= back_by as usize;
                    self.slots[(run.to + i) as usize] = Some(entry);
                }
            }
        }
    }
}

fn output(state: u64, position: u32, want: &Want) -> RowOutput {
    match want {
        Want::Sample(_) => RowOutput::Sampled {
            sampled: Sampled {
                id: next_token(state),
                mu: None,
            },
            top: Vec::new(),
        },
        Want::Score { target, .. } => RowOutput::Scored {
            logprob: score(state, *target),
            top: Vec::new(),
        },
        Want::Logits => RowOutput::Logits(vec![position as f32]),
    }
}

impl Backend for Recorder {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        reply(Ok(self.run(&batch)));
    }

    fn observe(&mut self, _: Option<Box<dyn OpObserver>>) {}

    fn observe_steps(&mut self, _: Option<Box<dyn StepObserver>>) {}

    fn info(&self) -> BackendInfo {
        BackendInfo {
            device: "recorder".into(),
            slow_ops: Vec::new(),
            kv_bytes: 0,
            device_memory: None,
            graphs: false,
            n_tuned: 0,
            notices: Vec::new(),
            offload: Offload::NOTHING,
            parts: Vec::new(),
        }
    }
}

fn engine(limits: Limits, n_blocks: usize, page: usize, steps_in_flight: usize) -> Engine {
    let recorder = Recorder {
        page,
        slots: vec![None; n_blocks * page],
        last: Vec::new(),
    };
    let executor = Executor::start(1, move || Ok((recorder, ()))).unwrap().0;
    Engine::new(
        executor,
        limits,
        BlockPool::new(n_blocks, page),
        steps_in_flight,
        N_VOCAB as usize,
        None,
    )
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

#[derive(Debug, Default, PartialEq)]
struct Result {
    ids: Vec<TokenId>,
    scores: Vec<(usize, f32)>,
    logits: Vec<usize>,
    prompts_done: usize,
    reason: Option<FinishReason>,
}

fn expected(request: &Request, n_ctx: usize, page: usize) -> Result {
    // What the cache holds, position by position.
    let mut visible = states(&request.prompt);
    let mut result = Result {
        prompts_done: 1,
        ..Result::default()
    };
    match request.prompt_output {
        PromptOutput::Nothing => {}
        PromptOutput::Scores { from, .. } => {
            result.scores = (from.max(1)..request.prompt.len())
                .map(|p| (p, score(visible[p - 1], request.prompt[p])))
                .collect();
        }
        PromptOutput::Logits => result.logits = (0..request.prompt.len()).collect(),
    }
    let mut n_tokens = request.prompt.len();
    let policy = request.context_policy.unwrap_or_default();
    while result.ids.len() < request.max_tokens {
        if policy == ContextPolicy::Stop && n_tokens == n_ctx {
            break;
        }
        let id = next_token(*visible.last().unwrap());
        result.ids.push(id);
        n_tokens += 1;
        if let ContextPolicy::Shift { n_sinks } = policy
            && visible.len() == n_ctx
        {
            let n = crate::context::n_forgotten(n_ctx, n_sinks, page);
            visible.drain(n_sinks..n_sinks + n);
        }
        visible.push(computed(&visible, id));
    }
    let full = result.ids.len() < request.max_tokens;
    result.reason = Some(if full {
        FinishReason::Context
    } else {
        FinishReason::Length
    });
    result
}

fn random_request(random: &mut Random, n_ctx: usize) -> Request {
    // Few distinct beginnings, so that prefixes are often shared.
    let seed = random.below(3) as u32;
    let n_prompt = 1 + random.below(n_ctx - 1);
    let n_common = random.below(n_prompt + 1);
    let token = |i: usize, random: &mut Random| {
        if i < n_common {
            (i as u32 * 7 + seed) % N_VOCAB
        } else {
            random.below(N_VOCAB as usize) as u32
        }
    };
    let prompt = (0..n_prompt).map(|i| token(i, random)).collect();
    let mut request = Request::greedy(prompt, random.below(20));
    request.prompt_output = match random.below(5) {
        0 => PromptOutput::Scores {
            from: random.below(n_prompt + 1),
            top: 0,
        },
        1 => PromptOutput::Logits,
        _ => PromptOutput::Nothing,
    };
    if random.below(3) == 0 {
        let n_sinks = random.below((n_ctx - 1).min(20));
        request.context_policy = Some(ContextPolicy::Shift { n_sinks });
        request.max_tokens = random.below(3 * n_ctx);
    }
    request
}

#[test]
fn random_traffic_gives_every_request_what_it_gets_alone() {
    let mut n_shifts = 0;
    for seed in 0..150u64 {
        let mut random = Random(seed);
        let page = [1, 4, 16][random.below(3)];
        let n_ctx = 8 + random.below(60);
        let max_seqs = 1 + random.below(6);
        let limits = Limits {
            n_ctx,
            max_seqs,
            max_tokens: max_seqs + random.below(24),
            max_logits: 2 + random.below(8),
            prefix_sharing: if random.below(4) == 0 {
                PrefixSharing::Off
            } else {
                PrefixSharing::On
            },
            context_policy: ContextPolicy::Stop,
            can_shift: true,
        };
        // Sometimes one context's worth, so that sequences have to give way.
        let n_blocks = n_ctx.div_ceil(page) * (1 + random.below(3)) + random.below(3);
        let mut engine = engine(limits, n_blocks, page, 1 + random.below(2));
        let mut open: BTreeMap<RequestId, Request> = BTreeMap::new();
        let mut results: BTreeMap<RequestId, Result> = BTreeMap::new();
        let mut left = 40;
        let mut steps = 0;
        while left > 0 || !engine.is_idle() {
            steps += 1;
            assert!(steps < 50_000, "seed {seed}: no progress");
            if left > 0 && random.below(3) == 0 {
                left -= 1;
                let request = random_request(&mut random, n_ctx);
                let id = engine.submit(request.clone()).unwrap();
                open.insert(id, request);
                results.insert(id, Result::default());
            }
            if random.below(20) == 0 && !open.is_empty() {
                let id = *open.keys().nth(random.below(open.len())).unwrap();
                engine.abort(id);
                open.remove(&id);
                results.remove(&id);
            }
            for event in engine.step().unwrap() {
                let id = event.request();
                let finished = matches!(event, Event::Finished { .. });
                let result = results.get_mut(&id).expect("no event after an abort");
                match event {
                    Event::PromptScore {
                        position, logprob, ..
                    } => result.scores.push((position, logprob)),
                    Event::PromptLogits {
                        position, logits, ..
                    } => {
                        assert_eq!(logits, [position as f32]);
                        result.logits.push(position);
                    }
                    Event::PromptDone { .. } => result.prompts_done += 1,
                    Event::Token { id, .. } => result.ids.push(id),
                    Event::Finished { reason, .. } => result.reason = Some(reason),
                    Event::Failed { .. } => panic!("the recorder has no logits to lose"),
                }
                if finished {
                    assert_eq!(
                        *result,
                        expected(&open[&id], n_ctx, page),
                        "seed {seed}, {:?}",
                        open[&id]
                    );
                    open.remove(&id);
                    results.remove(&id);
                }
            }
            engine
                .check_integrity()
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        assert!(
            open.is_empty(),
            "seed {seed}: {} requests never ended",
            open.len()
        );
        n_shifts += engine.context_shifts().n_shifts;
    }
    assert!(n_shifts > 1000, "{n_shifts}");
}

#[test]
fn requests_that_cannot_be_served_are_refused_with_a_reason() {
    let limits = Limits {
        n_ctx: 8,
        max_seqs: 2,
        max_tokens: 8,
        max_logits: 4,
        prefix_sharing: PrefixSharing::On,
        context_policy: ContextPolicy::Stop,
        can_shift: true,
    };
    let mut engine = engine(limits, 2, 4, 1);
    let mut refuse = |request: Request, part: &str| {
        let message = engine.submit(request).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    refuse(Request::greedy(vec![], 1), "the prompt is empty");
    refuse(
        Request::greedy(vec![1; 9], 0),
        "9 tokens, but the context holds 8",
    );
    refuse(Request::greedy(vec![1; 8], 1), "use a larger context");
    refuse(Request::greedy(vec![1, N_VOCAB], 1), "token id 50");
    let mut request = Request::greedy(vec![1], 1);
    request.sampling = Arc::new(SamplingParams {
        logit_bias: vec![(N_VOCAB, 1.0)],
        ..SamplingParams::default()
    });
    refuse(request, "token id 50");
    let mut request = Request::greedy(vec![1], 1);
    request.sampling = Arc::new(SamplingParams {
        top_p: f32::NAN,
        ..SamplingParams::default()
    });
    refuse(request, "top-p is NaN");
    for n_sinks in [7, 8, usize::MAX] {
        let mut request = Request::greedy(vec![1], 100);
        request.context_policy = Some(ContextPolicy::Shift { n_sinks });
        refuse(request, "fewer sinks");
    }
    // A prompt is never shortened.
    let mut request = Request::greedy(vec![1; 9], 1);
    request.context_policy = Some(ContextPolicy::Shift { n_sinks: 4 });
    refuse(request, "9 tokens, but the context holds 8");
    assert!(engine.submit(Request::greedy(vec![1; 8], 0)).is_ok());
}

#[test]
fn running_one_request_loses_nothing_of_another() {
    let limits = Limits {
        n_ctx: 32,
        max_seqs: 4,
        max_tokens: 16,
        max_logits: 8,
        prefix_sharing: PrefixSharing::On,
        context_policy: ContextPolicy::Stop,
        can_shift: true,
    };
    for stop_after in [1, 3, usize::MAX] {
        let mut engine = engine(limits, 16, 4, 1);
        let requests = [Request::greedy(vec![1, 2], 3), Request::greedy(vec![3], 6)];
        let submitted = requests.clone().map(|r| engine.submit(r).unwrap());
        let mut ids: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
        for request in submitted {
            let mut n_events = 0;
            engine
                .run(request, |event| {
                    if let Event::Token { request, id, .. } = event {
                        ids.entry(*request).or_default().push(*id);
                    }
                    n_events += 1;
                    if request == submitted[0] && n_events >= stop_after {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })
                .unwrap();
        }
        assert_eq!(ids[&submitted[1]], expected(&requests[1], 32, 4).ids);
        assert!(engine.is_idle());
    }
}

/// A device that fails.
struct Broken;

impl Backend for Broken {
    fn submit(&mut self, _: Batch, _: Reply) {
        panic!("lost");
    }

    fn observe(&mut self, _: Option<Box<dyn OpObserver>>) {}

    fn observe_steps(&mut self, _: Option<Box<dyn StepObserver>>) {}

    fn info(&self) -> BackendInfo {
        BackendInfo {
            device: "broken".into(),
            slow_ops: Vec::new(),
            kv_bytes: 0,
            device_memory: None,
            graphs: false,
            n_tuned: 0,
            notices: Vec::new(),
            offload: Offload::NOTHING,
            parts: Vec::new(),
        }
    }
}

#[test]
fn a_dead_device_is_an_error_and_not_a_hang() {
    let limits = Limits {
        n_ctx: 8,
        max_seqs: 2,
        max_tokens: 8,
        max_logits: 4,
        prefix_sharing: PrefixSharing::On,
        context_policy: ContextPolicy::Stop,
        can_shift: true,
    };
    let executor = Executor::start(1, || Ok((Broken, ()))).unwrap().0;
    let mut engine = Engine::new(
        executor,
        limits,
        BlockPool::new(2, 4),
        1,
        N_VOCAB as usize,
        None,
    );
    engine.submit(Request::greedy(vec![1], 1)).unwrap();
    assert!(matches!(
        engine.step(),
        Err(EngineError::Device(DeviceError::WorkerGone { .. }))
    ));
    assert!(
        Executor::start(1, || -> std::result::Result<(Broken, ()), RuntimeError> {
            Err(ConfigError::NoExperts.into())
        })
        .is_err()
    );
}
