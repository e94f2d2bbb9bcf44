//! Drafters in files of their own that read the KV cache of the model that checks their drafts (Gemma 4): their logits against
//! the definition in f64, what they draft in an engine against steps by hand, and texts with drafts against those without.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rocmforge_engine::speculate::{AssistantDrafter, DraftLength, Drafter, Wanted};
use rocmforge_engine::{ContextPolicy, Device, Engine, EngineConfig, Request};
use rocmforge_gguf::{GgmlType, Gguf, OwnedValue, TokenId, Writer};
use rocmforge_model::{DraftsFor, Model, Purpose};
use rocmforge_plan::{
    Batch, BatchSeq, InputToken, KvType, KvTypes, LogitsRow, Op, RowOutput, Want,
};
use rocmforge_runtime::check::{self, Coverage, Extent, OpCheck};
use rocmforge_runtime::gpu::GpuLayers;
use rocmforge_runtime::{OpData, OpObserver, Started, start, start_beside};
use rocmforge_testkit::models::{self, prompt};
use rocmforge_testkit::sweep::{first, is_full_run};

use crate::common::drafter::{RightStarts, Watched};
use crate::common::{apart, test_gpu};
use crate::own_drafter::{Row, Tensors, devices};
use crate::speculation::{config, greedy, run};

/// Positions that layers with a window see, the own one included.
const WINDOW: usize = 20;

pub(crate) fn gguf(writer: Writer<'_>) -> Arc<Gguf> {
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

fn target(name: &str, ty: GgmlType) -> Model {
    let file = gguf(models::model(name, ty).unwrap().unwrap());
    Model::load_for_assistant(Purpose::Text, file, &[], &assistant_file(name, ty)).unwrap()
}

fn assistant_file(name: &str, ty: GgmlType) -> Arc<Gguf> {
    gguf(models::assistant(name, ty).unwrap().unwrap())
}

/// K and V of each layer of the plan, `[n_tokens, n_kv_heads * head]`.
type Cached = Arc<Mutex<HashMap<usize, [Vec<f32>; 2]>>>;

struct Watch(Cached);

impl OpObserver for Watch {
    fn before(&mut self, _: usize, op: &Op, _: &Batch, data: &dyn OpData) {
        if let Op::KvAppend { layer, k, v } = op {
            let mut all = self.0.lock().unwrap();
            let [keys, values] = all.entry(*layer).or_default();
            keys.extend_from_slice(&data.buffer(*k));
            values.extend_from_slice(&data.buffer(*v));
        }
    }

    fn after(&mut self, _: usize, _: &Op, _: &Batch, _: &dyn OpData) {}
}

/// The cache of one sequence in blocks that are not in order.
fn table(page: usize) -> Arc<Vec<u32>> {
    let n = 256 / page as u32;
    Arc::new((0..n).map(|i| (5 * i + 3) % n).collect())
}

/// Computes a prompt; returns the hidden values of its tokens.
pub(crate) fn compute(started: &Started, page: usize, tokens: &[TokenId]) -> Vec<f32> {
    let n = tokens.len();
    let table = table(page);
    let slot = |pos: usize| table[pos / page] * page as u32 + (pos % page) as u32;
    let batch = Batch {
        tokens: tokens.iter().map(|&id| InputToken::Id(id)).collect(),
        positions: (0..n as u32).collect(),
        slots: (0..n).map(slot).collect(),
        seqs: vec![BatchSeq {
            first_row: 0,
            n_rows: n,
            first_pos: 0,
            block_table: Arc::clone(&table),
            state: None,
        }],
        logits: vec![LogitsRow {
            row: n - 1,
            want: Want::Logits,
        }],
        exports: true,
        ..Batch::default()
    };
    started.executor.submit(batch).wait().unwrap().exports
}

/// Returns the logits of the token after the `n_cached` ones and `token`, and the hidden values that the next one takes.
fn draft_one(
    started: &Started,
    page: usize,
    n_cached: usize,
    (token, hidden): (TokenId, &[f32]),
) -> (Vec<f32>, Vec<f32>) {
    let batch = Batch {
        tokens: vec![InputToken::Id(token)],
        positions: vec![n_cached as u32 - 1],
        slots: vec![0],
        seqs: vec![BatchSeq {
            first_row: 0,
            n_rows: 1,
            first_pos: n_cached - 1,
            block_table: table(page),
            state: None,
        }],
        logits: vec![LogitsRow {
            row: 0,
            want: Want::Logits,
        }],
        imports: hidden.to_vec(),
        exports: true,
        ..Batch::default()
    };
    let output = started.executor.submit(batch).wait().unwrap();
    let Some(RowOutput::Logits(logits)) = output.rows.into_iter().next() else {
        panic!("logits");
    };
    (logits, output.exports)
}

pub(crate) fn best(logits: &[f32]) -> TokenId {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as TokenId
}

/// Returns the root of the squared error, as a share.
pub(crate) fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    (error / expected.iter().map(|x| x * x).sum::<f64>()).sqrt()
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// The definition, of one token.
struct Definition<'a> {
    of: &'a Gguf,
    target: &'a Gguf,
    n_heads: usize,
    /// Values per head, heads of K and V, and RoPE's base, of layers with a window and without.
    kinds: [(usize, usize, f64); 2],
    /// K and V of the layers of the target that these read.
    caches: [&'a [Vec<f32>; 2]; 2],
    n_cached: usize,
}

impl Definition<'_> {
    fn tensors(&self, layer: usize) -> Tensors<'_> {
        Tensors {
            gguf: self.of,
            layer,
            eps: 1e-5,
        }
    }

    fn attention(&self, x: &[f64], layer: usize) -> Row {
        let of = self.tensors(layer);
        let is_global = layer == 3;
        let (dim, n_kv, base) = self.kinds[usize::from(is_global)];
        let [keys, values] = self.caches[usize::from(is_global)];
        let factors = of.tensor("rope_freqs.weight");
        let first = match is_global {
            true => 0,
            false => (self.n_cached + 1).saturating_sub(WINDOW),
        };
        let mut out = Row::new();
        let queries = Tensors::product(x, &of.own("attn_q"));
        for (head, q) in queries.chunks(dim).enumerate() {
            let mut q = of.norm(q, &of.own("attn_q_norm"));
            for i in 0..dim / 2 {
                let factor = if is_global { factors[i] } else { 1.0 };
                let frequency = base.powf(-2.0 * i as f64 / dim as f64) / factor;
                // The position of the token that is not in the cache yet.
                let (sin, cos) = (self.n_cached as f64 * frequency).sin_cos();
                let (a, b) = (q[i], q[i + dim / 2]);
                (q[i], q[i + dim / 2]) = (a * cos - b * sin, a * sin + b * cos);
            }
            let kv = head / (self.n_heads / n_kv);
            let row = |all: &[f32], pos: usize| -> Row {
                let from = (pos * n_kv + kv) * dim;
                all[from..from + dim]
                    .iter()
                    .map(|&x| f64::from(x))
                    .collect()
            };
            let scores: Row = (first..self.n_cached)
                .map(|pos| q.iter().zip(row(keys, pos)).map(|(q, k)| q * k).sum())
                .collect();
            let most = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Row = scores.iter().map(|x| (x - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; dim];
            for (weight, pos) in weights.iter().zip(first..) {
                for (sum, v) in sum.iter_mut().zip(row(values, pos)) {
                    *sum += weight / total * v;
                }
            }
            out.extend(sum);
        }
        Tensors::product(&out, &of.own("attn_output"))
    }

    /// Returns the logits and the hidden values for the next token.
    fn compute(&self, token: TokenId, hidden: &[f64]) -> (Row, Row) {
        let of_target = Tensors {
            gguf: self.target,
            layer: 0,
            eps: 0.0,
        };
        let width = hidden.len();
        let table = of_target.tensor("token_embd.weight");
        let row = table[token as usize * width..].iter().take(width);
        let mut both: Row = row.map(|x| x * (width as f64).sqrt()).collect();
        both.extend(hidden);
        let mut x = Tensors::product(
            &both,
            &self.tensors(0).tensor("nextn.pre_projection.weight"),
        );
        let add = |a: &[f64], b: &[f64]| -> Row { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        for layer in 0..4 {
            let of = self.tensors(layer);
            let out = self.attention(&of.norm(&x, &of.own("attn_norm")), layer);
            x = add(&of.norm(&out, &of.own("post_attention_norm")), &x);
            let normed = of.norm(&x, &of.own("ffn_norm"));
            let gate = Tensors::product(&normed, &of.own("ffn_gate"));
            let up = Tensors::product(&normed, &of.own("ffn_up"));
            let gated: Row = gate.iter().zip(up).map(|(g, u)| gelu(*g) * u).collect();
            let out = Tensors::product(&gated, &of.own("ffn_down"));
            x = add(&of.norm(&out, &of.own("post_ffw_norm")), &x);
            let scale = of.own("layer_output_scale")[0];
            x.iter_mut().for_each(|x| *x *= scale);
        }
        let of = self.tensors(0);
        let normed = of.norm(&x, &of.tensor("output_norm.weight"));
        (
            Tensors::product(&normed, &of.tensor("token_embd.weight")),
            Tensors::product(&normed, &of.tensor("nextn.post_projection.weight")),
        )
    }
}

/// Draws of several tokens, with the cache of both kinds of layers in blocks, below and beyond the window.
#[test]
fn assistants_compute_what_they_are_defined_as() {
    for (name, kinds) in [
        ("gemma4", [(64, 2, 5_000.0), (128, 1, 1_000_000.0)]),
        ("gemma4_wide", [(256, 4, 5_000.0), (512, 1, 1_000_000.0)]),
    ] {
        let target = target(name, GgmlType::F32);
        let file = assistant_file(name, GgmlType::F32);
        let drafter = target.assistant(Arc::clone(&file)).unwrap();
        let n_vocab = target.config.n_vocab;
        for n_tokens in first(2, [1, 45, 7, 20]) {
            let tokens = prompt(n_tokens, n_vocab);
            let seen = Cached::default();
            let mut expected: Vec<(Row, Row)> = Vec::new();
            for device in devices() {
                let is_cpu = matches!(device, Device::Cpu);
                // An emulated GPU takes long.
                let is_on_gpu = [1, 45].contains(&n_tokens) && (name == "gemma4" || is_full_run());
                if !is_cpu && !is_on_gpu {
                    continue;
                }
                // A GPU's cache is never in F32.
                let (kv_type, bound) = match is_cpu {
                    true => (KvType::F32, 2e-5),
                    false => (KvType::F16, 5e-3),
                };
                let config = EngineConfig {
                    device,
                    kv_types: kv_type.into(),
                    n_ctx: Some(256),
                    ..config()
                };
                let of_target = start(&target, &config).unwrap();
                if is_cpu {
                    of_target
                        .executor
                        .observe(Some(Box::new(Watch(Arc::clone(&seen)))));
                }
                let exports = compute(&of_target, config.page, &tokens);
                let width = exports.len() / n_tokens;
                let mut hidden = exports[exports.len() - width..].to_vec();
                let started = start_beside(&drafter, &config, of_target.executor.cache()).unwrap();
                let cached = seen.lock().unwrap();
                let n_layers = cached.len();
                let definition = Definition {
                    of: &file,
                    target: target.weights.gguf(),
                    n_heads: 8,
                    kinds,
                    // The last layers with a window and without that have a cache.
                    caches: [&cached[&(n_layers - 2)], &cached[&(n_layers - 1)]],
                    n_cached: n_tokens,
                };
                for (i, token) in first(2, [9, 300, 77]).enumerate() {
                    if is_cpu {
                        let exact: Row = hidden.iter().map(|&x| f64::from(x)).collect();
                        expected.push(definition.compute(token, &exact));
                    }
                    let given = (token, &hidden[..]);
                    let (logits, next) = draft_one(&started, config.page, n_tokens, given);
                    let (of_logits, of_next) = &expected[i];
                    let errors = [error(&logits, of_logits), error(&next, of_next)];
                    assert!(
                        errors.iter().all(|error| *error < bound),
                        "{name}, {n_tokens}, {i}: {errors:?}"
                    );
                    hidden = next;
                }
            }
        }
    }
}

fn drafter_of(
    engine: &Engine,
    drafter: &Model,
    target: &Model,
    config: &EngineConfig,
) -> AssistantDrafter {
    let config = EngineConfig {
        max_draft: 0,
        steps_in_flight: 1,
        ..config.clone()
    };
    let started = start_beside(drafter, &config, engine.cache()).unwrap();
    let (n_vocab, width) = (target.config.n_vocab, target.config.n_embd);
    AssistantDrafter::new(started, config.page, n_vocab, width).with_least(0.0)
}

/// A model, the text that it goes on with after [`llama_prompt`], and what is drafted after each of its tokens.
type OfLlamaCpp = (&'static str, [TokenId; 24], [[TokenId; 3]; 22]);

/// What llama.cpp 0.3.36 drafts with the same files (`cargo xtask gen-model gemma4 F32`, `gemma4_assistant F32`), on a CPU with a
/// cache in F32, greedily: `--spec-type draft-mtp --spec-draft-n-max 3`. None of these drafts is right.
#[rustfmt::skip]
const OF_LLAMA_CPP: [OfLlamaCpp; 2] = [
    (
        "gemma4",
        [5, 445, 406, 161, 20, 346, 362, 328, 401, 361, 24, 176, 409, 328, 352, 209, 226, 18, 115, 287, 270, 131, 180, 312],
        [
            [75, 237, 409], [288, 1, 77], [77, 298, 259], [201, 461, 363], [77, 134, 128], [77, 298, 479],
            [77, 265, 477], [294, 64, 447], [288, 477, 409], [77, 77, 336], [77, 77, 371], [77, 389, 18],
            [77, 218, 271], [77, 388, 226], [187, 327, 231], [288, 288, 477], [28, 267, 128], [77, 49, 217],
            [477, 494, 450], [357, 224, 228], [77, 186, 368], [508, 168, 494],
        ],
    ),
    (
        "gemma4_wide",
        [71, 71, 71, 71, 71, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334, 334],
        [
            [43, 110, 130], [338, 172, 130], [120, 172, 117], [151, 86, 100], [349, 172, 86], [151, 86, 86],
            [369, 86, 86], [369, 117, 117], [309, 11, 117], [151, 86, 86], [199, 142, 39], [199, 360, 86],
            [231, 441, 39], [231, 441, 92], [231, 441, 92], [231, 441, 92], [231, 441, 92], [199, 410, 92],
            [433, 441, 368], [447, 346, 441], [231, 346, 441], [231, 346, 311],
        ],
    ),
];

fn llama_prompt() -> Vec<TokenId> {
    let first = [5, 9, 17, 33, 65, 3, 300, 401, 299, 330, 77, 12, 480, 490];
    first.into_iter().chain(100..111).collect()
}

/// Drafts, and how many tokens come before each.
type Notes = Arc<Mutex<Vec<(usize, Vec<TokenId>)>>>;

/// Goes on with [`llama_prompt`] as with `text`. Returns the drafts of three tokens after each token that is known then.
pub(crate) fn drafts_in(
    engine: &mut Engine,
    drafter: impl Drafter + 'static,
    text: &[TokenId],
) -> Vec<Vec<TokenId>> {
    let noted = Notes::default();
    let notes = Arc::clone(&noted);
    let watch = move |one: &mut Wanted<'_>| {
        notes
            .lock()
            .unwrap()
            .push((one.tokens.len(), one.draft.clone()));
    };
    engine.speculate(Box::new(Watched { drafter, watch }), DraftLength::Always(3));
    let prompt = llama_prompt();
    let found = run(engine, &[greedy(prompt.clone(), text.len())]);
    let found: Vec<TokenId> = found[0].iter().map(|(id, _)| *id).collect();
    assert_eq!(found, text);
    let noted = std::mem::take(&mut *noted.lock().unwrap());
    let drafts = noted.into_iter().enumerate().map(|(i, (n_tokens, draft))| {
        assert_eq!(
            n_tokens,
            prompt.len() + 1 + i,
            "none of the drafts is right"
        );
        draft
    });
    drafts.collect()
}

#[test]
fn assistants_draft_what_llama_cpp_drafts() {
    for (name, text, drafts) in OF_LLAMA_CPP {
        let target = target(name, GgmlType::F32);
        let drafter = target
            .assistant(assistant_file(name, GgmlType::F32))
            .unwrap();
        let config = EngineConfig {
            kv_types: KvType::F32.into(),
            ..config()
        };
        let mut engine = Engine::start(&target, None, &config).unwrap();
        let own = drafter_of(&engine, &drafter, &target, &config);
        let found = drafts_in(&mut engine, own, &text);
        // The last ones are cut, so that no more tokens come than are wanted. In the third one of `gemma4_wide` the first token is
        // no more likely than another, by a thousandth.
        for (i, expected) in drafts.iter().take(20).enumerate() {
            if (name, i) != ("gemma4_wide", 2) {
                assert_eq!(found[i], expected, "{name}: {i}");
            }
        }
    }
}

/// Of several sequences at once, with shared prefixes, in caches of several types: texts are those without drafts, and drafts
/// are those of the hidden values and of the cache that a sequence alone has.
#[test]
fn assistants_draft_from_the_cache_of_each_sequence_and_change_no_text() {
    for (name, kv_types) in [
        ("gemma4", KvType::F16.into()),
        ("gemma4_moe", apart(KvType::Q8_0, KvType::Q4_0)),
        ("gemma4_wide", KvTypes::from(KvType::Q4_0)),
    ] {
        let target = target(name, GgmlType::Q4_0);
        let drafter = target
            .assistant(assistant_file(name, GgmlType::Q4_0))
            .unwrap();
        let n_vocab = target.config.n_vocab;
        let shared = prompt(40, n_vocab);
        let requests: Vec<Request> = (0..3)
            .map(|i| {
                let own = prompt(60, n_vocab);
                let own = own[7 * i..9 * i + 3].iter();
                greedy(shared.iter().chain(own).copied().collect(), 24)
            })
            .collect();
        let config = EngineConfig {
            kv_types,
            ..config()
        };
        let engine = || Engine::start(&target, None, &config).unwrap();
        let expected = run(&mut engine(), &requests);
        let mut engine = engine();
        let of_target = start(&target, &config).unwrap();
        let by_hand = start_beside(&drafter, &config, of_target.executor.cache()).unwrap();
        let starts = RightStarts::new(&requests, &expected);
        let page = config.page;
        let counted = starts.clone();
        // Compares each draft with steps by hand, of a model and a drafter of their own.
        let watch = move |one: &mut Wanted<'_>| {
            let (token, known) = one.tokens.split_last().unwrap();
            let exports = compute(&of_target, page, known);
            let width = exports.len() / known.len();
            let mut hidden = exports[exports.len() - width..].to_vec();
            let mut token = *token;
            for &drafted in &one.draft {
                let given = (token, &hidden[..]);
                let (logits, next) = draft_one(&by_hand, page, known.len(), given);
                (token, hidden) = (best(&logits), next);
                assert_eq!(token, drafted, "after {} tokens", one.tokens.len());
            }
            assert_eq!(one.draft.len(), one.n_most);
            counted.put(one);
        };
        let compared = Watched {
            drafter: drafter_of(&engine, &drafter, &target, &config),
            watch,
        };
        engine.speculate(Box::new(compared), DraftLength::Always(3));
        for _ in 0..2 {
            let found = run(&mut engine, &requests);
            assert!(found == expected, "{name}");
        }
        assert!(engine.stats().prefix.hits > 0);
        assert!(engine.drafter().unwrap().failure.is_none());
        let n = starts.n_drafts();
        let n_accepted = engine.stats().drafts.n_accepted;
        assert!(
            n > 40 && n_accepted > 30,
            "{name}: {n} drafts, {n_accepted} tokens right"
        );
    }
}

/// An emulated GPU computes rows of a draft with other kernels than a single row, so that only the first tokens are compared.
#[test]
fn assistants_on_a_gpu_change_no_text() {
    let Some(gpu) = test_gpu() else { return };
    let target = target("gemma4", GgmlType::Q4_0);
    let drafter = target
        .assistant(assistant_file("gemma4", GgmlType::Q4_0))
        .unwrap();
    let n_vocab = target.config.n_vocab;
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        ..config()
    };
    let requests: Vec<Request> = (0..2)
        .map(|i| greedy(prompt(26 + 9 * i, n_vocab)[5 * i..].to_vec(), 6))
        .collect();
    let ids = |engine: &mut Engine| -> Vec<Vec<TokenId>> {
        let traces = run(engine, &requests).into_iter();
        traces
            .map(|trace| trace.into_iter().map(|(id, _)| id).collect())
            .collect()
    };
    let engine = || Engine::start(&target, None, &config).unwrap();
    let expected = ids(&mut engine());
    let mut engine = engine();
    let own = drafter_of(&engine, &drafter, &target, &config);
    engine.speculate(Box::new(own), DraftLength::Always(2));
    assert_eq!(ids(&mut engine), expected);
    assert!(engine.stats().drafts.n_drafted >= 8);
    assert!(engine.drafter().unwrap().failure.is_none());
}

#[test]
fn assistants_pass_the_check_of_a_gpu() {
    let Some(gpu) = test_gpu() else { return };
    let target = target("gemma4", GgmlType::Q4_0);
    let drafter = target
        .assistant(assistant_file("gemma4", GgmlType::Q4_0))
        .unwrap();
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        max_draft: 0,
        ..config()
    };
    let tokens = prompt(30, target.config.n_vocab);
    let extent = Extent::after(16, Coverage::Distinct);
    let report = check::check(&drafter, &config, &tokens, &extent).unwrap();
    let failures: Vec<&OpCheck> = report.failures().collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(report.checks.iter().any(|check| check.op == "attention"));
}

/// Tokens leave the context: those in the cache are then fewer than those of the sequence.
#[test]
fn assistants_follow_a_context_that_shifts() {
    let target = target("gemma4", GgmlType::Q4_0);
    let drafter = target
        .assistant(assistant_file("gemma4", GgmlType::Q4_0))
        .unwrap();
    let config = EngineConfig {
        n_ctx: Some(64),
        context_policy: ContextPolicy::Shift { n_sinks: 4 },
        ..config()
    };
    let requests = [greedy(prompt(40, target.config.n_vocab), 90)];
    let engine = || Engine::start(&target, None, &config).unwrap();
    let expected = run(&mut engine(), &requests);
    let mut engine = engine();
    let own = drafter_of(&engine, &drafter, &target, &config);
    engine.speculate(Box::new(own), DraftLength::Always(3));
    assert!(run(&mut engine, &requests) == expected);
    assert!(engine.stats().drafts.n_drafted > 100);
    assert!(engine.drafter().unwrap().failure.is_none());
}

/// The drafter is where the layers are that it reads, the last two; where these are on two devices, it is refused.
#[test]
fn assistants_of_a_shared_model_are_where_the_cache_is() {
    let Some(gpu) = test_gpu() else { return };
    let target = target("gemma4_wide", GgmlType::F32);
    let file = assistant_file("gemma4_wide", GgmlType::F32);
    let drafter = target.assistant(file).unwrap();
    for (n_on_gpu, is_refused) in [(1, true), (2, false)] {
        let of_gpu = |layers| {
            let mut gpu = gpu.clone();
            gpu.offload.layers = layers;
            config().on(Device::Gpu(gpu))
        };
        let config = of_gpu(GpuLayers::Count(n_on_gpu));
        let of_target = start(&target, &config).unwrap();
        assert!(!of_target.executor.info().parts.is_empty());
        let cache = of_target.executor.cache();
        let its_config = of_gpu(GpuLayers::Auto);
        let started = match start_beside(&drafter, &its_config, cache) {
            Err(error) => {
                assert!(
                    is_refused && error.to_string().contains("not on one device"),
                    "{error}"
                );
                continue;
            }
            Ok(started) => started,
        };
        assert!(!is_refused && started.executor.info().is_on_gpu());
        let tokens = prompt(20, target.config.n_vocab);
        let exports = compute(&of_target, config.page, &tokens);
        let hidden = &exports[exports.len() / 20 * 19..];
        let (logits, _) = draft_one(&started, config.page, 20, (7, hidden));
        let alone = start(&target, &crate::speculation::config()).unwrap();
        compute(&alone, config.page, &tokens);
        let cache = alone.executor.cache();
        let started = start_beside(&drafter, &crate::speculation::config(), cache).unwrap();
        let (expected, _) = draft_one(&started, config.page, 20, (7, hidden));
        let expected: Row = expected.into_iter().map(f64::from).collect();
        let error = error(&logits, &expected);
        assert!(error < 0.01, "{error}");
    }
}

/// When the model's backend is replaced, its cache is gone: the drafter ends, and answers go on.
#[test]
fn assistants_end_with_the_cache() {
    let target = target("gemma4", GgmlType::Q4_0);
    let drafter = target
        .assistant(assistant_file("gemma4", GgmlType::Q4_0))
        .unwrap();
    let config = config();
    let requests = [greedy(prompt(20, target.config.n_vocab), 20)];
    let mut engine = Engine::start(&target, None, &config).unwrap();
    let expected = run(&mut engine, &requests);
    let own = drafter_of(&engine, &drafter, &target, &config);
    engine.speculate(Box::new(own), DraftLength::Always(3));
    assert!(run(&mut engine, &requests) == expected);
    let old = engine.cache().clone();
    engine.close_backend();
    let error = start_beside(&drafter, &config, &old)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("has ended"), "{error}");
    engine.restart(start(&target, &config).unwrap().executor);
    assert!(run(&mut engine, &requests) == expected);
    let failure = engine.drafter().unwrap().failure.unwrap();
    assert!(failure.contains("started again"), "{failure}");
}

/// What is not a number ends drafts, and no text.
#[test]
fn assistants_with_nan_draft_nothing() {
    let target = target("gemma4", GgmlType::F32);
    let own = assistant_file("gemma4", GgmlType::F32);
    let mut writer = Writer::default();
    for (key, value) in own.metadata().iter() {
        writer.set(key, value);
    }
    for info in own.tensors() {
        let data = match info.name.as_str() {
            "output_norm.weight" => f32::NAN.to_le_bytes().repeat(info.dims[0] as usize),
            _ => own.tensor_data(info).to_vec(),
        };
        { &mut writer }
            .add_tensor(&info.name, &info.dims, info.ty, data)
            .unwrap();
    }
    let drafter = target.assistant(gguf(writer)).unwrap();
    let requests = [greedy(prompt(20, target.config.n_vocab), 12)];
    let mut engine = Engine::start(&target, None, &config()).unwrap();
    let expected = run(&mut engine, &requests);
    let own = drafter_of(&engine, &drafter, &target, &config());
    engine.speculate(Box::new(own), DraftLength::Always(3));
    assert!(run(&mut engine, &requests) == expected);
    assert_eq!(engine.stats().drafts.n_drafted, 0);
    assert!(engine.drafter().unwrap().failure.is_none());
}

fn with(writer: Writer<'static>, key: &str, value: impl Into<OwnedValue>) -> Arc<Gguf> {
    let mut writer = writer;
    writer.set(key, value);
    gguf(writer)
}

/// Each sentence says what to do.
#[test]
fn assistants_of_other_models_are_refused() {
    let ty = GgmlType::Q4_0;
    let gemma = target("gemma4", ty);
    let own = || models::assistant("gemma4", ty).unwrap().unwrap();
    let says = |target: &Model, file: Arc<Gguf>, parts: &[&str]| {
        let error = target.assistant(file).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
    };
    says(
        &gemma,
        assistant_file("gemma4_wide", ty),
        &["number of KV heads is 4", "the model's 2", "ngram"],
    );
    let key = "gemma4-assistant.embedding_length_out";
    says(
        &gemma,
        with(own(), key, 512u32),
        &["hidden width is 512", "256", "ngram"],
    );
    let llama = gguf(models::model("llama", ty).unwrap().unwrap());
    let llama = Model::load_for_assistant(Purpose::Text, llama, &[], &gguf(own())).unwrap();
    says(
        &llama,
        gguf(own()),
        &["drafts for gemma4 models", "llama", "ngram"],
    );
    let key = "gemma4-assistant.attention.sliding_window";
    says(
        &gemma,
        with(own(), key, 1u32),
        &["attention.sliding_window", "2 or more"],
    );
    let error = Model::load(gguf(own())).unwrap_err().to_string();
    assert!(
        error.contains("--speculate draft:FILE") && error.contains("gemma4"),
        "{error}"
    );
    assert_eq!(
        Model::drafts_for(&gguf(own())),
        Some(DraftsFor::Architecture("gemma4"))
    );
    assert_eq!(Model::drafts_for(gemma.weights.gguf()), None);
}
