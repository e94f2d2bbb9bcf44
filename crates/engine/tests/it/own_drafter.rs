//! The layer of a model's own file that predicts the token after the next one (multi-token prediction): its logits against the
//! definition in f64, and texts with its drafts against those without.

use std::sync::Arc;

use rocmforge_engine::speculate::{DraftLength, ModelDrafter};
use rocmforge_engine::{Device, Engine, EngineConfig, Request};
use rocmforge_gguf::{GgmlType, Gguf, TokenId, Writer, quant};
use rocmforge_model::Model;
use rocmforge_plan::{Batch, BatchSeq, InputToken, LogitsRow, RowOutput, Want};
use rocmforge_runtime::Started;
use rocmforge_runtime::check::{self, Coverage, Extent, OpCheck};
use rocmforge_testkit::exact;
use rocmforge_testkit::models::{families, prompt};
use rocmforge_testkit::sweep::first;

use crate::common::test_gpu;
use crate::speculation::{Trace, config, greedy, run};

fn file(name: &str, ty: GgmlType) -> Arc<Gguf> {
    let writer = families::model(name, ty).unwrap().unwrap();
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

pub(crate) fn devices() -> impl Iterator<Item = Device> {
    [Device::Cpu].into_iter().chain(test_gpu().map(Device::Gpu))
}

fn start(drafter: &Model, device: Device) -> Started {
    let config = EngineConfig {
        device,
        max_draft: 0,
        ..config()
    };
    rocmforge_runtime::start(drafter, &config).unwrap()
}

/// Returns the logits of the last token, and the hidden values of all. The tokens come in two parts.
pub(crate) fn logits(
    started: &Started,
    tokens: &[TokenId],
    hidden: &[f32],
) -> (Vec<f32>, Vec<f32>) {
    let width = hidden.len() / tokens.len();
    let half = tokens.len() / 2;
    let mut exports = Vec::new();
    let mut last = Vec::new();
    for (step, rows) in [0..half, half..tokens.len()].into_iter().enumerate() {
        let n = rows.len();
        let positions = rows.start as u32..rows.end as u32;
        let batch = Batch {
            step: step as u64,
            tokens: tokens[rows.clone()]
                .iter()
                .map(|&id| InputToken::Id(id))
                .collect(),
            positions: positions.clone().collect(),
            slots: positions.collect(),
            seqs: vec![BatchSeq {
                first_row: 0,
                n_rows: n,
                first_pos: rows.start,
                block_table: Arc::new((0..16).collect()),
                state: None,
            }],
            logits: vec![LogitsRow {
                row: n - 1,
                want: Want::Logits,
            }],
            imports: hidden[rows.start * width..rows.end * width].to_vec(),
            exports: width > 0,
            ..Batch::default()
        };
        let output = started.executor.submit(batch).wait().unwrap();
        exports.extend(output.exports);
        let Some(RowOutput::Logits(logits)) = output.rows.into_iter().next() else {
            panic!("logits");
        };
        last = logits;
    }
    (last, exports)
}

/// The tensors of a drafter.
pub(crate) struct Tensors<'a> {
    pub(crate) gguf: &'a Gguf,
    pub(crate) layer: usize,
    pub(crate) eps: f64,
}

/// The definition, of one sequence.
struct Definition<'a> {
    of: Tensors<'a>,
    n_heads: usize,
    n_kv_heads: usize,
    head: usize,
    n_rot: usize,
    base: f64,
}

pub(crate) type Row = Vec<f64>;

impl Tensors<'_> {
    pub(crate) fn tensor(&self, name: &str) -> Vec<f64> {
        let info = self.gguf.tensor(name).unwrap_or_else(|| panic!("{name}"));
        let mut values = vec![0.0; info.dims.iter().product::<u64>() as usize];
        quant::dequantize(info.ty, self.gguf.tensor_data(info), &mut values).unwrap();
        exact::widened(&values)
    }

    pub(crate) fn own(&self, name: &str) -> Vec<f64> {
        self.tensor(&format!("blk.{}.{name}.weight", self.layer))
    }

    pub(crate) fn norm(&self, x: &[f64], weight: &[f64]) -> Row {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + self.eps).sqrt();
        x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
    }

    pub(crate) fn product(x: &[f64], matrix: &[f64]) -> Row {
        exact::product(x, matrix)
    }

    /// Returns what the layer takes: of a token, and of the hidden values before it.
    fn join(&self, token: &[f64], hidden: &[f64]) -> Row {
        let token = self.norm(token, &self.own("nextn.enorm"));
        let hidden = self.norm(hidden, &self.own("nextn.hnorm"));
        Self::product(&[token, hidden].concat(), &self.own("nextn.eh_proj"))
    }
}

impl Definition<'_> {
    /// Rotates the first values of a head, in pairs half of them apart.
    fn rotate(&self, head: &mut [f64], pos: usize) {
        let half = self.n_rot / 2;
        for i in 0..half {
            let angle = pos as f64 * self.base.powf(-2.0 * i as f64 / self.n_rot as f64);
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[i + half] = a * angle.sin() + b * angle.cos();
        }
    }

    /// Returns the logits of the last token, and the last hidden values of all.
    fn compute(&self, tokens: &[TokenId], hidden: &[Row]) -> (Row, Vec<Row>) {
        let of = &self.of;
        let n_embd = hidden[0].len();
        let table = of.tensor("token_embd.weight");
        let joined: Vec<Row> = { tokens.iter().zip(hidden) }
            .map(|(&id, hidden)| of.join(&table[id as usize * n_embd..][..n_embd], hidden))
            .collect();
        let attended = self.attention(&joined);
        let outs: Vec<Row> = { joined.iter().zip(attended) }
            .map(|(x, a)| {
                let x: Row = x.iter().zip(a).map(|(x, a)| x + a).collect();
                let normed = of.norm(&x, &of.own("post_attention_norm"));
                let gate = Tensors::product(&normed, &of.own("ffn_gate"));
                let up = Tensors::product(&normed, &of.own("ffn_up"));
                let both: Row = { gate.iter().zip(up) }
                    .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                    .collect();
                let down = Tensors::product(&both, &of.own("ffn_down"));
                let x: Row = x.iter().zip(down).map(|(x, d)| x + d).collect();
                of.norm(&x, &of.own("nextn.shared_head_norm"))
            })
            .collect();
        let last = outs.last().expect("a token");
        (Tensors::product(last, &of.tensor("output.weight")), outs)
    }

    fn attention(&self, x: &[Row]) -> Vec<Row> {
        let of = &self.of;
        let normed: Vec<Row> = x.iter().map(|x| of.norm(x, &of.own("attn_norm"))).collect();
        let [wq, wk, wv, wo] =
            ["attn_q", "attn_k", "attn_v", "attn_output"].map(|name| of.own(name));
        let [q_norm, k_norm] = ["attn_q_norm", "attn_k_norm"].map(|name| of.own(name));
        let head_of = |row: &Row, i: usize| row[i * self.head..(i + 1) * self.head].to_vec();
        let turned = |head: Row, norm: &[f64], pos: usize| {
            let mut head = of.norm(&head, norm);
            self.rotate(&mut head, pos);
            head
        };
        let keys: Vec<Row> = normed.iter().map(|x| Tensors::product(x, &wk)).collect();
        let values: Vec<Row> = normed.iter().map(|x| Tensors::product(x, &wv)).collect();
        let of_row = |(pos, x): (usize, &Row)| {
            // Each head's queries, and then its gates.
            let queries = Tensors::product(x, &wq);
            let mut joined = Row::new();
            for i in 0..self.n_heads {
                let q = turned(head_of(&queries, 2 * i), &q_norm, pos);
                let gates = head_of(&queries, 2 * i + 1);
                let shared = i / (self.n_heads / self.n_kv_heads);
                let scores: Row = (0..=pos)
                    .map(|at| {
                        let k = turned(head_of(&keys[at], shared), &k_norm, at);
                        let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                        (dot / (self.head as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = scores.iter().sum();
                joined.extend((0..self.head).map(|j| {
                    let each = scores.iter().zip(&values);
                    let sum: f64 = each
                        .map(|(s, v)| s / total * v[shared * self.head + j])
                        .sum();
                    sum / (1.0 + (-gates[j]).exp())
                }));
            }
            Tensors::product(&joined, &wo)
        };
        normed.iter().enumerate().map(of_row).collect()
    }
}

fn assert_near(what: &str, found: &[f32], expected: &[f64]) {
    let size = expected.iter().map(|x| x * x).sum::<f64>();
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    assert_eq!(found.len(), expected.len());
    assert!(error < 1e-6 * size, "{what}: {:.1e}", (error / size).sqrt());
}

#[test]
fn own_drafters_compute_what_they_are_defined_as() {
    let gguf = file("qwen35", GgmlType::F32);
    let model = Model::load(Arc::clone(&gguf)).unwrap();
    let drafter = model.drafter().unwrap();
    let (n_embd, n_vocab) = (model.config.n_embd, model.config.n_vocab);
    let tokens = prompt(11, n_vocab);
    let value = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) / 300.0;
    let hidden: Vec<f32> = (0..tokens.len() * n_embd).map(value).collect();
    let facts = drafter.config.layers.last().unwrap();
    let rope = &drafter.config.ropes[0];
    let definition = Definition {
        of: Tensors {
            gguf: &gguf,
            layer: model.config.n_layers(),
            eps: f64::from(model.config.norm_eps),
        },
        n_heads: facts.n_heads,
        n_kv_heads: facts.n_kv_heads,
        head: facts.k_dim,
        n_rot: rope.n_rot,
        base: rope.base,
    };
    let rows: Vec<Row> = { hidden.chunks(n_embd) }
        .map(|row| row.iter().map(|&x| f64::from(x)).collect())
        .collect();
    let (expected, outs) = definition.compute(&tokens, &rows);
    for device in devices() {
        let (found, exports) = logits(&start(&drafter, device), &tokens, &hidden);
        assert_near("logits", &found, &expected);
        assert_near("hidden values", &exports, &outs.concat());
    }
}

/// Returns the file with an embedding and an output of the drafter's own, as released files of GLM have them.
fn with_own_tables(gguf: &Gguf, layer: usize) -> Arc<Gguf> {
    let mut writer = copy_of_metadata(gguf);
    for info in gguf.tensors() {
        let data = gguf.tensor_data(info).to_vec();
        let own = match info.name.as_str() {
            "token_embd.weight" => Some("embed_tokens"),
            "output.weight" => Some("shared_head_head"),
            _ => None,
        };
        if let Some(own) = own {
            // The rows of other tokens.
            let mut data = data.clone();
            data.rotate_left(3 * info.dims[0] as usize * size_of::<f32>());
            let name = format!("blk.{layer}.nextn.{own}.weight");
            writer.add_tensor(&name, &info.dims, info.ty, data).unwrap();
        }
        writer
            .add_tensor(&info.name, &info.dims, info.ty, data)
            .unwrap();
    }
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

fn copy_of_metadata(gguf: &Gguf) -> Writer<'static> {
    let mut writer = Writer::default();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value);
    }
    writer
}

/// Returns a model whose only layer is the drafter's, and whose embeddings are what this layer takes after `hidden`.
fn as_model(of: &Tensors<'_>, arch: &str, hidden: &[f64]) -> Model {
    let mut writer = copy_of_metadata(of.gguf);
    for (key, n) in [
        ("block_count", 1),
        ("leading_dense_block_count", 0),
        ("nextn_predict_layers", 0),
    ] {
        writer.set(&format!("{arch}.{key}"), n as u32);
    }
    let own = format!("blk.{}.", of.layer);
    let has = |name: &str| {
        of.gguf
            .tensor(&format!("{own}nextn.{name}.weight"))
            .is_some()
    };
    for info in of.gguf.tensors() {
        let name = match info.name.strip_prefix(&own) {
            Some("nextn.shared_head_norm.weight") => "output_norm.weight".to_string(),
            Some("nextn.shared_head_head.weight") => "output.weight".to_string(),
            Some(part) if !part.starts_with("nextn.") => format!("blk.0.{part}"),
            None if info.name == "output.weight" && !has("shared_head_head") => info.name.clone(),
            _ => continue,
        };
        let data = of.gguf.tensor_data(info).to_vec();
        writer.add_tensor(&name, &info.dims, info.ty, data).unwrap();
    }
    let table = match has("embed_tokens") {
        true => of.own("nextn.embed_tokens"),
        false => of.tensor("token_embd.weight"),
    };
    let rows = table.chunks(hidden.len());
    let joined: Vec<f32> = rows
        .flat_map(|token| of.join(token, hidden))
        .map(|x| x as f32)
        .collect();
    let dims = [hidden.len() as u64, (table.len() / hidden.len()) as u64];
    writer
        .add_tensor_f32("token_embd.weight", &dims, GgmlType::F32, &joined)
        .unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    Model::load(Arc::new(gguf)).unwrap()
}

/// The layers themselves are compared with llama.cpp as those of models.
#[test]
fn own_drafters_with_experts_are_models_of_their_layer() {
    for (name, arch, has_tables) in first(
        2,
        [
            ("glm4moe", "glm4moe", true),
            ("deepseek3", "deepseek2", false),
            ("glm4moe", "glm4moe", false),
        ],
    ) {
        let gguf = file(name, GgmlType::F32);
        let n_layers = Model::load(Arc::clone(&gguf)).unwrap().config.n_layers();
        let gguf = match has_tables {
            true => with_own_tables(&gguf, n_layers),
            false => gguf,
        };
        let model = Model::load(Arc::clone(&gguf)).unwrap();
        let of = Tensors {
            gguf: &gguf,
            layer: model.config.n_layers(),
            eps: f64::from(model.config.norm_eps),
        };
        let value = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) / 300.0;
        let hidden: Vec<f32> = (0..model.config.n_embd).map(value).collect();
        let exact: Row = hidden.iter().map(|&x| f64::from(x)).collect();
        let alike = as_model(&of, arch, &exact);
        let drafter = model.drafter().unwrap();
        let tokens = prompt(11, model.config.n_vocab);
        // An emulated GPU takes long.
        let n_devices = if has_tables { 2 } else { 1 };
        for device in first(n_devices, devices()) {
            let imports = hidden.repeat(tokens.len());
            let (found, exports) = logits(&start(&drafter, device.clone()), &tokens, &imports);
            let (expected, _) = logits(&start(&alike, device), &tokens, &[]);
            let expected: Row = expected.into_iter().map(f64::from).collect();
            assert_near(name, &found, &expected);
            // What it returns of the last token is what its logits are products of.
            let last = &exports[exports.len() - hidden.len()..];
            let last: Row = last.iter().map(|&x| f64::from(x)).collect();
            let head = match has_tables {
                true => of.own("nextn.shared_head_head"),
                false => of.tensor("output.weight"),
            };
            assert_near(name, &found, &Tensors::product(&last, &head));
        }
    }
}

#[test]
fn own_drafters_pass_the_check_of_a_gpu() {
    let Some(gpu) = test_gpu() else { return };
    let model = Model::load(file("qwen35", GgmlType::Q4_0)).unwrap();
    let config = EngineConfig {
        device: Device::Gpu(gpu),
        max_draft: 0,
        ..config()
    };
    let tokens = prompt(30, model.config.n_vocab);
    let drafter = model.drafter().unwrap();
    let report = check::check(
        &drafter,
        &config,
        &tokens,
        &Extent::after(16, Coverage::Distinct),
    )
    .unwrap();
    let failures: Vec<&OpCheck> = report.failures().collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(report.checks.iter().any(|check| check.op == "import"));
}

/// Also drafts of a model that is sure of nothing. An emulated GPU computes rows of a draft with other kernels than a single row,
/// so that only the first tokens are compared there.
#[test]
fn own_drafters_change_no_text() {
    let model = Model::load(file("qwen35", GgmlType::Q4_0)).unwrap();
    let drafter = model.drafter().unwrap();
    let (n_vocab, width) = (model.config.n_vocab, model.config.n_embd);
    for device in devices() {
        let (n_seqs, n_tokens, lengths) = match device {
            Device::Cpu => (3, 40, &[1, 3][..]),
            Device::Gpu(_) => (1, 5, &[2][..]),
        };
        let requests: Vec<Request> = (0..n_seqs)
            .map(|i| greedy(prompt(20 + 9 * i, n_vocab)[5 * i..].to_vec(), n_tokens))
            .collect();
        let is_cpu = matches!(device, Device::Cpu);
        let config = EngineConfig { device, ..config() };
        let engine = || Engine::start(&model, None, &config).unwrap();
        let without_bits = |mut traces: Vec<Trace>| {
            if !is_cpu {
                traces
                    .iter_mut()
                    .flatten()
                    .for_each(|(_, bits)| bits.clear());
            }
            traces
        };
        let expected = without_bits(run(&mut engine(), &requests));
        for &n in lengths {
            let mut engine = engine();
            let started = start(&drafter, config.device.clone());
            let own = ModelDrafter::of_hidden(started, config.page, n_vocab, width);
            engine.speculate(Box::new(own.with_least(0.0)), DraftLength::Always(n));
            let found = without_bits(run(&mut engine, &requests));
            assert!(found == expected, "drafts of {n}");
            let drafts = engine.stats().drafts;
            let n_least = n_seqs * n_tokens * n / 2;
            assert!(drafts.n_drafted >= n_least as u64, "{drafts:?}");
        }
    }
}
