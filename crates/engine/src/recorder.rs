//! A simulated device for tests. Its "model" is a hash over the tokens that the block table makes visible, so any wrong
//! slot, stale block, lost or doubled token, wrong prefix or wrong move changes the output.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::engine::Engine;
use crate::event::{FinishReason, StopCause};
use crate::kv_cache::BlockPool;
use crate::request::{PromptOutput, Request, RequestId};
use crate::speculate::{Drafter, Trust, Wanted};
use rocmforge_gguf::TokenId;
use rocmforge_plan::{
    Batch, BatchSeq, InputToken, RowOutput, Sampled, StateStart, StepOutput, StepRows, TokenMask,
    Want,
};
use rocmforge_plan::{Constraint, ConstraintError, KvShift, Progress};
use rocmforge_runtime::gpu::{Graphs, Offload};
use rocmforge_runtime::{
    Backend, BackendInfo, ContextPolicy, DeviceError, Executor, Limits, OpObserver, Output,
    PrefixSharing, Reply, RuntimeError, StepObserver,
};

pub(crate) const N_VOCAB: u32 = 50;

/// Returns the device's state for `token` after the states of the tokens before it.
pub(crate) fn computed(before: &[u64], token: TokenId) -> u64 {
    let fold = |h: u64, x: u64| (h ^ x).wrapping_mul(0x0100_0000_01b3);
    fold(
        before.iter().copied().fold(0xcbf2_9ce4_8422_2325, fold),
        u64::from(token) + 1,
    )
}

/// Returns the state as the kernels for such rows compute it.
fn of_rows(state: u64, rows: StepRows) -> u64 {
    match rows {
        StepRows::Any | StepRows::Prompt => state,
        StepRows::Answer => state.rotate_left(1),
    }
}

/// Returns the device's states for `tokens`.
pub(crate) fn states(tokens: &[TokenId]) -> Vec<u64> {
    tokens.iter().fold(Vec::new(), |mut states, &token| {
        states.push(computed(&states, token));
        states
    })
}

pub(crate) fn next_token(state: u64) -> TokenId {
    ((state >> 20) % u64::from(N_VOCAB)) as TokenId
}

/// Allows about a third of the tokens, which depend on all tokens that it took.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) state: u64,
    /// Complete after this many tokens.
    pub(crate) n_left: usize,
}

impl Chain {
    fn allows(&self, token: TokenId) -> bool {
        let first = self.state % u64::from(N_VOCAB);
        u64::from(token) == first || computed(&[self.state], token).is_multiple_of(3)
    }
}

impl Constraint for Chain {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        allowed.fill(0);
        for token in (0..N_VOCAB).filter(|&token| self.allows(token)) {
            allowed[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
        if !self.allows(token) {
            return Err(ConstraintError(format!("{token} may not come next")));
        }
        self.state = computed(&[self.state], token);
        self.n_left -= 1;
        Ok(match self.n_left {
            0 => Progress::Complete,
            _ => Progress::Open,
        })
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Returns the first token from [`next_token`] on, around the vocabulary, that a mask allows.
pub(crate) fn next_allowed(state: u64, mask: &[u32]) -> TokenId {
    let first = next_token(state);
    let mut from_there = (first..N_VOCAB).chain(0..first);
    let allowed = |id: &TokenId| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
    from_there.find(allowed).expect("a mask allows a token")
}

pub(crate) fn score(state: u64, target: TokenId) -> f32 {
    -(((state >> 30) % 1000 + u64::from(target)) as f32)
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    state: u64,
    position: usize,
}

/// What a failed step leaves in a slot.
const GARBAGE: Entry = Entry {
    state: 1,
    position: usize::MAX,
};

/// A device whose cache holds states in place of keys and values.
pub(crate) struct Recorder {
    page: usize,
    slots: Vec<Option<Entry>>,
    /// In place of states of recurrent layers: that of the last token.
    recurrent: Vec<Option<Entry>>,
    last: Vec<Option<TokenId>>,
    before: Before,
    /// Whether the last step failed.
    has_failed: bool,
}

/// Called with each batch before it runs. Its error is that of the step, which then leaves garbage in the cache.
pub(crate) type Before = Box<dyn FnMut(&Batch) -> Result<(), RuntimeError> + Send>;

impl Recorder {
    fn run(&mut self, batch: &Batch) -> StepOutput {
        assert!(!batch.tokens.is_empty(), "an empty step was submitted");
        batch.shifts.iter().for_each(|shift| self.shift(shift));
        let resolve = |token: &InputToken| match *token {
            InputToken::Id(id) => id,
            // The request of a row without a sampled token has failed.
            InputToken::Sampled { row } => self.last[row].unwrap_or(0),
        };
        let tokens: Vec<TokenId> = batch.tokens.iter().map(resolve).collect();
        let mut made = vec![0; tokens.len()];
        batch.seqs.iter().for_each(|seq| self.check_start(seq));
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
                        assert_eq!(entry.position, p, "wrong position in the slot");
                        entry.state
                    })
                    .collect();
                made[row] = of_rows(computed(&before, tokens[row]), batch.rows);
                let state = made[row];
                let entry = Entry { state, position };
                self.slots[slot(position)] = Some(entry);
                let n_rows = row + 1 - seq.first_row;
                let states = seq.state.iter();
                let kept = states.clone().flat_map(|state| &state.kept);
                let kept = kept.filter(|kept| kept.n_rows == n_rows);
                let own = states
                    .map(|state| state.slot)
                    .filter(|_| n_rows == seq.n_rows);
                for slot in kept.map(|kept| kept.slot).chain(own) {
                    self.recurrent[slot as usize] = Some(entry);
                }
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
            exports: Vec::new(),
        }
    }

    /// Checks that a sequence begins from the state after the tokens before.
    fn check_start(&self, seq: &BatchSeq) {
        let Some(state) = &seq.state else {
            assert!(self.recurrent.is_empty(), "a sequence without a state");
            return;
        };
        let before = seq.first_pos.checked_sub(1).map(|last| {
            let page = self.page;
            let slot = seq.block_table[last / page] as usize * page + last % page;
            self.slots[slot].expect("written before")
        });
        let found = match state.start {
            StateStart::Empty => None,
            StateStart::Slot(slot) => self.recurrent[slot as usize],
        };
        assert_eq!(found, before, "the state after {} tokens", seq.first_pos);
    }

    /// Returns whether a step reads no token of an earlier one.
    fn reads_only_itself(&self, batch: &Batch) -> bool {
        let page = self.page;
        let reads_own = |seq: &BatchSeq| {
            (0..seq.first_pos).all(|p| {
                let slot = seq.block_table[p / page] as usize * page + p % page;
                batch.slots.contains(&(slot as u32))
            })
        };
        batch.shifts.is_empty() && batch.seqs.iter().all(reads_own)
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

pub(crate) fn output(state: u64, position: u32, want: &Want) -> RowOutput {
    match want {
        Want::Sample(row) => {
            let id = match row.mask.as_deref().map(TokenMask::wait).transpose() {
                Ok(None) => next_token(state),
                Ok(Some(mask)) => next_allowed(state, mask),
                Err(_) => return RowOutput::NoMask,
            };
            RowOutput::Sampled {
                sampled: Sampled { id, mu: None },
                logprob: None,
                top: Vec::new(),
            }
        }
        Want::Score { target, .. } => RowOutput::Scored {
            logprob: score(state, *target),
            top: Vec::new(),
        },
        Want::Logits => RowOutput::Logits(vec![position as f32]),
        Want::Hidden => RowOutput::Hidden(vec![position as f32, score(state, 0)]),
    }
}

impl Backend for Recorder {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        let starts = self.reads_only_itself(&batch);
        let computed = match (self.before)(&batch) {
            Err(error) => Err(error),
            // It was submitted before the failure was known, and nobody uses its results.
            Ok(()) if self.has_failed && !starts => Ok(None),
            Ok(()) => Ok(Some(self.run(&batch))),
        };
        self.has_failed = computed.is_err();
        if !matches!(computed, Ok(Some(_))) {
            for &slot in &batch.slots {
                self.slots[slot as usize] = Some(GARBAGE);
            }
            for state in batch.seqs.iter().filter_map(|seq| seq.state.as_ref()) {
                let kept = state.kept.iter().map(|kept| kept.slot);
                for slot in kept.chain([state.slot]) {
                    self.recurrent[slot as usize] = Some(GARBAGE);
                }
            }
        }
        reply(computed.map(|done| {
            done.unwrap_or_else(|| StepOutput {
                step: batch.step,
                exports: Vec::new(),
                rows: batch
                    .logits
                    .iter()
                    .map(|wanted| output(GARBAGE.state, 0, &wanted.want))
                    .collect(),
            })
        }));
    }

    fn observe(&mut self, _: Option<Box<dyn OpObserver>>) {}

    fn observe_steps(&mut self, _: Option<Box<dyn StepObserver>>) {}

    fn info(&self) -> BackendInfo {
        info("recorder")
    }
}

fn info(device: &str) -> BackendInfo {
    BackendInfo {
        device: device.into(),
        slow_ops: Vec::new(),
        kv_bytes: 0,
        state_bytes: 0,
        device_memory: None,
        graphs: Graphs::Off,
        batch_invariant: true,
        n_tuned: 0,
        notices: Vec::new(),
        offload: Offload::NOTHING,
        parts: Vec::new(),
    }
}

impl Recorder {
    pub(crate) fn new(
        (n_blocks, page): (usize, usize),
        n_slots: usize,
        before: Before,
    ) -> Recorder {
        Recorder {
            page,
            slots: vec![None; n_blocks * page],
            recurrent: vec![None; n_slots],
            last: Vec::new(),
            before,
            has_failed: false,
        }
    }
}

/// The sizes of an engine over a [`Recorder`].
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) limits: Limits,
    pub(crate) n_blocks: usize,
    /// Slots for states of sequences; 0 for a model without.
    pub(crate) n_slots: usize,
    pub(crate) page: usize,
    pub(crate) steps_in_flight: usize,
}

impl Sizes {
    /// A small engine for `max_seqs` sequences of up to 32 tokens.
    pub(crate) fn small(max_seqs: usize) -> Sizes {
        let limits = Limits {
            max_answer_rows: None,
            n_ctx: 32,
            max_seqs,
            max_tokens: 16.max(max_seqs),
            max_logits: 8.max(max_seqs),
            step_target: None,
            prefix_sharing: PrefixSharing::On,
            context_policy: ContextPolicy::Stop,
            fixed_by: None,
            output: Output::Logits,
            whole_sequences: false,
        };
        Sizes {
            limits,
            n_blocks: 8 * max_seqs,
            n_slots: 0,
            page: 4,
            steps_in_flight: 2,
        }
    }

    pub(crate) fn executor(&self, before: Before) -> Executor {
        let recorder = Recorder::new((self.n_blocks, self.page), self.n_slots, before);
        Executor::start(self.steps_in_flight, move || Ok((recorder, ())))
            .unwrap()
            .0
    }

    pub(crate) fn engine(&self, before: Before) -> Engine {
        Engine::new(
            self.executor(before),
            self.limits,
            (BlockPool::new(self.n_blocks, self.page), self.n_slots),
            self.steps_in_flight,
            N_VOCAB as usize,
            None,
        )
    }
}

/// Lets every step run.
pub(crate) fn always() -> Before {
    Box::new(|_| Ok(()))
}

/// The error of a step.
pub(crate) fn lost_step() -> RuntimeError {
    DeviceError::LostStep { step: 0, found: 0 }.into()
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) ids: Vec<TokenId>,
    pub(crate) scores: Vec<(usize, f32)>,
    pub(crate) logits: Vec<usize>,
    pub(crate) prompts_done: usize,
    pub(crate) reason: Option<FinishReason>,
}

pub(crate) fn expected(request: &Request, n_ctx: usize, page: usize) -> Outcome {
    expected_in(request, n_ctx, page, StepRows::Any)
}

/// [`expected`] where steps with such rows compute the answer.
pub(crate) fn expected_in(
    request: &Request,
    n_ctx: usize,
    page: usize,
    answer: StepRows,
) -> Outcome {
    // The states in the cache, by position.
    let mut visible = states(&request.prompt);
    let mut result = Outcome {
        prompts_done: 1,
        ..Outcome::default()
    };
    match request.prompt_output {
        PromptOutput::Nothing => {}
        PromptOutput::Scores { from, .. } => {
            result.scores = (from.max(1)..request.prompt.len())
                .map(|p| (p, score(visible[p - 1], request.prompt[p])))
                .collect();
        }
        PromptOutput::Logits { from } => result.logits = (from..request.prompt.len()).collect(),
        PromptOutput::Embedding(_) => {}
    }
    let mut n_tokens = request.prompt.len();
    let policy = request.context_policy.unwrap_or_default();
    let mut constraint = request.constraint.clone();
    let mut progress = Progress::Open;
    while result.ids.len() < request.max_tokens {
        if policy == ContextPolicy::Stop && n_tokens == n_ctx {
            break;
        }
        let state = *visible.last().unwrap();
        let id = match &mut constraint {
            None => next_token(state),
            Some(constraint) => {
                let mut mask = vec![0; N_VOCAB.div_ceil(32) as usize];
                constraint.mask(&mut mask).unwrap();
                let id = next_allowed(state, &mask);
                progress = constraint.accept(id).unwrap();
                id
            }
        };
        result.ids.push(id);
        n_tokens += 1;
        if progress == Progress::Complete {
            break;
        }
        if let ContextPolicy::Shift { n_sinks } = policy
            && visible.len() == n_ctx
        {
            let n = crate::context::n_forgotten(n_ctx, n_sinks, page);
            visible.drain(n_sinks..n_sinks + n);
        }
        visible.push(of_rows(computed(&visible, id), answer));
    }
    let full = result.ids.len() < request.max_tokens;
    result.reason = Some(if progress == Progress::Complete {
        FinishReason::Stop(StopCause::Constraint)
    } else if full {
        FinishReason::Context
    } else {
        FinishReason::Length
    });
    result
}

/// What requests will generate: the length of the prompt, and the tokens after it.
pub(crate) type Answers = Arc<Mutex<BTreeMap<RequestId, (usize, Vec<TokenId>)>>>;

/// A drafter that knows the answers, and makes mistakes.
pub(crate) struct Knowing {
    pub(crate) answers: Answers,
    /// One of so many tokens is wrong.
    pub(crate) one_of: u64,
    pub(crate) n_draws: u64,
}

impl Drafter for Knowing {
    fn name(&self) -> &'static str {
        "knowing"
    }

    fn needs_all(&self) -> bool {
        self.one_of.is_multiple_of(2)
    }

    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError> {
        let answers = self.answers.lock().unwrap();
        for one in wanted {
            let (n_prompt, answer) = &answers[&one.request];
            assert_eq!(
                one.tokens[*n_prompt..],
                answer[..one.tokens.len() - n_prompt]
            );
            for &token in answer[one.tokens.len() - n_prompt..]
                .iter()
                .take(one.n_most)
            {
                self.n_draws += 1;
                let draw = computed(&[self.n_draws], 0);
                one.draft
                    .push(match (draw >> 20).is_multiple_of(self.one_of) {
                        true => (token + 1) % N_VOCAB,
                        false => token,
                    });
                one.trust = Trust((draw >> 10) as usize % Trust::N_LEVELS);
            }
        }
        Ok(())
    }

    fn end(&mut self, request: RequestId) {
        self.answers.lock().unwrap().remove(&request);
    }
}

/// A device whose second output row of each request is not a number, if it `fails`.
pub(crate) struct NotFinite {
    pub(crate) fails: bool,
}

impl Backend for NotFinite {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        let decodes = batch.tokens.len() == 1;
        let row = match self.fails && decodes {
            true => RowOutput::NotFinite,
            false => output(0, 0, &batch.logits[0].want),
        };
        reply(Ok(StepOutput {
            step: batch.step,
            rows: vec![row],
            exports: Vec::new(),
        }));
    }

    fn observe(&mut self, _: Option<Box<dyn OpObserver>>) {}

    fn observe_steps(&mut self, _: Option<Box<dyn StepObserver>>) {}

    fn info(&self) -> BackendInfo {
        info("not finite")
    }
}

/// A device that fails.
pub(crate) struct Broken;

impl Backend for Broken {
    fn submit(&mut self, _: Batch, _: Reply) {
        panic!("lost");
    }

    fn observe(&mut self, _: Option<Box<dyn OpObserver>>) {}

    fn observe_steps(&mut self, _: Option<Box<dyn StepObserver>>) {}

    fn info(&self) -> BackendInfo {
        info("broken")
    }
}
