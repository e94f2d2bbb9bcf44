//! Drafters in files of their own that take values of layers of the model that checks their drafts (EAGLE-3): what this model
//! exports, and what they make of it, against the definition in f64; what they draft in an engine against steps by hand; and texts
//! with drafts against those without.

use std::sync::{Arc, Mutex};

use rocmforge_engine::speculate::{DraftLength, ModelDrafter, Wanted};
use rocmforge_engine::{Device, Engine, EngineConfig, Request};
use rocmforge_gguf::{GgmlType, Gguf, OwnedValue, TokenId, Writer};
use rocmforge_model::{DraftsFor, Model, Purpose};
use rocmforge_plan::{Batch, KvType, Op, SamplingParams};
use rocmforge_runtime::check::{self, Coverage, Extent, OpCheck};
use rocmforge_runtime::gpu::GpuLayers;
use rocmforge_runtime::{OpData, OpObserver, Started, start};
use rocmforge_testkit::models::eagle3::{Eagle3, N_SHORT, eagle3, short_id};
use rocmforge_testkit::models::{self, families, prompt};

use crate::assistant::{best, compute, drafts_in, error, gguf};
use crate::common::drafter::{
    RightStarts, Watched, drafts_nothing, ends_before_a_shift, with_nan_norm,
};
use crate::common::test_gpu;
use crate::own_drafter::{Row, Tensors, devices, logits};
use crate::speculation::{config, greedy, run};

fn drafter_file(kind: Eagle3, ty: GgmlType) -> Arc<Gguf> {
    gguf(eagle3(kind, ty).unwrap())
}

pub(crate) fn model_file(name: &str, ty: GgmlType) -> Arc<Gguf> {
    let model = models::model(name, ty).or_else(|| families::model(name, ty));
    gguf(model.unwrap().unwrap())
}

/// Returns a model that exports what a drafter takes, and the drafter.
fn pair(name: &str, kind: Eagle3, ty: GgmlType) -> (Model, Model) {
    pair_of(model_file(name, ty), &drafter_file(kind, ty))
}

pub(crate) fn pair_of(model: Arc<Gguf>, drafter: &Arc<Gguf>) -> (Model, Model) {
    let target = Model::load_for_assistant(Purpose::Text, model, &[], drafter).unwrap();
    let drafter = target.assistant(Arc::clone(drafter)).unwrap();
    (target, drafter)
}

fn exact(values: &[f32]) -> Row {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Notes what the last layer returns, `[n_tokens, n_embd]`.
struct LastValues(Arc<Mutex<Vec<f32>>>);

impl OpObserver for LastValues {
    fn before(&mut self, _: usize, op: &Op, _: &Batch, data: &dyn OpData) {
        if let Op::SelectRows { x, .. } = op {
            *self.0.lock().unwrap() = data.buffer(*x).to_vec();
        }
    }

    fn after(&mut self, _: usize, _: &Op, _: &Batch, _: &dyn OpData) {}
}

/// Returns what layer `at` of `llama` takes: what a model of the layers before it returns.
pub(crate) fn values_before(at: usize, tokens: &[TokenId]) -> Vec<Row> {
    let n_layers = at.max(1);
    let file = gguf(
        models::model_of("llama", GgmlType::F32, n_layers)
            .unwrap()
            .unwrap(),
    );
    let model = Model::load(Arc::clone(&file)).unwrap();
    let n_embd = model.config.n_embd;
    if at == 0 {
        let of = tensors(&file);
        let table = of.tensor("token_embd.weight");
        let rows = tokens.iter().map(|&id| id as usize * n_embd);
        return rows
            .map(|from| table[from..from + n_embd].to_vec())
            .collect();
    }
    let config = EngineConfig {
        kv_types: KvType::F32.into(),
        ..config()
    };
    let started = start(&model, &config).unwrap();
    let seen = Arc::default();
    let observer = LastValues(Arc::clone(&seen));
    started.executor.observe(Some(Box::new(observer)));
    compute(&started, config.page, tokens);
    let seen = seen.lock().unwrap();
    seen.chunks(n_embd).map(exact).collect()
}

pub(crate) fn tensors(gguf: &Gguf) -> Tensors<'_> {
    Tensors {
        gguf,
        layer: 0,
        eps: 1e-5,
    }
}

/// The definition, of one sequence.
struct Definition<'a> {
    of: Tensors<'a>,
    target: Tensors<'a>,
    kind: Eagle3,
}

const N_HEADS: usize = 8;
const N_KV_HEADS: usize = 2;
const HEAD: usize = 32;

impl Definition<'_> {
    fn is_narrow(&self) -> bool {
        self.kind == Eagle3::Narrow
    }

    /// Returns the hidden values of a token, of those of three layers.
    fn hidden(&self, layers: [&Row; 3]) -> Row {
        let mut joined = layers.map(|row| row.as_slice()).concat();
        if self.is_narrow() {
            joined = { &self.of }.norm(&joined, &self.of.tensor("enc.output_norm.weight"));
        }
        Tensors::product(&joined, &self.of.tensor("fc.weight"))
    }

    /// Rotates neighbouring values of a head.
    fn rotate(&self, head: &[f64], pos: usize) -> Row {
        let factors = match self.is_narrow() {
            true => self.of.tensor("rope_freqs.weight"),
            false => vec![1.0; HEAD / 2],
        };
        let pairs = head.chunks(2).zip(factors).enumerate();
        let turned = pairs.map(|(i, (pair, factor))| {
            let frequency = 1e4_f64.powf(-2.0 * i as f64 / HEAD as f64) / factor;
            let (sin, cos) = (pos as f64 * frequency).sin_cos();
            [pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos]
        });
        turned.flatten().collect()
    }

    /// Returns the logits of the last token, and what the layer returns for all. `hidden` are those of the tokens before each.
    fn compute(&self, tokens: &[TokenId], hidden: &[Row]) -> (Row, Vec<Row>) {
        let of = &self.of;
        let table = match self.is_narrow() {
            true => of.tensor("token_embd.weight"),
            false => self.target.tensor("token_embd.weight"),
        };
        let n_embd = hidden[0].len();
        let normed: Vec<Row> = { hidden.iter() }
            .map(|row| of.norm(row, &of.own("attn_norm_2")))
            .collect();
        let joined: Vec<Row> = { tokens.iter().zip(&normed) }
            .map(|(&id, normed)| {
                let token = &table[id as usize * n_embd..][..n_embd];
                [of.norm(token, &of.own("attn_norm")), normed.clone()].concat()
            })
            .collect();
        let outs = self.attention(&joined).into_iter().enumerate();
        let outs: Vec<Row> = outs
            .map(|(i, out)| {
                let residual = match self.is_narrow() {
                    true => &normed[i],
                    false => &hidden[i],
                };
                let x: Row = out.iter().zip(residual).map(|(a, b)| a + b).collect();
                let normed = of.norm(&x, &of.own("ffn_norm"));
                let gate = Tensors::product(&normed, &of.own("ffn_gate"));
                let up = Tensors::product(&normed, &of.own("ffn_up"));
                let both: Row = { gate.iter().zip(up) }
                    .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                    .collect();
                let down = Tensors::product(&both, &of.own("ffn_down"));
                x.iter().zip(down).map(|(x, d)| x + d).collect()
            })
            .collect();
        let last = of.norm(&outs[outs.len() - 1], &of.tensor("output_norm.weight"));
        (Tensors::product(&last, &of.tensor("output.weight")), outs)
    }

    fn attention(&self, x: &[Row]) -> Vec<Row> {
        let of = &self.of;
        let [wq, wk, wv, wo] =
            ["attn_q", "attn_k", "attn_v", "attn_output"].map(|name| of.own(name));
        let part = |row: &Row, head: usize| row[head * HEAD..(head + 1) * HEAD].to_vec();
        let keys: Vec<Row> = x.iter().map(|x| Tensors::product(x, &wk)).collect();
        let values: Vec<Row> = x.iter().map(|x| Tensors::product(x, &wv)).collect();
        let of_row = |(pos, x): (usize, &Row)| {
            let queries = Tensors::product(x, &wq);
            let mut joined = Row::new();
            for head in 0..N_HEADS {
                let q = self.rotate(&part(&queries, head), pos);
                let shared = head / (N_HEADS / N_KV_HEADS);
                let weights: Row = (0..=pos)
                    .map(|at| {
                        let k = self.rotate(&part(&keys[at], shared), at);
                        let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                        (dot / (HEAD as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                joined.extend((0..HEAD).map(|j| {
                    let each = weights.iter().zip(&values);
                    each.map(|(w, v)| w / total * v[shared * HEAD + j])
                        .sum::<f64>()
                }));
            }
            Tensors::product(&joined, &wo)
        };
        x.iter().enumerate().map(of_row).collect()
    }
}

pub(crate) fn on(device: Device) -> EngineConfig {
    EngineConfig {
        device,
        max_draft: 0,
        ..config()
    }
}

/// The model's export of layers in and out of order, and logits of a drafter with all that files may have and without.
#[test]
fn eagle3_computes_what_it_is_defined_as() {
    for (kind, layers) in [(Eagle3::Short, [1, 2, 3]), (Eagle3::Narrow, [2, 0, 4])] {
        let file = drafter_file(kind, GgmlType::F32);
        let (target, drafter) = pair("llama", kind, GgmlType::F32);
        let definition = Definition {
            of: tensors(&file),
            target: tensors(target.weights.gguf()),
            kind,
        };
        let tokens = prompt(14, target.config.n_vocab);
        let values = layers.map(|at| values_before(at, &tokens));
        let hidden: Vec<Row> = (0..tokens.len())
            .map(|i| definition.hidden([&values[0][i], &values[1][i], &values[2][i]]))
            .collect();
        // A token with the hidden values of the one before it.
        let (after, before) = (&tokens[1..], &hidden[..13]);
        let (expected, outs) = definition.compute(after, before);
        for device in devices() {
            // A GPU's cache is never in F32.
            let (kv_type, bound) = match device {
                Device::Cpu => (KvType::F32, 2e-5),
                Device::Gpu(_) => (KvType::F16, 5e-3),
            };
            let config = EngineConfig {
                kv_types: kv_type.into(),
                ..on(device)
            };
            let of_target = start(&target, &config).unwrap();
            let exports = compute(&of_target, config.page, &tokens);
            let found = error(&exports, &hidden.concat());
            assert!(found < bound, "{kind:?}: exports {found}");
            let started = start(&drafter, &config).unwrap();
            let width = drafter.config.n_embd;
            let (found, next) = logits(&started, after, &exports[..13 * width]);
            let errors = [error(&found, &expected), error(&next, &outs.concat())];
            assert!(
                errors.iter().all(|error| *error < bound),
                "{kind:?}: {errors:?}"
            );
        }
        let ids = drafter.output_ids.as_deref();
        let expected = (kind == Eagle3::Short).then(|| {
            (0..N_SHORT)
                .map(|i| short_id(i) as TokenId)
                .collect::<Vec<_>>()
        });
        assert_eq!(ids, expected.as_deref());
    }
}

/// Without an output of its own, a drafter makes logits by that of the model, also if this is the embedding.
#[test]
fn eagle3_without_an_output_takes_the_models() {
    for name in ["llama", "gemma3"] {
        let own = drafter_file(Eagle3::Short, GgmlType::F32);
        let model = model_file(name, GgmlType::F32);
        let bare = without(&own, &["output.weight", "d2t"]);
        let (target, drafter) = pair_of(Arc::clone(&model), &bare);
        let output = ["output.weight", "token_embd.weight"];
        let mut output = output.into_iter().filter_map(|name| model.tensor(name));
        let output = output.next().unwrap();
        let mut full = writer_without(&bare, &[]);
        let data = model.tensor_data(output).to_vec();
        { &mut full }
            .add_tensor("output.weight", &output.dims, output.ty, data)
            .unwrap();
        let alike = target.assistant(gguf(full)).unwrap();
        let tokens = prompt(9, target.config.n_vocab);
        let values: Vec<f32> = prompt(9 * 256, 1000)
            .iter()
            .map(|&i| i as f32 / 400.0)
            .collect();
        for device in devices() {
            let started = |model: &Model| start(model, &on(device.clone())).unwrap();
            let found = logits(&started(&drafter), &tokens, &values);
            assert_eq!(found, logits(&started(&alike), &tokens, &values), "{name}");
        }
    }
}

pub(crate) fn writer_without(gguf: &Gguf, names: &[&str]) -> Writer<'static> {
    let mut writer = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value);
    }
    for info in gguf.tensors() {
        if !names.contains(&info.name.as_str()) {
            let data = gguf.tensor_data(info).to_vec();
            { &mut writer }
                .add_tensor(&info.name, &info.dims, info.ty, data)
                .unwrap();
        }
    }
    writer
}

pub(crate) fn without(of: &Gguf, names: &[&str]) -> Arc<Gguf> {
    gguf(writer_without(of, names))
}

fn drafter_of(drafter: &Model, target: &Model, config: &EngineConfig) -> ModelDrafter {
    let config = EngineConfig {
        max_draft: 0,
        steps_in_flight: 1,
        ..config.clone()
    };
    let started = start(drafter, &config).unwrap();
    let n_vocab = [drafter, target].map(|model| model.config.n_vocab);
    let (width, ids) = (drafter.config.n_embd, drafter.output_ids.clone());
    ModelDrafter::eagle3(started, config.page, n_vocab, width, ids).with_least(0.0)
}

/// Returns the token that the drafter `by_hand` finds most likely after `tokens`, and the hidden values that it makes of the last
/// one.
fn next_by_hand(by_hand: &Started, tokens: &[TokenId], hidden: &[f32]) -> (TokenId, Vec<f32>) {
    let (found, exports) = logits(by_hand, &tokens[1..], hidden);
    let width = exports.len() / (tokens.len() - 1);
    (best(&found), exports[exports.len() - width..].to_vec())
}

/// Requests of several sequences, greedy and sampled.
pub(crate) fn requests(n_vocab: usize, n_shared: usize) -> Vec<Request> {
    let shared = prompt(n_shared, n_vocab);
    let request = |i: usize| {
        let own = prompt(60, n_vocab);
        let own = own[7 * i..9 * i + 3].iter();
        let request = greedy(shared.iter().chain(own).copied().collect(), 24);
        let sampling = match i {
            1 => SamplingParams {
                seed: 7,
                ..SamplingParams::default()
            },
            _ => SamplingParams::greedy(),
        };
        Request {
            sampling: Arc::new(sampling),
            ..request
        }
    };
    (0..3).map(request).collect()
}

#[test]
fn eagle3_drafts_from_the_layers_of_each_sequence() {
    for (kind, ty) in [
        (Eagle3::Short, GgmlType::Q4_0),
        (Eagle3::Narrow, GgmlType::F16),
    ] {
        let (target, drafter) = pair("llama", kind, ty);
        let requests = requests(target.config.n_vocab, 7);
        let config = EngineConfig {
            // A step does not take a whole prompt.
            max_batch_tokens: 8,
            ..config()
        };
        let engine = || Engine::start(&target, None, &config).unwrap();
        let expected = run(&mut engine(), &requests);
        let starts = RightStarts::new(&requests, &expected);
        let whole = EngineConfig {
            max_batch_tokens: 256,
            ..config.clone()
        };
        let of_target = start(&target, &whole).unwrap();
        let by_hand = start(&drafter, &whole).unwrap();
        let output_ids = drafter.output_ids.clone();
        let page = config.page;
        let counted = starts.clone();
        // Compares each draft with steps by hand, from the beginning of the sequence.
        let watch = move |one: &mut Wanted<'_>| {
            let known = &one.tokens[..one.tokens.len() - 1];
            let mut hidden = compute(&of_target, page, known);
            let mut tokens = one.tokens.to_vec();
            for &drafted in &one.draft {
                let (id, next) = next_by_hand(&by_hand, &tokens, &hidden);
                let id = output_ids.as_ref().map_or(id, |ids| ids[id as usize]);
                assert_eq!(id, drafted, "after {} tokens", tokens.len());
                hidden.extend(next);
                tokens.push(id);
            }
            assert_eq!(one.draft.len(), one.n_most);
            counted.put(one);
        };
        let compared = Watched {
            drafter: drafter_of(&drafter, &target, &whole),
            watch,
        };
        let mut engine = engine();
        engine.speculate(Box::new(compared), DraftLength::Always(3));
        assert!(run(&mut engine, &requests) == expected, "{kind:?}");
        let status = engine.drafter().unwrap();
        assert_eq!((status.name, status.failure), ("eagle3", None));
        let n = starts.n_drafts();
        let n_accepted = engine.stats().drafts.n_accepted;
        assert!(n > 30 && n_accepted > 20, "{n} drafts, {n_accepted} right");
    }
}

/// What `llama` goes on with after the prompt of [`drafts_in`].
#[rustfmt::skip]
pub(crate) const TEXT: [TokenId; 24] = [508, 137, 501, 51, 273, 270, 41, 237, 94, 415, 169, 260, 68, 40, 341, 361, 260, 88, 88, 88, 382, 248, 273, 40];

/// What llama.cpp 0.3.36 drafts after each of these tokens with the same files (`cargo xtask gen-model llama F32`, `eagle3 F32`,
/// `eagle3_narrow F32` with the layers 2, 0 and 3), on a CPU with caches in F32, greedily: `--spec-type draft-eagle3
/// --spec-draft-n-max 3 --spec-draft-p-min 0`. None of these drafts is right.
#[rustfmt::skip]
const OF_LLAMA_CPP: [(Eagle3, [u32; 3], [[TokenId; 3]; 22]); 2] = [
    (
        Eagle3::Short,
        [1, 2, 3],
        [
            [257, 278, 278], [385, 115, 115], [388, 388, 388], [1, 1, 1], [230, 304, 304], [377, 377, 116], [278, 278, 278],
            [411, 304, 304], [310, 224, 278], [83, 152, 152], [81, 81, 264], [107, 380, 380], [376, 376, 376], [483, 483, 483],
            [88, 228, 104], [499, 99, 99], [152, 152, 216], [497, 179, 179], [324, 324, 257], [257, 257, 257], [257, 257, 257],
            [152, 152, 4],
        ],
    ),
    (
        Eagle3::Narrow,
        [2, 0, 3],
        [
            [357, 12, 359], [479, 357, 352], [365, 426, 426], [321, 359, 359], [357, 186, 352], [122, 112, 20], [224, 378, 359],
            [8, 95, 378], [351, 20, 20], [484, 378, 378], [502, 72, 72], [451, 451, 230], [451, 451, 451], [8, 359, 359],
            [313, 313, 341], [118, 359, 359], [484, 359, 359], [23, 23, 23], [347, 378, 359], [9, 426, 426], [378, 20, 20],
            [68, 485, 485],
        ],
    ),
];

#[test]
fn eagle3_drafts_what_llama_cpp_drafts() {
    for (kind, layers, drafts) in OF_LLAMA_CPP {
        let mut writer = eagle3(kind, GgmlType::F32).unwrap();
        writer.set("eagle3.target_layers", layers.to_vec());
        let (target, drafter) = pair_of(model_file("llama", GgmlType::F32), &gguf(writer));
        let config = EngineConfig {
            kv_types: KvType::F32.into(),
            ..config()
        };
        let mut engine = Engine::start(&target, None, &config).unwrap();
        let own = drafter_of(&drafter, &target, &config);
        let found = drafts_in(&mut engine, own, &TEXT);
        // The last ones are cut, so that no more tokens come than are wanted.
        for (i, expected) in drafts.iter().take(20).enumerate() {
            assert_eq!(found[i], expected, "{kind:?}: {i}");
        }
    }
}

/// Of several sequences with shared prefixes, of models with a cache, with windows, with experts and with states.
#[test]
fn eagle3_changes_no_text() {
    for name in [
        "llama", "qwen3moe", "gpt_oss", "gemma3", "gemma4", "qwen35", "lfm2",
    ] {
        for kind in [Eagle3::Short, Eagle3::Narrow] {
            let ty = GgmlType::Q4_0;
            let (target, drafter) = pair(name, kind, ty);
            let plain = Model::load(model_file(name, ty)).unwrap();
            let requests = requests(target.config.n_vocab, 40);
            let config = config();
            let expected = run(
                &mut Engine::start(&plain, None, &config).unwrap(),
                &requests,
            );
            let mut engine = Engine::start(&target, None, &config).unwrap();
            let own = drafter_of(&drafter, &target, &config);
            engine.speculate(Box::new(own), DraftLength::Always(3));
            for _ in 0..2 {
                assert!(run(&mut engine, &requests) == expected, "{name}");
            }
            assert!(engine.stats().prefix.hits > 0);
            assert!(engine.drafter().unwrap().failure.is_none());
            let drafts = engine.stats().drafts;
            assert!(drafts.n_drafted > 200, "{name}: {drafts:?}");
        }
    }
}

/// Models of every architecture draft from values of their layers, or are refused with a sentence.
#[test]
fn every_architecture_drafts_from_layers_or_says_that_it_does_not() {
    let mut known = Vec::new();
    let file = with("target_layers", vec![1u32, 0, 1]);
    for name in models::NAMES.into_iter().chain(families::names()) {
        let model = model_file(name, GgmlType::Q4_0);
        let loaded = Model::load_for_assistant(Purpose::Text, model, &[], &file);
        let model = match loaded {
            Ok(model) => model,
            Err(error) => {
                let said = error.to_string();
                let parts = ["not supported for", "hidden width", "computes embeddings"];
                assert!(
                    parts.iter().any(|part| said.contains(part)),
                    "{name}: {said}"
                );
                continue;
            }
        };
        let mut engine = Engine::start(&model, None, &config()).unwrap();
        let drafter = model.assistant(Arc::clone(&file)).unwrap();
        let own = drafter_of(&drafter, &model, &config());
        engine.speculate(Box::new(own), DraftLength::Always(2));
        run(&mut engine, &[greedy(prompt(9, model.config.n_vocab), 6)]);
        let status = engine.drafter().unwrap();
        assert_eq!(status.failure, None, "{name}");
        assert!(engine.stats().drafts.n_drafted > 0, "{name}");
        known.push(name);
    }
    for name in [
        "llama", "gpt_oss", "gemma2", "gemma4", "olmo2", "phi3", "glm4", "mimo2",
    ] {
        assert!(known.contains(&name), "{name}: {known:?}");
    }
}

/// An emulated GPU computes rows of a draft with other kernels than a single row, so that only the first tokens are compared.
#[test]
fn eagle3_on_a_gpu_changes_no_text() {
    let Some(gpu) = test_gpu() else { return };
    let (target, drafter) = pair("llama", Eagle3::Short, GgmlType::Q4_0);
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        ..config()
    };
    let n_vocab = target.config.n_vocab;
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
    let own = drafter_of(&drafter, &target, &config);
    engine.speculate(Box::new(own), DraftLength::Always(2));
    assert_eq!(ids(&mut engine), expected);
    assert!(engine.stats().drafts.n_drafted >= 8);
    assert!(engine.drafter().unwrap().failure.is_none());
}

/// Both the drafter, and the model that computes with a matrix of the drafter's file.
#[test]
fn eagle3_passes_the_check_of_a_gpu() {
    let Some(gpu) = test_gpu() else { return };
    let (target, drafter) = pair("llama", Eagle3::Narrow, GgmlType::Q4_0);
    let config = on(Device::Gpu(gpu));
    let tokens = prompt(30, target.config.n_vocab);
    let extent = Extent::after(16, Coverage::Distinct);
    for (model, op) in [(&target, "export"), (&drafter, "import")] {
        let report = check::check(model, &config, &tokens, &extent).unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{failures:#?}");
        let mut checks = report.checks.iter();
        assert!(checks.any(|check| check.op == op), "{op}");
    }
}

/// Values of layers on the host and on a GPU come together, wherever the model is divided.
#[test]
fn layers_of_a_shared_model_are_exported() {
    let Some(gpu) = test_gpu() else { return };
    let (target, _) = pair("llama", Eagle3::Narrow, GgmlType::F32);
    let tokens = prompt(20, target.config.n_vocab);
    let alone = start(&target, &config()).unwrap();
    let expected = exact(&compute(&alone, config().page, &tokens));
    for n_on_gpu in 0..=3 {
        let mut gpu = gpu.clone();
        gpu.offload.layers = GpuLayers::Count(n_on_gpu);
        let config = config().on(Device::Gpu(gpu));
        let started = start(&target, &config).unwrap();
        let found = compute(&started, config.page, &tokens);
        let error = error(&found, &expected);
        assert!(error < 0.01, "{n_on_gpu}: {error}");
    }
}

/// Tokens leave the context: those that the drafter has computed are then more than it has room for, and it ends.
#[test]
fn eagle3_ends_before_a_context_that_shifts() {
    let (target, drafter) = pair("llama", Eagle3::Short, GgmlType::Q4_0);
    ends_before_a_shift(&target, |config| {
        Box::new(drafter_of(&drafter, &target, config))
    });
}

/// What is not a number ends drafts, and no text.
#[test]
fn eagle3_with_nan_drafts_nothing() {
    let own = gguf(with_nan_norm(&drafter_file(Eagle3::Short, GgmlType::F32)));
    let (target, drafter) = pair_of(model_file("llama", GgmlType::F32), &own);
    drafts_nothing(&target, Box::new(drafter_of(&drafter, &target, &config())));
}

fn with(key: &str, value: impl Into<OwnedValue>) -> Arc<Gguf> {
    let mut writer = eagle3(Eagle3::Short, GgmlType::Q4_0).unwrap();
    writer.set(&format!("eagle3.{key}"), value);
    gguf(writer)
}

fn with_ids(ids: &[i64]) -> Arc<Gguf> {
    let own = drafter_file(Eagle3::Short, GgmlType::Q4_0);
    let mut writer = writer_without(&own, &["d2t"]);
    let data: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let dims = [ids.len() as u64];
    { &mut writer }
        .add_tensor("d2t", &dims, GgmlType::I64, data)
        .unwrap();
    gguf(writer)
}

/// Each sentence says what to do.
#[test]
fn eagle3_of_other_models_is_refused() {
    let ty = GgmlType::Q4_0;
    let model = model_file("llama", ty);
    let target = Model::load(Arc::clone(&model)).unwrap();
    let own = drafter_file(Eagle3::Short, ty);
    let says = |file: Arc<Gguf>, parts: &[&str]| {
        let error = target.assistant(Arc::clone(&file)).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
    };
    says(
        with("target_hidden_size", 512u32),
        &["hidden width is 512", "256", "ngram"],
    );
    says(
        with("target_layers", vec![1u32, 2, 5]),
        &["last layer is 5", "the model's 4", "ngram"],
    );
    says(
        with("target_layers", vec![1, 2, u32::MAX]),
        &["target_layers", "damaged"],
    );
    says(with("target_layers", vec![1u32, 2]), &["2 numbers"]);
    says(with("block_count", 2u32), &["block_count", "expected 1"]);
    let mut ids: Vec<i64> = (0..N_SHORT as i64).collect();
    for wrong in [512, -1, i64::MAX] {
        ids[9] = wrong;
        let token = format!("token {wrong}");
        says(with_ids(&ids), &["d2t", &token, "512", "ngram"]);
    }
    says(with_ids(&ids[..9]), &["output.weight", "shape"]);
    says(with_ids(&vec![0; 513]), &["d2t", "shape"]);
    says(
        without(&own, &["output.weight"]),
        &["output.weight", "missing"],
    );
    says(without(&own, &["fc.weight"]), &["fc.weight", "missing"]);
    says(
        without(&own, &["blk.0.attn_norm_2.weight"]),
        &["attn_norm_2", "missing"],
    );
    let narrow = without(&drafter_file(Eagle3::Narrow, ty), &["token_embd.weight"]);
    says(narrow, &["width of embeddings is 128", "256"]);

    // What the plan of the model could not export is refused when that is loaded, too.
    let load = |model: Arc<Gguf>, drafter: &Arc<Gguf>| {
        let loaded = Model::load_for_assistant(Purpose::Text, model, &[], drafter);
        loaded.unwrap_err().to_string()
    };
    let error = load(model, &with("target_hidden_size", 512u32));
    assert!(error.contains("hidden width is 512"), "{error}");
    let error = load(model_file("granite", ty), &own);
    assert!(error.contains("not supported for granite"), "{error}");
    let error = Model::load(Arc::clone(&own)).unwrap_err().to_string();
    assert!(error.contains("--speculate draft:FILE"), "{error}");
    assert_eq!(Model::drafts_for(&own), Some(DraftsFor::Any));
    let names = target.assistant(own).unwrap().skipped.into_iter();
    let names: Vec<String> = names.map(|tensor| tensor.name).collect();
    assert_eq!(names, ["fc.weight"]);
}

/// A model has no operations for a drafter unless one is given.
#[test]
fn plans_without_a_drafter_stay_as_they_are() {
    let ty = GgmlType::Q4_0;
    let plan = |drafter: Arc<Gguf>| {
        let model = model_file("llama", ty);
        let model = Model::load_for_assistant(Purpose::Text, model, &[], &drafter);
        model.unwrap().plan
    };
    let plain = Model::load(model_file("llama", ty)).unwrap().plan;
    assert_eq!(plan(model_file("llama", ty)), plain);
    assert!(plain.export().is_none());
    let tapped = plan(drafter_file(Eagle3::Short, ty));
    assert!(tapped.export().is_some());
    let n_more = tapped.ops.len() - plain.ops.len();
    // Three copies, two of which are joined with others, a conversion, a product and the export.
    assert_eq!(n_more, 8);
}
