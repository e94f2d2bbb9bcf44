//! Structured output with forge-mini: what the grammars allow is what comes out, and other requests do not notice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Loaded, load, models, test_gpu};
use rocmforge_engine::{
    Constraint, Device, Engine, EngineConfig, Event, FinishReason, KvTokens, Request, RequestId,
    StopCause,
};
use rocmforge_gguf::TokenId;
use rocmforge_grammar::{Grammar, Marks, Preamble, Source, Vocabulary};
use rocmforge_plan::{ConstraintError, Progress, SamplingParams};
use rocmforge_testkit::schemas::schemas;
use rocmforge_text::tokenizer::EncodeOptions;
use serde_json::Value;

struct Fixture {
    loaded: Loaded,
    vocabulary: Arc<Vocabulary>,
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    ids: Vec<TokenId>,
    text: String,
    reason: Option<FinishReason>,
}

impl Fixture {
    fn new() -> Fixture {
        let loaded = load(&models().join("forge-mini-Q4_K_M.gguf"));
        let vocabulary = Vocabulary::new(&loaded.tokenizer).unwrap();
        Fixture { loaded, vocabulary }
    }

    fn config(max_seqs: usize) -> EngineConfig {
        EngineConfig {
            n_ctx: Some(256),
            kv_tokens: KvTokens::Exactly(256 * max_seqs),
            max_seqs,
            n_threads: Some(1),
            ..EngineConfig::default()
        }
    }

    fn constraint(&self, source: &Source) -> Option<Box<dyn Constraint>> {
        let grammar = Grammar::compile(&self.vocabulary, source).unwrap();
        Some(Box::new(grammar.start()))
    }

    fn request(&self, prompt: &str, n: usize) -> Request {
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        Request::greedy(self.loaded.tokenizer.encode(prompt, options), n)
    }
}

/// Runs requests together and returns their answers in order.
fn run(engine: &mut Engine, requests: &[Request]) -> Vec<Answer> {
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let mut answers: HashMap<RequestId, Answer> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let answer = answers.entry(event.request()).or_default();
            match event {
                Event::Token { id, text, .. } => {
                    answer.ids.push(id);
                    answer.text += &text;
                }
                Event::Finished { reason, text, .. } => {
                    answer.text += &text;
                    answer.reason = Some(reason);
                }
                Event::Failed { failure, .. } => panic!("{failure}"),
                _ => {}
            }
        }
        engine.check_integrity().unwrap();
    }
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

fn hot(seed: u64) -> Arc<SamplingParams> {
    Arc::new(SamplingParams {
        temperature: 1.5,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed,
        ..SamplingParams::default()
    })
}

/// At temperature 1.5 the model's own text is noise; under a schema it is valid whenever it ends.
#[test]
fn texts_at_high_temperature_are_valid_under_their_schema() {
    let fixture = Fixture::new();
    let mut engine = fixture.loaded.engine(&Fixture::config(8));
    let mut cases = Vec::new();
    for (schema, _) in schemas() {
        for seed in 0..4 {
            let request = Request {
                constraint: fixture.constraint(&Source::JsonSchema(schema.to_string())),
                sampling: hot(seed),
                ..fixture.request("A JSON document:", 150)
            };
            cases.push((schema.clone(), request));
        }
    }
    let requests: Vec<Request> = cases.iter().map(|(_, request)| request.clone()).collect();
    let answers = run(&mut engine, &requests);
    let mut n_complete = 0;
    for ((schema, _), answer) in cases.iter().zip(&answers) {
        if answer.reason == Some(FinishReason::Length) {
            continue;
        }
        assert!(matches!(answer.reason, Some(FinishReason::Stop(_))));
        let value: Value = match serde_json::from_str(&answer.text) {
            Ok(value) => value,
            // JSON has it, f64 does not.
            Err(error) if error.to_string().contains("number out of range") => continue,
            Err(error) => panic!("{error}: {:?}", answer.text),
        };
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(schema)
            .unwrap();
        assert!(validator.is_valid(&value), "{schema} {value}");
        n_complete += 1;
    }
    println!("{n_complete} of {} ended", answers.len());
    assert!(n_complete >= answers.len() / 2, "{n_complete}");
}

/// Free and constrained requests, greedy and sampled, alone and together.
#[test]
fn free_and_constrained_rows_are_as_alone() {
    let fixture = Fixture::new();
    let sources = [
        Source::JsonObject,
        Source::Regex("[a-z ]{5,40}\\.".into()),
        Source::Choice(vec!["left".into(), "right".into()]),
        Source::Gbnf("root ::= \"(\" root \")\" | [0-9]+".into()),
    ];
    let mut requests = Vec::new();
    for (i, source) in sources.iter().enumerate() {
        let free = Request {
            sampling: hot(i as u64),
            ..fixture.request("Once upon a time", 24)
        };
        let greedy = fixture.request("The sun", 20);
        let constrained = Request {
            constraint: fixture.constraint(source),
            ..free.clone()
        };
        let with_logprobs = Request {
            constraint: fixture.constraint(source),
            logprobs: Some(3),
            ..greedy.clone()
        };
        requests.extend([free, greedy, constrained, with_logprobs]);
    }
    let config = Fixture::config(6);
    let loaded = &fixture.loaded;
    let start = || {
        let tokenizer = Some(Arc::clone(&loaded.tokenizer));
        Engine::start(&loaded.model, tokenizer, &config).unwrap()
    };
    let alone: Vec<Answer> = requests
        .iter()
        .map(|request| run(&mut start(), std::slice::from_ref(request)).remove(0))
        .collect();
    assert_eq!(run(&mut start(), &requests), alone);
    let choices: Vec<&str> = alone[10..12].iter().map(|a| a.text.as_str()).collect();
    assert!(
        choices.iter().all(|text| ["left", "right"].contains(text)),
        "{choices:?}"
    );
    for choice in &alone[10..12] {
        assert_eq!(
            choice.reason,
            Some(FinishReason::Stop(StopCause::Constraint))
        );
    }
}

/// A batch of another size may run other kernels on a GPU, so the emulator runs a small part.
#[test]
fn constrained_rows_on_a_gpu_follow_their_grammar() {
    let Some(gpu) = test_gpu() else { return };
    let fixture = Fixture::new();
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        n_ctx: Some(64),
        ..Fixture::config(2)
    };
    let tokenizer = Some(Arc::clone(&fixture.loaded.tokenizer));
    let mut engine = Engine::start(&fixture.loaded.model, tokenizer, &config).unwrap();
    let free = fixture.request("Once upon", 4);
    let number = Request {
        constraint: fixture.constraint(&Source::Regex("[0-9]{3}-[a-c]".into())),
        sampling: hot(1),
        ..fixture.request("Once upon", 12)
    };
    let alone = Request {
        sampling: Arc::new(SamplingParams::greedy()),
        ..number.clone()
    };
    let alone = std::slice::from_ref(&alone);
    let on_cpu = run(&mut fixture.loaded.engine(&Fixture::config(2)), alone);
    assert_eq!(run(&mut engine, alone), on_cpu);
    let answers = run(&mut engine, &[free.clone(), number.clone(), number]);
    let cpu = run(
        &mut fixture.loaded.engine(&Fixture::config(2)),
        std::slice::from_ref(&free),
    );
    assert_eq!(answers[0].ids, cpu[0].ids);
    // Text may come before that follows no grammar.
    let end = fixture.loaded.tokenizer.token_id("</think>").unwrap();
    let marks = Marks {
        open: None,
        ends: &["</think>"],
        never: &[],
    };
    let preamble = Preamble::new(&fixture.loaded.tokenizer, marks);
    let number_after = fixture.constraint(&Source::Regex("[0-9]{3}-[a-c]".into()));
    let thinks = Request {
        constraint: number_after.map(|constraint| preamble.before(constraint)),
        sampling: Arc::new(SamplingParams {
            logit_bias: vec![(end, 100.0)],
            ..SamplingParams::greedy()
        }),
        ..fixture.request("Once upon", 12)
    };
    let thinks = std::slice::from_ref(&thinks);
    let on_cpu = run(&mut fixture.loaded.engine(&Fixture::config(2)), thinks);
    assert_eq!(on_cpu[0].text.len(), "</think>123-a".len(), "{on_cpu:?}");
    assert_eq!(on_cpu[0].ids[0], end);
    assert_eq!(run(&mut engine, thinks), on_cpu);
    for answer in &answers[1..] {
        let (digits, letter) = answer.text.split_once('-').unwrap();
        assert!(digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit()));
        assert!(["a", "b", "c"].contains(&letter), "{answer:?}");
        assert_eq!(
            answer.reason,
            Some(FinishReason::Stop(StopCause::Constraint))
        );
    }
}

/// What a grammar permits in one way only is computed at once, as if each of its tokens had come in a step of its own.
#[test]
fn forced_text_is_computed_at_once() {
    /// Allows only the forced tokens, one in each step.
    struct OneByOne(Box<dyn Constraint>, Vec<TokenId>);
    impl Constraint for OneByOne {
        fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
            let Some(&next) = self.1.first() else {
                return self.0.mask(allowed);
            };
            allowed.fill(0);
            allowed[next as usize / 32] |= 1 << (next % 32);
            Ok(())
        }
        fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
            let progress = self.0.accept(token)?;
            if self.1.is_empty() {
                self.1 = self.0.forced();
            } else {
                self.1.remove(0);
            }
            Ok(progress)
        }
        fn clone_box(&self) -> Box<dyn Constraint> {
            Box::new(OneByOne(self.0.clone(), self.1.clone()))
        }
    }
    let fixture = Fixture::new();
    let person = r#"\{"family_name": "(Smith|Baker)", "year_of_birth": 19[0-9]{2}, "place_of_residence": "[a-z]{3,9}"\}"#;
    let constraint = || {
        let source = Source::Regex(person.into());
        fixture.constraint(&source).unwrap()
    };
    let config = EngineConfig {
        device: Device::Cpu,
        ..Fixture::config(2)
    };
    let answer = |constraint: Box<dyn Constraint>, sampling: &Arc<SamplingParams>| {
        let mut engine = fixture.loaded.engine(&config);
        let n_steps = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&n_steps);
        engine.watch_steps(Some(Box::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        })));
        let request = Request {
            constraint: Some(constraint),
            sampling: Arc::clone(sampling),
            ..fixture.request("A person in JSON: ", 150)
        };
        let answer = run(&mut engine, &[request]).remove(0);
        (answer, n_steps.load(Ordering::Relaxed))
    };
    let greedy = Arc::new(SamplingParams::greedy());
    for sampling in [greedy, hot(1), hot(2)] {
        let stepwise = Box::new(OneByOne(constraint(), Vec::new()));
        let (one_by_one, n_steps) = answer(stepwise, &sampling);
        let (at_once, n_fewer) = answer(constraint(), &sampling);
        println!(
            "{n_steps} steps, {n_fewer} with forced text: {}",
            at_once.text
        );
        assert_eq!(at_once, one_by_one);
        assert!(4 * n_fewer < 3 * n_steps, "{n_fewer} of {n_steps}");
    }
}

/// Few blocks, so that sequences are preempted: their constraints go on where they were.
#[test]
fn preempted_sequences_keep_their_constraint() {
    let fixture = Fixture::new();
    let source = Source::Regex("([a-z]{3,9} ){20}end".into());
    let requests: Vec<Request> = (0..4)
        .map(|seed| Request {
            constraint: fixture.constraint(&source),
            sampling: hot(seed),
            ..fixture.request("Words:", 120)
        })
        .collect();
    // On a GPU a batch of another size rounds differently.
    let config = EngineConfig {
        device: Device::Cpu,
        ..Fixture::config(4)
    };
    let tokenizer = Some(Arc::clone(&fixture.loaded.tokenizer));
    let start = |config| Engine::start(&fixture.loaded.model, tokenizer.clone(), config).unwrap();
    let roomy = run(&mut start(&config), &requests);
    let narrow = EngineConfig {
        n_ctx: Some(128),
        kv_tokens: KvTokens::Exactly(128),
        page: 16,
        ..config.clone()
    };
    let mut engine = start(&narrow);
    assert_eq!(run(&mut engine, &requests), roomy);
    assert!(engine.stats().preemptions > 0);
}

/// `ignore_eos` and `min_tokens` do not lead a complete text on.
#[test]
fn complete_texts_end_whatever_else_is_asked() {
    let fixture = Fixture::new();
    let mut engine = fixture.loaded.engine(&Fixture::config(2));
    let request = Request {
        constraint: fixture.constraint(&Source::Choice(vec!["yes".into()])),
        ignore_eos: true,
        min_tokens: 50,
        ..fixture.request("Answer yes:", 100)
    };
    let answer = run(&mut engine, &[request]).remove(0);
    assert_eq!(answer.text, "yes");
    let reason = FinishReason::Stop(StopCause::Constraint);
    assert_eq!(answer.reason, Some(reason));
}
