//! Speculation changes no text: with drafts that are wrong at any place, the ids and the bits of log-probabilities are those
//! without.

use std::collections::BTreeMap;
use std::sync::Arc;

use rocmforge_engine::speculate::{
    DraftLength, Drafter, MAX_DRAFT, ModelDrafter, NgramDrafter, Wanted,
};
use rocmforge_engine::{
    Device, DraftCounts, Engine, EngineConfig, Event, KvTokens, Request, RequestId,
};
use rocmforge_gguf::{GgmlType, Gguf, TokenId};
use rocmforge_grammar::{Grammar, Source, Vocabulary};
use rocmforge_model::Model;
use rocmforge_plan::{Dry, KvType, SamplingParams, Xtc};
use rocmforge_runtime::RuntimeError;
use rocmforge_testkit::models::{self, families, prompt};

use crate::common::cases::test_cases;
use crate::common::{Loaded, apart, forge_mini_file, load, test_gpu};

/// The ids and the bits of the best log-probabilities of each token.
pub(crate) type Trace = Vec<(TokenId, Vec<u32>)>;

/// Drafts the answers that it knows, by request, with one wrong token.
struct Mistaken {
    answers: Vec<(usize, Vec<TokenId>)>,
    /// The index of the wrong token in a draft.
    wrong_at: usize,
}

impl Drafter for Mistaken {
    fn name(&self) -> &'static str {
        "mistaken"
    }

    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError> {
        for one in wanted {
            let (n_prompt, answer) = &self.answers[one.request.0 as usize];
            let n_known = one.tokens.len() - n_prompt;
            assert_eq!(one.tokens[*n_prompt..], answer[..n_known]);
            one.draft.extend(answer[n_known..].iter().take(one.n_most));
            if let Some(token) = one.draft.get_mut(self.wrong_at) {
                *token = if *token == 0 { 1 } else { *token - 1 };
            }
        }
        Ok(())
    }

    fn end(&mut self, _: RequestId) {}
}

pub(crate) fn run(engine: &mut Engine, requests: &[Request]) -> Vec<Trace> {
    let mut traces: BTreeMap<RequestId, Trace> = BTreeMap::new();
    for request in requests {
        traces.insert(engine.submit(request.clone()).unwrap(), Trace::new());
    }
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event {
                Event::Token {
                    request, id, top, ..
                } => {
                    let bits = top.iter().map(|t| t.logprob.to_bits()).collect();
                    traces.get_mut(&request).unwrap().push((id, bits));
                }
                Event::Failed { failure, .. } => panic!("{failure}"),
                _ => {}
            }
        }
        engine.check_integrity().unwrap();
    }
    traces.into_values().collect()
}

/// Runs requests without drafts, then with drafts that are wrong at each of `wrong_at`, and compares.
fn assert_same(
    start: &dyn Fn() -> Engine,
    requests: &[Request],
    n_draft: usize,
    wrong_at: &[usize],
) {
    let expected = run(&mut start(), requests);
    let answers = requests.iter().zip(&expected);
    let answers: Vec<(usize, Vec<TokenId>)> = answers
        .map(|(request, trace)| {
            let ids = trace.iter().map(|(id, _)| *id).collect();
            (request.prompt.len(), ids)
        })
        .collect();
    for &wrong_at in wrong_at {
        let mut engine = start();
        let drafter = Mistaken {
            answers: answers.clone(),
            wrong_at,
        };
        engine.speculate(Box::new(drafter), DraftLength::Always(n_draft));
        let found = run(&mut engine, requests);
        assert!(
            found == expected,
            "the token at {wrong_at} of a draft is wrong"
        );
        let DraftCounts {
            n_drafted,
            n_accepted,
        } = engine.stats().drafts;
        let has_mistake = n_drafted > n_accepted;
        assert!(has_mistake || wrong_at >= n_draft, "{n_drafted} drafted");
        assert_eq!(n_accepted > 0, wrong_at > 0);
        // The text goes on from what is cached.
        let more: Vec<Request> = { requests.iter().zip(&expected) }
            .map(|(request, trace)| {
                let answer = trace.iter().map(|(id, _)| *id);
                let prompt = request.prompt.iter().copied().chain(answer).collect();
                greedy(prompt, 3)
            })
            .collect();
        let mut cold = start();
        engine.speculate(Box::new(NgramDrafter::default()), DraftLength::Always(2));
        assert!(run(&mut engine, &more) == run(&mut cold, &more));
        assert!(engine.stats().prefix.hits > 0);
    }
}

pub(crate) fn greedy(prompt: Vec<TokenId>, n: usize) -> Request {
    Request {
        logprobs: Some(3),
        ignore_eos: true,
        ..Request::greedy(prompt, n)
    }
}

fn family(name: &str) -> Model {
    let ty = GgmlType::Q4_0;
    let writer = families::model(name, ty).or_else(|| models::model(name, ty));
    let writer = writer.unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    Model::load(Arc::new(gguf)).unwrap()
}

pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        n_ctx: Some(256),
        kv_tokens: KvTokens::Exactly(2048),
        max_seqs: 4,
        max_draft: MAX_DRAFT,
        page: 16,
        n_threads: Some(2),
        ..EngineConfig::default()
    }
}

test_cases! {
    drafts_that_are_wrong_anywhere_change_nothing:
    llama("llama"),
    gemma3("gemma3"),
    #[ignore = "exhaustive: states like others"]
    lfm2("lfm2"),
    qwen35("qwen35"),
    #[ignore = "exhaustive: states like others"]
    qwen35moe("qwen35moe"),
    mamba2("mamba2"),
    #[ignore = "exhaustive: states like others"]
    falcon_h1("falcon_h1"),
    kimi_linear("kimi_linear"),
    #[ignore = "exhaustive: states like others"]
    jamba("jamba"),
}

/// Rollback at every position, for models with and without states, of several sequences at once.
fn drafts_that_are_wrong_anywhere_change_nothing(name: &str) {
    let model = family(name);
    let n_vocab = model.config.n_vocab;
    let requests: Vec<Request> = (0..3)
        .map(|i| greedy(prompt(20 + 9 * i, n_vocab)[5 * i..].to_vec(), 40))
        .collect();
    let start = || Engine::on_cpu(&model, None, &config()).unwrap();
    let every: Vec<usize> = (0..=MAX_DRAFT).collect();
    // All positions for the two kinds of states that roll back by kernels of their own.
    let wrong_at = match name {
        "qwen35" | "mamba2" => &every,
        _ => &[0, 1, 9, MAX_DRAFT][..],
    };
    assert_same(&start, &requests, MAX_DRAFT, wrong_at);
}

fn forge_mini() -> Option<Loaded> {
    forge_mini_file("Q4_K_M").map(|path| load(&path))
}

fn story(loaded: &Loaded, text: &str) -> Vec<TokenId> {
    loaded.tokenizer.encode(text, Default::default())
}

/// Each row of a draft has the penalties, the history and the random number that it has without.
#[test]
fn samplers_see_the_same_tokens() {
    let Some(loaded) = forge_mini() else { return };
    let base = SamplingParams {
        seed: 7,
        ..SamplingParams::default()
    };
    let samplings = [
        base.clone(),
        SamplingParams {
            repeat_penalty: 1.3,
            penalty_last_n: 12,
            frequency_penalty: 0.2,
            ..base.clone()
        },
        SamplingParams {
            dry: Dry {
                multiplier: 2.0,
                allowed_length: 0,
                last_n: 8,
                sequence_breakers: Vec::new(),
                ..Dry::default()
            },
            // Few likely tokens, so that the text repeats itself.
            logit_bias: (300..308).map(|id| (id, 30.0)).collect(),
            ..base.clone()
        },
        SamplingParams {
            xtc: Xtc {
                probability: 0.5,
                threshold: 0.1,
            },
            presence_penalty: 0.5,
            penalty_last_n: 3,
            ..base
        },
    ];
    let requests: Vec<Request> = { samplings.into_iter() }
        .map(|sampling| Request {
            sampling: Arc::new(sampling),
            min_tokens: 20,
            ignore_eos: false,
            ..greedy(story(&loaded, "Once upon a time"), 40)
        })
        .collect();
    for kv_types in [
        KvType::F16.into(),
        KvType::Q8_0.into(),
        KvType::Q4_0.into(),
        apart(KvType::Q8_0, KvType::Q4_0),
    ] {
        let config = EngineConfig {
            kv_types,
            ..config()
        };
        let start = || loaded.engine(&config);
        assert_same(&start, &requests, 6, &[0, 2, 6]);
    }
}

/// Masks are those after the drafted tokens, also where tokens are forced and where the text ends within a draft.
#[test]
fn structured_texts_are_the_same() {
    let Some(loaded) = forge_mini() else { return };
    let vocabulary = Vocabulary::new(&loaded.tokenizer).unwrap();
    let sources = [
        Source::Regex("[a-z ]{10,60}\\.".into()),
        Source::JsonSchema(
            r#"{"type":"object","properties":{"name":{"type":"string","maxLength":12},
            "tags":{"type":"array","items":{"enum":["red","green"]},"minItems":3,"maxItems":6}},
            "required":["name","tags"],"additionalProperties":false}"#
                .into(),
        ),
    ];
    let grammars = sources.map(|source| Grammar::compile(&vocabulary, &source).unwrap());
    let requests: Vec<Request> = { grammars.iter() }
        .map(|grammar| Request {
            constraint: Some(Box::new(grammar.start())),
            logprobs: None,
            ignore_eos: false,
            ..greedy(story(&loaded, "Once upon a time"), 50)
        })
        .collect();
    let start = || loaded.engine(&config());
    assert_same(&start, &requests, 6, &[0, 3, 6]);
}

/// A model drafts for several sequences of another quantization, also ones whose prompts it reads in pieces, and goes on
/// after wrong drafts and after sequences that have ended.
#[test]
fn another_model_drafts() {
    let (Some(loaded), Some(small)) = (forge_mini(), forge_mini_file("Q4_0")) else {
        return;
    };
    let small = load(&small);
    let prompts = [
        "Once upon a time",
        "The cat",
        "There was a house with a red door. In the house lived a family of mice who loved nuts. One day",
    ];
    let requests: Vec<Request> = { prompts.iter().enumerate() }
        .map(|(i, text)| greedy(story(&loaded, text), 20 + 15 * i))
        .collect();
    let start = || loaded.engine(&config());
    let expected = run(&mut start(), &requests);
    let drafting = |max_seqs: usize| {
        let config = EngineConfig {
            max_batch_tokens: 8,
            max_draft: 0,
            max_seqs,
            kv_tokens: KvTokens::OneContext,
            ..config()
        };
        let started = rocmforge_runtime::start(&small.model, &config).unwrap();
        ModelDrafter::new(
            started,
            config.page,
            small.model.config.n_vocab,
            loaded.model.config.n_vocab,
        )
    };
    for length in [DraftLength::Always(5), DraftLength::UpTo(MAX_DRAFT)] {
        let mut engine = start();
        engine.speculate(Box::new(drafting(4)), length);
        for _ in 0..2 {
            assert!(run(&mut engine, &requests) == expected, "{length:?}");
        }
        let drafts = engine.stats().drafts;
        if let DraftLength::Always(_) = length {
            // It is the same model, rounded otherwise.
            assert!(2 * drafts.n_accepted > drafts.n_drafted, "{drafts:?}");
        }
    }
    // It has a place for one sequence, and drafts when the others have ended.
    let mut engine = start();
    engine.speculate(Box::new(drafting(1)), DraftLength::Always(3));
    assert!(run(&mut engine, &requests) == expected);
    assert!(engine.stats().drafts.n_accepted > 0);
}

/// An emulated GPU computes rows of a draft with other kernels than a single row, so that bits differ; forge-mini has no
/// near ties here. With two steps in flight, a sequence waits for its pending token before it drafts.
#[test]
fn a_gpu_generates_the_same_text() {
    let (Some(loaded), Some(gpu)) = (forge_mini(), test_gpu()) else {
        return;
    };
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        steps_in_flight: 2,
        ..config()
    };
    let request = Request {
        logprobs: None,
        ..greedy(story(&loaded, "Once upon a time"), 7)
    };
    let start = || Engine::start(&loaded.model, None, &config).unwrap();
    let expected = run(&mut start(), std::slice::from_ref(&request));
    let ids = expected[0].iter().map(|(id, _)| *id).collect();
    let mut engine = start();
    let drafter = Mistaken {
        answers: vec![(request.prompt.len(), ids)],
        wrong_at: 1,
    };
    engine.speculate(Box::new(drafter), DraftLength::Always(2));
    assert_eq!(run(&mut engine, &[request]), expected);
    let drafts = engine.stats().drafts;
    assert!(drafts.n_accepted >= 2, "{drafts:?}");
}
