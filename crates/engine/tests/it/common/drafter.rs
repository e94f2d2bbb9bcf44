//! A drafter that a test watches.

use std::sync::{Arc, Mutex};

use rocmforge_engine::speculate::{Drafter, Wanted};
use rocmforge_engine::{Request, RequestId};
use rocmforge_gguf::TokenId;
use rocmforge_runtime::RuntimeError;

/// A drafter, and what looks at each of its drafts or changes it.
pub(crate) struct Watched<D, F> {
    pub(crate) drafter: D,
    pub(crate) watch: F,
}

impl<D: Drafter, F: FnMut(&mut Wanted<'_>) + Send> Drafter for Watched<D, F> {
    fn name(&self) -> &'static str {
        self.drafter.name()
    }

    fn needs_all(&self) -> bool {
        self.drafter.needs_all()
    }

    fn most_sequences(&self) -> usize {
        self.drafter.most_sequences()
    }

    fn takes_hidden(&self) -> bool {
        self.drafter.takes_hidden()
    }

    fn computed(&mut self, request: RequestId, first: usize, hidden: &[f32]) {
        self.drafter.computed(request, first, hidden);
    }

    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError> {
        self.drafter.draft(wanted)?;
        wanted.iter_mut().for_each(&mut self.watch);
        Ok(())
    }

    fn lose_cache(&mut self) -> bool {
        self.drafter.lose_cache()
    }

    fn end(&mut self, request: RequestId) {
        self.drafter.end(request);
    }
}

/// Lets every second draft begin with tokens that are right, so that the next one begins from the hidden values of any row.
#[derive(Clone)]
pub(crate) struct RightStarts {
    /// By request, the length of the prompt and the answer.
    answers: Arc<[(usize, Vec<TokenId>)]>,
    n_drafts: Arc<Mutex<usize>>,
}

impl RightStarts {
    /// Of requests, and the tokens of their answers.
    pub(crate) fn new<T>(requests: &[Request], traces: &[Vec<(TokenId, T)>]) -> RightStarts {
        let answers = requests.iter().zip(traces);
        let answers = answers.map(|(request, trace)| {
            let ids = trace.iter().map(|(id, _)| *id);
            (request.prompt.len(), ids.collect())
        });
        RightStarts {
            answers: answers.collect(),
            n_drafts: Arc::default(),
        }
    }

    pub(crate) fn put(&self, one: &mut Wanted<'_>) {
        let (n_prompt, answer) = &self.answers[one.request.0 as usize % self.answers.len()];
        let right = &answer[one.tokens.len() - n_prompt..];
        let mut n_drafts = self.n_drafts.lock().unwrap();
        let n_right = [0, 2, 0, 1, 0, 3][*n_drafts % 6];
        *n_drafts += 1;
        for (drafted, right) in one.draft.iter_mut().zip(right).take(n_right) {
            *drafted = *right;
        }
    }

    pub(crate) fn n_drafts(&self) -> usize {
        *self.n_drafts.lock().unwrap()
    }
}
