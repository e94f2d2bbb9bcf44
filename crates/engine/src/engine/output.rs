//! Turns the output rows of a finished step into events.

use super::Engine;
use crate::event::{Event, Failure, FinishReason, StopCause};
use crate::scheduler::StepRecord;
use crate::sequence::RowPurpose;
use crate::sequences::Member;
use rocmforge_gguf::TokenId;
use rocmforge_plan::{
    ConstraintError, Progress, RowOutput, Sampled, StepOutput, TokenLogprob, TokenMask,
};
use rocmforge_runtime::gpu::Graphs;
use rocmforge_text::Piece;

/// A sampled token and its log-probabilities.
struct Choice {
    sampled: Sampled,
    logprob: Option<f32>,
    top: Vec<TokenLogprob>,
}

impl Engine {
    /// Adds the events of a step. The order of one request's events: prompt scores, `PromptDone`, first token.
    pub(super) fn process_output(
        &mut self,
        output: StepOutput,
        record: &StepRecord,
        events: &mut Vec<Event>,
    ) {
        self.n_computed_steps += 1;
        self.scheduler.step_succeeded(&record.members);
        for (row, output_row) in record.rows.iter().zip(output.rows) {
            let member = row.member;
            if self.scheduler.member(member).is_none() {
                continue;
            }
            let request = member.id;
            if !self.is_reached(output.step, member, row.purpose) {
                continue;
            }
            if self.is_void(output.step, member, &output_row) {
                continue;
            }
            match (row.purpose, output_row) {
                (RowPurpose::PromptScore { position }, RowOutput::Scored { logprob, top }) => {
                    events.push(Event::PromptScore {
                        request,
                        position,
                        logprob,
                        top,
                    });
                }
                (RowPurpose::PromptLogits { position }, RowOutput::Logits(logits)) => {
                    events.push(Event::PromptLogits {
                        request,
                        position,
                        logits,
                    });
                }
                (RowPurpose::Embedding { position }, RowOutput::Hidden(values)) => {
                    let sequence = self.scheduler.member(member);
                    let pooled = sequence.and_then(|seq| seq.add_hidden(position, &values));
                    events.extend(pooled.map(|values| Event::Embedding { request, values }));
                }
                (
                    RowPurpose::Sample { ends_prompt },
                    RowOutput::Sampled {
                        sampled,
                        logprob,
                        top,
                    },
                ) => {
                    if ends_prompt {
                        self.prompt_done(member, events);
                    }
                    let choice = Choice {
                        sampled,
                        logprob,
                        top,
                    };
                    self.take_token((output.step, 0), member, choice, events);
                }
                (
                    RowPurpose::Drafted { n_before },
                    RowOutput::Sampled {
                        sampled,
                        logprob,
                        top,
                    },
                ) => {
                    let choice = Choice {
                        sampled,
                        logprob,
                        top,
                    };
                    self.take_token((output.step, n_before), member, choice, events);
                }
                (_, RowOutput::NotFinite) => {
                    self.scheduler.discard(member.slot);
                    let failure = Failure::NotFinite;
                    events.push(Event::Failed { request, failure });
                }
                (RowPurpose::Drafted { .. }, RowOutput::NoMask) => {
                    if let Some(sequence) = self.scheduler.member(member) {
                        sequence.draft.step_back();
                    }
                    self.settle_draft(member);
                    self.go_on(member);
                }
                (RowPurpose::Sample { .. }, RowOutput::NoMask) => {
                    events.push(self.mask_failed(member));
                }
                (purpose, output) => unreachable!("a row for {purpose:?} returned {output:?}"),
            }
        }
        for &member in &record.evaluated {
            if self.scheduler.member(member).is_some() {
                self.prompt_done(member, events);
                events.push(self.finish(member.slot, FinishReason::Length));
            }
        }
    }

    fn prompt_done(&mut self, member: Member, events: &mut Vec<Event>) {
        self.scheduler.release_followers(member.id);
        self.scheduler.record_first_token(member);
        if let Some(sequence) = self.scheduler.member(member) {
            events.push(Event::PromptDone {
                request: member.id,
                cached_tokens: sequence.n_cached,
                queue_time: sequence.queue_time,
            });
        }
    }

    /// Ends a sequence whose mask could not be computed.
    fn mask_failed(&mut self, member: Member) -> Event {
        let sequence = self.scheduler.member(member);
        let constrained = sequence.and_then(|sequence| sequence.constrained.as_ref());
        let mask = constrained.map(|constrained| constrained.mask());
        let error = mask.as_deref().map(TokenMask::wait).and_then(Result::err);
        let error = error.cloned();
        self.constraint_failed(member, error.expect("the row had this mask"))
    }

    /// Ends a sequence whose constraint cannot go on. What it computed so far is right.
    fn constraint_failed(&mut self, member: Member, error: ConstraintError) -> Event {
        self.scheduler.remove(member.slot);
        Event::Failed {
            request: member.id,
            failure: Failure::Constraint(error),
        }
    }

    /// Whether the tokens of a step before a row are those of its sequence.
    fn is_reached(&mut self, step: u64, member: Member, purpose: RowPurpose) -> bool {
        let RowPurpose::Drafted { n_before } = purpose else {
            return true;
        };
        let sequence = self.scheduler.member(member);
        sequence.is_some_and(|sequence| sequence.draft.reaches(step, n_before))
    }

    /// Whether a row is a choice that is not used.
    fn is_void(&mut self, step: u64, member: Member, output: &RowOutput) -> bool {
        let is_choice = matches!(output, RowOutput::Sampled { .. } | RowOutput::NoMask);
        let sequence = self.scheduler.member(member).filter(|_| is_choice);
        sequence.is_some_and(|sequence| sequence.void_step.take_if(|void| *void == step).is_some())
    }

    /// Adds a token to its sequence that `step` has sampled after `n_drafted` drafted ones. Those follow that its constraint
    /// forces, which are computed in one step; or those that the step has sampled after it, if it was drafted.
    fn take_token(
        &mut self,
        (step, n_drafted): (u64, usize),
        member: Member,
        choice: Choice,
        events: &mut Vec<Event>,
    ) {
        let Some(sequence) = self.scheduler.member(member) else {
            return;
        };
        if sequence.pending.is_some_and(|pending| pending.step == step) {
            sequence.pending = None;
        }
        let Sampled { id: sampled, mu } = choice.sampled;
        let mut goes_on = self.add_token(member, choice, events);
        if goes_on {
            let forced = self.forced((n_drafted, sampled), member);
            let sequence = self.scheduler.member(member);
            if forced.is_empty()
                && sequence.is_some_and(|sequence| sequence.draft.confirm(step, sampled))
            {
                return;
            }
            self.settle_draft(member);
            for id in forced {
                let sampled = Sampled { id, mu };
                let choice = Choice {
                    sampled,
                    logprob: None,
                    top: Vec::new(),
                };
                goes_on = goes_on && self.add_token(member, choice, events);
            }
        }
        if goes_on {
            self.go_on(member);
        }
    }

    /// Lets a sequence go on after its new tokens.
    fn go_on(&mut self, member: Member) {
        let sequence = self.scheduler.member(member);
        if let Some(constrained) = sequence.and_then(|sequence| sequence.constrained.as_mut()) {
            self.masks.begin(constrained);
        }
        self.scheduler.acquit(member);
    }

    /// Ends a sequence's draft, if the step had one, and learns from it.
    fn settle_draft(&mut self, member: Member) {
        if let Some(verified) = self.scheduler.settle_draft(member)
            && let Some(sequence) = self.scheduler.member(member)
        {
            sequence.draft.acceptance.record(verified);
            sequence.draft.note(&sequence.progress);
        }
    }

    /// Returns the tokens that a sequence's constraint forces, if they are worth a step of another shape. A device that has
    /// recorded the usual ones takes longer for it, and all sequences wait.
    fn forced(&mut self, sampled: (usize, TokenId), member: Member) -> Vec<TokenId> {
        let n_others = match self.executor.info().graphs {
            Graphs::On | Graphs::OfSeveral => self.scheduler.n_running().saturating_sub(1),
            Graphs::Off => 0,
        };
        let is_worth = |n: usize| n >= 2 && n_others <= 2 * (n - 1);
        let sequence = self.scheduler.member(member);
        sequence.map_or_else(Vec::new, |sequence| sequence.take_forced(sampled, is_worth))
    }

    /// Adds a token to its sequence; returns whether the sequence goes on.
    fn add_token(&mut self, member: Member, choice: Choice, events: &mut Vec<Event>) -> bool {
        let n_ctx = self.n_ctx();
        let Sampled { id: token, mu } = choice.sampled;
        let Some(sequence) = self.scheduler.member(member) else {
            return false;
        };
        let is_too_short = sequence.is_too_short();
        sequence.tokens.push(token);
        let n_generated = sequence.tokens.len() - sequence.n_prompt;
        sequence.progress.generated(n_generated);
        sequence.mu = mu;
        let tokenizer = self.intake.tokenizer.as_deref();
        let is_eog = tokenizer.is_some_and(|tokenizer| tokenizer.is_eog(token));
        let reason = sequence.finish_reason(is_eog, n_ctx);
        // A token that stops the generation is not part of the text.
        let ends_text = matches!(reason, Some(FinishReason::Stop(_)));
        let reason = match &mut sequence.constrained {
            Some(constrained) if !ends_text => match constrained.accept(token) {
                Ok(Progress::Complete) => Some(FinishReason::Stop(StopCause::Constraint)),
                Ok(Progress::Open) => reason,
                Err(error) => {
                    events.push(self.constraint_failed(member, error));
                    return false;
                }
            },
            _ => reason,
        };
        let piece = match (&mut sequence.text, tokenizer) {
            (Some(text), Some(tokenizer)) if !ends_text && is_too_short => {
                Piece::Text(text.pass(tokenizer, token))
            }
            (Some(text), Some(tokenizer)) if !ends_text => text.push(tokenizer, token),
            _ => Piece::Text(String::new()),
        };
        let (text, stop) = match piece {
            Piece::Text(text) => (text, None),
            Piece::Stopped { text, stop } => {
                // What follows the stop string is not shown.
                sequence.text = None;
                (text, Some(stop))
            }
        };
        events.push(Event::Token {
            request: member.id,
            id: token,
            text,
            logprob: choice.logprob,
            top: choice.top,
        });
        let stopped = stop.map(|stop| FinishReason::Stop(StopCause::Text(stop)));
        let reason = stopped.or(reason);
        if let Some(reason) = reason {
            events.push(self.finish(member.slot, reason));
        }
        reason.is_none()
    }
}
