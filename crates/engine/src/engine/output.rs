//! Turns the output rows of a finished step into events.

use super::Engine;
use crate::event::{Event, Failure, FinishReason, StopCause};
use crate::scheduler::StepRecord;
use crate::sequence::RowPurpose;
use crate::sequences::Member;
use rocmforge_plan::{
    ConstraintError, Progress, RowOutput, Sampled, StepOutput, TokenLogprob, TokenMask,
};
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
                    self.take_token(output.step, member, choice, events);
                }
                (_, RowOutput::NotFinite) => {
                    self.scheduler.discard(member.slot);
                    let failure = Failure::NotFinite;
                    events.push(Event::Failed { request, failure });
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

    /// Adds a sampled token to its sequence.
    fn take_token(&mut self, step: u64, member: Member, choice: Choice, events: &mut Vec<Event>) {
        let n_ctx = self.n_ctx();
        let Sampled { id: token, mu } = choice.sampled;
        let Some(sequence) = self.scheduler.member(member) else {
            return;
        };
        if sequence.pending.is_some_and(|pending| pending.step == step) {
            sequence.pending = None;
        }
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
                Ok(Progress::Open) if reason.is_some() => reason,
                Ok(Progress::Open) => {
                    self.masks.begin(constrained);
                    None
                }
                Err(error) => return events.push(self.constraint_failed(member, error)),
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
        match stopped.or(reason) {
            Some(reason) => events.push(self.finish(member.slot, reason)),
            None => self.scheduler.acquit(member),
        }
    }
}
