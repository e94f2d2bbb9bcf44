//! A drafter that a test watches, and what drafters in files of their own have in common.

use std::sync::{Arc, Mutex};

use rocmforge_engine::speculate::{DraftLength, Drafter, Wanted};
use rocmforge_engine::{ContextPolicy, Engine, EngineConfig, Request, RequestId};
use rocmforge_gguf::{Gguf, TokenId, Writer};
use rocmforge_model::Model;
use rocmforge_runtime::RuntimeError;
use rocmforge_testkit::models::prompt;

use crate::eagle3::writer_without;
use crate::speculation::{config, greedy, run};

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

    fn drafts_at_once(&self) -> bool {
        self.drafter.drafts_at_once()
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

/// Checks that a drafter for `target` changes no text when tokens leave the context: those that it has computed are then more than
/// it has room for, and it ends.
pub(crate) fn ends_before_a_shift(
    target: &Model,
    drafter: impl FnOnce(&EngineConfig) -> Box<dyn Drafter>,
) {
    let config = EngineConfig {
        n_ctx: Some(64),
        ..config()
    };
    let shifts = EngineConfig {
        context_policy: ContextPolicy::Shift { n_sinks: 4 },
        ..config.clone()
    };
    let requests = [greedy(prompt(40, target.config.n_vocab), 90)];
    let engine = || Engine::start(target, None, &shifts).unwrap();
    let expected = run(&mut engine(), &requests);
    let mut engine = engine();
    engine.speculate(drafter(&config), DraftLength::Always(3));
    assert!(run(&mut engine, &requests) == expected);
    assert!(engine.stats().drafts.n_drafted > 30);
    assert!(engine.drafter().unwrap().failure.is_none());
}

/// Returns the file of a drafter with NaN in its last norm.
pub(crate) fn with_nan_norm(own: &Gguf) -> Writer<'static> {
    let norm = own.tensor("output_norm.weight").unwrap();
    let mut writer = writer_without(own, &["output_norm.weight"]);
    let data = f32::NAN.to_le_bytes().repeat(norm.dims[0] as usize);
    { &mut writer }
        .add_tensor(&norm.name, &norm.dims, norm.ty, data)
        .unwrap();
    writer
}

/// Checks that a drafter for `target` that computes NaN drafts nothing, and changes no text.
pub(crate) fn drafts_nothing(target: &Model, drafter: Box<dyn Drafter>) {
    let requests = [greedy(prompt(20, target.config.n_vocab), 12)];
    let mut engine = Engine::start(target, None, &config()).unwrap();
    let expected = run(&mut engine, &requests);
    engine.speculate(drafter, DraftLength::Always(3));
    assert!(run(&mut engine, &requests) == expected);
    assert_eq!(engine.stats().drafts.n_drafted, 0);
    assert!(engine.drafter().unwrap().failure.is_none());
}
