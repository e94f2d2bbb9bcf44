//! Drafters in files of their own that predict a block of tokens at once (DFlash): what the model exports for them, and the logits
//! of a block, against the definition in f64; what they draft in an engine against steps by hand; and texts with drafts against
//! those without.

use std::sync::Arc;

use rocmforge_engine::speculate::{BlockDrafter, DraftLength, Wanted};
use rocmforge_engine::{Device, Engine, EngineConfig};
use rocmforge_gguf::{GgmlType, Gguf, OwnedValue, TokenId};
use rocmforge_model::{DraftsFor, Model, Purpose};
use rocmforge_plan::{Batch, BatchSeq, InputToken, KvType, LogitsRow, Op, RowOutput, Want};
use rocmforge_runtime::check::{self, Coverage, Extent, OpCheck};
use rocmforge_runtime::{Started, start, start_beside};
use rocmforge_testkit::models::dflash::{Dflash, N_SHORT, dflash, short_id};
use rocmforge_testkit::models::prompt;

use crate::assistant::{best, compute, drafts_in, error, gguf};
use crate::common::drafter::{
    RightStarts, Watched, drafts_nothing, ends_before_a_shift, with_nan_norm,
};
use crate::common::test_gpu;
use crate::eagle3::{
    TEXT, model_file, on, pair_of, requests, tensors, values_before, without, writer_without,
};
use crate::own_drafter::{Row, Tensors, devices};
use crate::speculation::{config, greedy, run};

const KINDS: [Dflash; 2] = [Dflash::Shared, Dflash::Own];

fn drafter_file(kind: Dflash, ty: GgmlType) -> Arc<Gguf> {
    gguf(dflash(kind, ty).unwrap())
}

fn pair(name: &str, kind: Dflash, ty: GgmlType) -> (Model, Model) {
    pair_of(model_file(name, ty), &drafter_file(kind, ty))
}

/// The definition, of one sequence.
struct Definition<'a> {
    of: &'a Gguf,
    target: Tensors<'a>,
    kind: Dflash,
}

const N_KV_HEADS: usize = 2;
/// The window of the first layer of [`Dflash::Own`].
const WINDOW: usize = 9;

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn sum(a: &[f64], b: &[f64]) -> Row {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

impl Definition<'_> {
    fn is_own(&self) -> bool {
        self.kind == Dflash::Own
    }

    fn layer(&self, layer: usize) -> Tensors<'_> {
        Tensors {
            layer,
            ..tensors(self.of)
        }
    }

    /// Returns what the model exports of a token, of the values of its layers.
    fn export(&self, layers: &[&Row]) -> Row {
        let joined: Row = layers.iter().flat_map(|row| row.iter().copied()).collect();
        Tensors::product(&joined, &self.layer(0).tensor("fc.weight"))
    }

    /// Norms and rotates a head, in pairs of values half a head apart.
    fn turned(&self, head: &[f64], norm: &[f64], pos: usize) -> Row {
        let mut head = self.layer(0).norm(head, norm);
        let half = head.len() / 2;
        let factors = match self.is_own() {
            true => self.layer(0).tensor("rope_freqs.weight"),
            false => vec![1.0; half],
        };
        for (i, factor) in factors.iter().enumerate() {
            let frequency = 1e4_f64.powf(-(i as f64) / half as f64) / factor;
            let (sin, cos) = (pos as f64 * frequency).sin_cos();
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * cos - b * sin;
            head[i + half] = a * sin + b * cos;
        }
        head
    }

    /// Returns keys and values of the heads of a position, of what the layer takes there.
    fn keys_and_values(&self, layer: usize, x: &[f64], pos: usize) -> [Vec<Row>; 2] {
        let of = self.layer(layer);
        let width = self.kind.head_dim();
        let heads = |x: &[f64]| -> Vec<Row> { x.chunks(width).map(<[f64]>::to_vec).collect() };
        let keys = heads(&Tensors::product(x, &of.own("attn_k")));
        let values = match self.is_own() && layer == 1 {
            true => keys
                .iter()
                .map(|head| of.norm(head, &vec![1.0; width]))
                .collect(),
            false => heads(&Tensors::product(x, &of.own("attn_v"))),
        };
        let norm = of.own("attn_k_norm");
        let keys = keys
            .iter()
            .map(|head| self.turned(head, &norm, pos))
            .collect();
        [keys, values]
    }

    /// Returns the logits of a block after tokens of which the model exports `exports`.
    fn compute(&self, exports: &[Row], block: &[TokenId]) -> Vec<Row> {
        let first = self.layer(0);
        let of_context = first.tensor("enc.output_norm.weight");
        let context: Vec<Row> = exports
            .iter()
            .map(|row| first.norm(row, &of_context))
            .collect();
        let (table, factor) = match self.is_own() {
            true => (first.tensor("token_embd.weight"), 2.5),
            false => (self.target.tensor("token_embd.weight"), 1.0),
        };
        let width = exports[0].len();
        let embedded = block
            .iter()
            .map(|&id| &table[id as usize * width..][..width]);
        let mut xs: Vec<Row> = embedded
            .map(|row| row.iter().map(|x| x * factor).collect())
            .collect();
        for layer in 0..2 {
            let of = self.layer(layer);
            let normed: Vec<Row> = xs
                .iter()
                .map(|x| of.norm(x, &of.own("attn_norm")))
                .collect();
            let cached: Vec<[Vec<Row>; 2]> = { context.iter().chain(&normed).enumerate() }
                .map(|(pos, x)| self.keys_and_values(layer, x, pos))
                .collect();
            for (i, x) in xs.iter_mut().enumerate() {
                let out = self.attention(layer, &normed[i], context.len() + i, &cached);
                *x = self.after_attention(&of, &out, x);
            }
        }
        let norm = first.tensor("output_norm.weight");
        let output = match self.is_own() {
            true => first.tensor("output.weight"),
            false => self.target.tensor("output.weight"),
        };
        let last = xs.iter().map(|x| first.norm(x, &norm));
        last.map(|x| Tensors::product(&x, &output)).collect()
    }

    fn attention(&self, layer: usize, x: &[f64], pos: usize, cached: &[[Vec<Row>; 2]]) -> Row {
        let of = self.layer(layer);
        let width = self.kind.head_dim();
        let is_windowed = self.is_own() && layer == 0;
        let scale = match self.is_own() {
            true => 0.2,
            false => 1.0 / (width as f64).sqrt(),
        };
        let seen = match is_windowed {
            true => &cached[(pos + 1).saturating_sub(WINDOW)..],
            false => cached,
        };
        let sinks = match is_windowed {
            true => of.own("attn_sinks"),
            false => vec![f64::NEG_INFINITY; self.kind.n_heads()],
        };
        let norm = of.own("attn_q_norm");
        let queries = Tensors::product(x, &of.own("attn_q"));
        let mut joined = Row::new();
        for (i, head) in queries.chunks(width).enumerate() {
            let q = self.turned(head, &norm, pos);
            let shared = i / (self.kind.n_heads() / N_KV_HEADS);
            let weights: Row = { seen.iter() }
                .map(|[keys, _]| {
                    let dot: f64 = q.iter().zip(&keys[shared]).map(|(q, k)| q * k).sum();
                    (dot * scale).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum::<f64>() + sinks[i].exp();
            joined.extend((0..width).map(|j| {
                let each = weights.iter().zip(seen);
                each.map(|(w, [_, values])| w / total * values[shared][j])
                    .sum::<f64>()
            }));
        }
        Tensors::product(&joined, &of.own("attn_output"))
    }

    fn after_attention(&self, of: &Tensors<'_>, out: &[f64], x: &[f64]) -> Row {
        let normed_if_own = |row: Row, norm: &str| match self.is_own() {
            true => of.norm(&row, &of.own(norm)),
            false => row,
        };
        let out = match self.is_own() {
            true => out.iter().map(|x| 1.3 * x).collect(),
            false => out.to_vec(),
        };
        let x = sum(&normed_if_own(out, "post_attention_norm"), x);
        let normed = of.norm(&x, &of.own("ffn_norm"));
        let gate = Tensors::product(&normed, &of.own("ffn_gate"));
        let up = Tensors::product(&normed, &of.own("ffn_up"));
        let activation = if self.is_own() { gelu } else { silu };
        let both: Row = gate
            .iter()
            .zip(up)
            .map(|(g, u)| activation(*g) * u)
            .collect();
        let down = Tensors::product(&both, &of.own("ffn_down"));
        let x = sum(&normed_if_own(down, "post_ffw_norm"), &x);
        match self.is_own() {
            true => { x.iter() }
                .map(|x| x * of.own("layer_output_scale")[0])
                .collect(),
            false => x,
        }
    }
}

/// Starts the model that writes a drafter's cache, and the drafter.
fn started(drafter: &Model, config: &EngineConfig) -> [Started; 2] {
    let config = EngineConfig {
        max_draft: 0,
        steps_in_flight: 1,
        ..config.clone()
    };
    let context = start(drafter.context.as_ref().unwrap(), &config).unwrap();
    let predictor = start_beside(drafter, &config, context.executor.cache()).unwrap();
    [context, predictor]
}

/// Computes rows from position `first` on. Returns the logits of all of them, or none.
fn step(
    started: &Started,
    (first, n): (usize, usize),
    tokens: &[TokenId],
    imports: &[f32],
) -> Vec<Vec<f32>> {
    let positions = first as u32..(first + n) as u32;
    let wants = |row| LogitsRow {
        row,
        want: Want::Logits,
    };
    let batch = Batch {
        tokens: (0..n)
            .map(|i| InputToken::Id(tokens.get(i).copied().unwrap_or(0)))
            .collect(),
        positions: positions.clone().collect(),
        slots: positions.collect(),
        seqs: vec![BatchSeq {
            first_row: 0,
            n_rows: n,
            first_pos: first,
            block_table: Arc::new((0..16).collect()),
            state: None,
        }],
        logits: (0..tokens.len()).map(wants).collect(),
        imports: imports.to_vec(),
        ..Batch::default()
    };
    let rows = started.executor.submit(batch).wait().unwrap().rows;
    let logits = rows.into_iter().map(|row| match row {
        RowOutput::Logits(logits) => logits,
        _ => panic!("logits"),
    });
    logits.collect()
}

/// Returns a block: this token, and masks.
fn block_of(kind: Dflash, token: TokenId) -> Vec<TokenId> {
    let mut block = vec![kind.mask(); kind.n_block()];
    block[0] = token;
    block
}

/// The model's export of layers in and out of order, and the logits of blocks of a drafter with all that files may have and
/// without. The second block comes after what the first one has written is overwritten.
#[test]
fn dflash_computes_what_it_is_defined_as() {
    for kind in KINDS {
        let file = drafter_file(kind, GgmlType::F32);
        let (target, drafter) = pair("llama", kind, GgmlType::F32);
        let definition = Definition {
            of: &file,
            target: tensors(target.weights.gguf()),
            kind,
        };
        let tokens = prompt(18, target.config.n_vocab);
        let layers = kind.layers().iter();
        let values: Vec<Vec<Row>> = layers
            .map(|&at| values_before(at as usize, &tokens))
            .collect();
        let of_token = |i: usize| -> Vec<&Row> { values.iter().map(|rows| &rows[i]).collect() };
        let exports: Vec<Row> = (0..18).map(|i| definition.export(&of_token(i))).collect();
        // Tokens of which values are new, up to the one that the block begins with.
        let blocks = [(0, 10), (10, 17)].map(|(first, n)| {
            let block = block_of(kind, tokens[n]);
            let expected = definition.compute(&exports[..n], &block);
            (first, n, block, expected)
        });
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
            let found = compute(&of_target, config.page, &tokens);
            let off = error(&found, &exports.concat());
            assert!(off < bound, "{kind:?}: exports {off}");
            let [context, predictor] = started(&drafter, &config);
            let width = drafter.config.n_embd;
            for (first, n, block, expected) in &blocks {
                let (first, n) = (*first, *n);
                let new = &found[first * width..n * width];
                step(&context, (first, n - first), &[], new);
                let found = step(&predictor, (n, block.len()), block, &[]);
                for (found, expected) in found.iter().zip(expected) {
                    let off = error(found, expected);
                    assert!(off < bound, "{kind:?}: logits {off}");
                }
                assert_eq!(found.len(), block.len());
            }
        }
        let ids = drafter.output_ids.as_deref();
        let expected = (kind == Dflash::Own).then(|| {
            let ids = (0..N_SHORT).map(|i| short_id(i) as TokenId);
            ids.collect::<Vec<_>>()
        });
        assert_eq!(ids, expected.as_deref());
    }
}

fn drafter_of(drafter: &Model, target: &Model, config: &EngineConfig) -> BlockDrafter {
    let both = started(drafter, config);
    BlockDrafter::new(both, config.page, drafter, target.config.n_vocab).with_least(0.0)
}

#[test]
fn dflash_drafts_from_the_layers_of_each_sequence() {
    for (kind, ty) in [
        (Dflash::Shared, GgmlType::Q4_0),
        (Dflash::Own, GgmlType::F16),
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
        let [context, predictor] = started(&drafter, &whole);
        let output_ids = drafter.output_ids.clone();
        let page = config.page;
        let counted = starts.clone();
        // Compares each draft with steps by hand, from the beginning of the sequence.
        let watch = move |one: &mut Wanted<'_>| {
            if one.is_behind {
                assert!(one.draft.is_empty());
                return;
            }
            let (&token, known) = one.tokens.split_last().unwrap();
            let exports = compute(&of_target, page, known);
            step(&context, (0, known.len()), &[], &exports);
            let block = block_of(kind, token);
            let found = step(&predictor, (known.len(), block.len()), &block, &[]);
            let ids = found[1..].iter().map(|logits| best(logits));
            let ids = ids.map(|id| output_ids.as_ref().map_or(id, |ids| ids[id as usize]));
            let ids: Vec<TokenId> = ids.take(one.n_most).collect();
            assert_eq!(one.draft, ids, "after {} tokens", one.tokens.len());
            counted.put(one);
        };
        let compared = Watched {
            drafter: drafter_of(&drafter, &target, &config),
            watch,
        };
        let mut engine = engine();
        engine.speculate(Box::new(compared), DraftLength::Always(8));
        assert!(run(&mut engine, &requests) == expected, "{kind:?}");
        let status = engine.drafter().unwrap();
        assert_eq!((status.name, status.failure), ("dflash", None));
        let n = starts.n_drafts();
        let n_accepted = engine.stats().drafts.n_accepted;
        assert!(n > 30 && n_accepted > 20, "{n} drafts, {n_accepted} right");
    }
}

/// The layers of a drafter, and what is drafted after each token of [`TEXT`].
type OfLlamaCpp = (Dflash, &'static [u32], [[TokenId; 3]; 22]);

/// What llama.cpp 0.3.36 drafts with the same files (`cargo xtask gen-model llama F32`, `dflash F32`, `dflash_own F32` with the
/// layers 2, 0, 3 and 1), on a CPU with caches in F32, greedily: `--spec-type draft-dflash --spec-draft-n-max 3 --spec-draft-p-min 0`,
/// and 4 for `dflash_own`, of which the first three are here. None of these drafts is right.
#[rustfmt::skip]
const OF_LLAMA_CPP: [OfLlamaCpp; 2] = [
    (
        Dflash::Shared,
        &[1, 3],
        [
            [427, 427, 427], [427, 427, 427], [378, 234, 234], [427, 320, 234], [430, 430, 430], [427, 427, 378],
            [378, 378, 378], [234, 234, 147], [234, 147, 147], [378, 147, 320], [147, 147, 147], [320, 320, 234],
            [378, 234, 147], [234, 234, 147], [234, 147, 147], [147, 147, 147], [147, 147, 147], [147, 147, 234],
            [147, 234, 234], [147, 234, 147], [430, 430, 147], [430, 147, 147],
        ],
    ),
    (
        Dflash::Own,
        &[2, 0, 3, 1],
        [
            [366, 366, 366], [366, 366, 366], [462, 366, 366], [366, 366, 366], [366, 366, 366], [366, 366, 366],
            [182, 366, 366], [182, 366, 366], [244, 244, 244], [244, 244, 145], [244, 366, 396], [145, 145, 145],
            [145, 145, 145], [310, 310, 310], [480, 310, 310], [310, 310, 310], [310, 366, 366], [366, 462, 366],
            [310, 145, 145], [467, 467, 12], [432, 12, 12], [134, 432, 432],
        ],
    ),
];

#[test]
fn dflash_drafts_what_llama_cpp_drafts() {
    for (kind, layers, drafts) in OF_LLAMA_CPP {
        let mut writer = dflash(kind, GgmlType::F32).unwrap();
        writer.set("dflash.target_layers", layers.to_vec());
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
fn dflash_changes_no_text() {
    for (name, kind) in [
        ("llama", Dflash::Shared),
        ("qwen3moe", Dflash::Own),
        ("gpt_oss", Dflash::Own),
        ("gemma4", Dflash::Shared),
        ("qwen35", Dflash::Own),
        ("lfm2", Dflash::Shared),
        ("muse_glimmer", Dflash::Shared),
    ] {
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

/// An emulated GPU computes rows of a draft with other kernels than a single row, so that only the first tokens are compared.
#[test]
fn dflash_on_a_gpu_changes_no_text() {
    let Some(gpu) = test_gpu() else { return };
    let (target, drafter) = pair("llama", Dflash::Own, GgmlType::Q4_0);
    let config = config().on(Device::Gpu(gpu));
    let n_vocab = target.config.n_vocab;
    let requests: Vec<_> = (0..2)
        .map(|i| greedy(prompt(12 + 7 * i, n_vocab)[5 * i..].to_vec(), 6))
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

/// Both plans of the drafter.
#[test]
fn dflash_passes_the_check_of_a_gpu() {
    let Some(gpu) = test_gpu() else { return };
    let (target, drafter) = pair("llama", Dflash::Own, GgmlType::Q4_0);
    let config = on(Device::Gpu(gpu));
    let tokens = prompt(30, target.config.n_vocab);
    let extent = Extent::after(16, Coverage::Distinct);
    let context = drafter.context.as_deref().unwrap();
    for (model, op) in [(context, "import"), (&drafter, "attention")] {
        let report = check::check(model, &config, &tokens, &extent).unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{failures:#?}");
        let mut checks = report.checks.iter();
        assert!(checks.any(|check| check.op == op), "{op}");
    }
}

/// Tokens leave the context: those that the drafter has positions for are then more than it has room for, and it ends.
#[test]
fn dflash_ends_before_a_context_that_shifts() {
    let (target, drafter) = pair("llama", Dflash::Shared, GgmlType::Q4_0);
    ends_before_a_shift(&target, |config| {
        Box::new(drafter_of(&drafter, &target, config))
    });
}

/// What is not a number ends drafts, and no text.
#[test]
fn dflash_with_nan_drafts_nothing() {
    let own = gguf(with_nan_norm(&drafter_file(Dflash::Shared, GgmlType::F32)));
    let (target, drafter) = pair_of(model_file("llama", GgmlType::F32), &own);
    drafts_nothing(&target, Box::new(drafter_of(&drafter, &target, &config())));
}

fn with(kind: Dflash, key: &str, value: impl Into<OwnedValue>) -> Arc<Gguf> {
    let mut writer = dflash(kind, GgmlType::Q4_0).unwrap();
    let key = match key.starts_with("tokenizer.") {
        true => key.to_string(),
        false => format!("dflash.{key}"),
    };
    writer.set(&key, value);
    gguf(writer)
}

fn with_tensor(name: &str) -> Arc<Gguf> {
    let mut writer = dflash(Dflash::Shared, GgmlType::Q4_0).unwrap();
    { &mut writer }
        .add_tensor(name, &[4], GgmlType::F32, vec![0; 16])
        .unwrap();
    gguf(writer)
}

/// Each sentence says what to do.
#[test]
fn dflash_of_other_models_is_refused() {
    let ty = GgmlType::Q4_0;
    let model = model_file("llama", ty);
    let target = Model::load(Arc::clone(&model)).unwrap();
    let own = drafter_file(Dflash::Shared, ty);
    let says = |file: Arc<Gguf>, parts: &[&str]| {
        let error = target.assistant(Arc::clone(&file)).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{error}");
        }
    };
    let shared = |key: &str, value: OwnedValue| with(Dflash::Shared, key, value);
    says(
        shared("embedding_length", 512u32.into()),
        &["hidden width is 512", "256", "ngram"],
    );
    says(
        shared("target_layers", vec![1u32, 5].into()),
        &["last layer is 5", "the model's 4", "ngram"],
    );
    for wrong in [vec![], vec![1, u32::MAX]] {
        says(
            shared("target_layers", wrong.into()),
            &["target_layers", "damaged"],
        );
    }
    says(
        shared("target_layers", vec![1u32].into()),
        &["fc.weight", "shape"],
    );
    for wrong in [0u32, 1, 65, u32::MAX] {
        says(
            shared("block_size", wrong.into()),
            &["block_size", "2 to 64"],
        );
    }
    let mask = "tokenizer.ggml.mask_token_id";
    for kind in KINDS {
        says(with(kind, mask, 512u32), &[mask, "512", "vocabulary"]);
    }
    says(
        with(Dflash::Own, "attention.sliding_window", 4u32),
        &["sliding_window", "a block"],
    );
    says(
        with(Dflash::Own, "attention.sliding_window_pattern", vec![true]),
        &["sliding_window_pattern", "1 flags"],
    );
    says(
        shared("hidden_activation", "relu".into()),
        &["hidden_activation", "relu", "gelu"],
    );
    says(
        shared("hyper_connection.count", 4u32.into()),
        &["hyper-connections", "not supported"],
    );
    says(
        with_tensor("markov_w1.weight"),
        &["DSpark", "not supported"],
    );
    says(
        with_tensor("selector_hidden.weight"),
        &["DFlash 2", "not supported"],
    );
    for name in [
        "fc.weight",
        "enc.output_norm.weight",
        "blk.1.attn_k.weight",
        "blk.0.attn_q_norm.weight",
    ] {
        says(without(&own, &[name]), &[name, "missing"]);
    }
    says(
        without(&drafter_file(Dflash::Own, ty), &["output.weight"]),
        &["output.weight", "missing"],
    );

    // What the plan of the model could not export is refused when that is loaded, too.
    let load = |model: Arc<Gguf>, drafter: &Arc<Gguf>| {
        let loaded = Model::load_for_assistant(Purpose::Text, model, &[], drafter);
        loaded.unwrap_err().to_string()
    };
    let error = load(model, &shared("target_layers", vec![1u32, 5].into()));
    assert!(error.contains("last layer is 5"), "{error}");
    let error = load(model_file("granite", ty), &own);
    assert!(error.contains("not supported for granite"), "{error}");
    let error = Model::load(Arc::clone(&own)).unwrap_err().to_string();
    assert!(error.contains("--speculate draft:FILE"), "{error}");
    assert_eq!(Model::drafts_for(&own), Some(DraftsFor::Any));
    let names = target.assistant(own).unwrap().skipped.into_iter();
    let mut names: Vec<String> = names.map(|tensor| tensor.name).collect();
    names.sort();
    assert_eq!(names, ["enc.output_norm.weight", "fc.weight"]);
}

/// What a file leaves out: it is tied to its own embedding, and tokens of a block see only those before them.
#[test]
fn dflash_ties_its_output_and_may_be_causal() {
    let ty = GgmlType::F32;
    let own = drafter_file(Dflash::Own, ty);
    let tied = without(&own, &["output.weight", "d2t"]);
    let mut writer = writer_without(&tied, &[]);
    writer.set("dflash.attention.causal", true);
    let causal = gguf(writer);
    let mut full = writer_without(&tied, &[]);
    let table = tied.tensor("token_embd.weight").unwrap();
    let data = tied.tensor_data(table).to_vec();
    full.add_tensor("output.weight", &table.dims, table.ty, data)
        .unwrap();
    let [tied, full, causal] = [tied, gguf(full), causal].map(|file| {
        let (_, drafter) = pair_of(model_file("llama", ty), &file);
        let [context, predictor] = started(&drafter, &on(Device::Cpu));
        let values: Vec<f32> = (0..20 * 256)
            .map(|i| (i % 97) as f32 / 40.0 - 1.0)
            .collect();
        step(&context, (0, 20), &[], &values);
        let mut block = block_of(Dflash::Own, 7);
        let found = step(&predictor, (20, block.len()), &block, &[]);
        *block.last_mut().unwrap() = 9;
        (found, step(&predictor, (20, block.len()), &block, &[]))
    });
    assert!(tied == full);
    let (before, after) = causal;
    assert!(before != tied.0);
    let n = before.len() - 1;
    assert!(before[..n] == after[..n] && before[n] != after[n]);
    let (before, after) = tied;
    assert!(before.iter().zip(&after).all(|(a, b)| a != b));
}

/// A model has no operations for a drafter unless one is given.
#[test]
fn plans_for_dflash_export_what_it_takes() {
    let ty = GgmlType::Q4_0;
    let plain = Model::load(model_file("llama", ty)).unwrap().plan;
    let (target, drafter) = pair("llama", Dflash::Own, ty);
    let n_more = target.plan.ops.len() - plain.ops.len();
    // Four copies, three of which are joined with others, a conversion, a product and the export.
    assert_eq!(n_more, 10);
    let of_context = &drafter.context.as_ref().unwrap().plan;
    assert!(of_context.borrowed.is_empty() && !of_context.looks_ahead());
    assert!(
        !of_context
            .ops
            .iter()
            .any(|op| matches!(op, Op::Attention { .. }))
    );
    assert_eq!(drafter.plan.borrowed, [0, 1]);
    assert!(drafter.plan.looks_ahead() && drafter.plan.import().is_none());
}
