//! When a request that comes now would get its first token.
//!
//! The tokens of the prompts before it have to be computed, and requests have to end before it finds a place among the
//! running ones and in the cache. Both go on at the same time, so the longer one counts.

use std::time::{Duration, Instant};

use super::Scheduler;
use crate::event::Failure;
use crate::sequence::Sequence;
use crate::sequences::Member;
use crate::stats::Queued;
use rocmforge_plan::StepRows;
use rocmforge_runtime::PrefixSharing;

impl Scheduler {
    /// Refuses a sequence whose first token would probably come too late.
    ///
    /// # Errors
    /// [`Failure::Overloaded`].
    pub(crate) fn check_wait(&mut self, sequence: &mut Sequence) -> Result<(), Failure> {
        sequence.n_to_compute = sequence.n_prompt - self.n_found(sequence);
        let Some(most) = sequence.request.first_token_within else {
            return Ok(());
        };
        if sequence.leader.is_some_and(|id| self.find(id).is_some()) {
            // It waits for its leader's prompt, not for others.
            return Ok(());
        }
        if self.running.is_empty() && self.waiting.len() == 0 {
            // It would begin no sooner at another time.
            return Ok(());
        }
        let request = &sequence.request;
        let before = self.waiting.before(request.priority, &request.tenant);
        let forecast = self.wait(before, sequence.n_to_compute);
        let wait = forecast.map(|forecast| forecast.mul_f64(self.pace.late()));
        match wait.filter(|wait| *wait > most) {
            None => {
                // Those far below the limit say nothing about those near it.
                sequence.forecast = forecast.filter(|_| wait > Some(most / 2));
                Ok(())
            }
            Some(wait) => {
                self.left_queue += Queued::by(sequence);
                Err(Failure::Overloaded {
                    wait,
                    less_after: wait - most,
                })
            }
        }
    }

    /// Returns how long a request without a prompt would wait behind all that wait now.
    pub(super) fn queue_time(&self) -> Duration {
        match self.waiting.len() {
            0 => Duration::ZERO,
            _ => self.wait(self.waiting.all(), 0).unwrap_or_default(),
        }
    }

    /// Returns how many tokens of a sequence that never ran are in the cache now.
    fn n_found(&mut self, sequence: &mut Sequence) -> usize {
        if self.limits.prefix_sharing == PrefixSharing::Off {
            return 0;
        }
        let n_shareable = sequence.n_shareable().min(self.limits.n_ctx);
        let (pool, tokens) = (&mut self.pool, &sequence.tokens);
        let n_found = sequence.table.share_prefix(pool, tokens, n_shareable);
        sequence.table.release(pool);
        n_found
    }

    /// Returns the time until a sequence with `n_tokens` to compute has its first token, if those of `before` have their
    /// turns before it. `None` as long as nothing is known about the device.
    fn wait(&self, before: Queued, n_tokens: usize) -> Option<Duration> {
        let n_running = self.running.len();
        let per_step = self.prefill(StepRows::Any, None).n_tokens;
        let prompt_time = |n: usize| self.pace.prompt_time(n, per_step, n_running);
        let n_prompts = self.n_unfinished() + before.tokens + n_tokens;
        let prompts = prompt_time(n_prompts)?;
        let n_new = before.requests + 1;
        let without_place = (n_running + n_new).saturating_sub(self.limits.max_seqs);
        let n_prompt_blocks = (before.tokens + n_tokens) / self.pool.page();
        let n_blocks = n_prompt_blocks + n_new * self.n_answer_blocks().max(1);
        let n_used = self.pool.n_blocks() - self.pool.n_free();
        let without_blocks = n_blocks.saturating_sub(self.pool.n_free()) * n_running;
        let n_ends = without_place.max(without_blocks.div_ceil(n_used.max(1)));
        let places = self.pace.time_to_end(n_ends, n_running) + prompt_time(n_tokens)?;
        Duration::try_from_secs_f64(prompts.max(places)).ok()
    }

    /// Returns how many tokens of running prompts are not computed yet.
    fn n_unfinished(&self) -> usize {
        let running = self.running.iter().map(|slot| &self.sequences[*slot]);
        let prompts = running.filter(|sequence| !sequence.is_decoding());
        prompts.map(Sequence::n_unsubmitted).sum()
    }

    /// Learns from a sequence whose prompt is computed.
    pub(crate) fn record_first_token(&mut self, member: Member) {
        if let Some(sequence) = self.member(member)
            && let Some(forecast) = sequence.forecast.take()
        {
            let took = sequence.added.elapsed();
            self.pace.record_first_token(took, forecast);
        }
    }

    /// Learns from a sequence that has ended.
    pub(super) fn record_end(&mut self, sequence: &Sequence) {
        if sequence.was_admitted {
            let since = Instant::now().duration_since(sequence.added);
            self.pace
                .record_end(since.saturating_sub(sequence.queue_time));
        }
    }
}
