//! What every family computes, operation by operation, and what its files must have: plans and errors of small random
//! models, compared with committed ones. A plan changes only on purpose.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, OwnedValue, Writer};
use rocmforge_model::{Adapter, LoadError, Model, Purpose};
use rocmforge_plan::Fusion;
use rocmforge_testkit::adapters::adapter_of;
use rocmforge_testkit::data::forge_mini;
use rocmforge_testkit::models as synth;
use rocmforge_testkit::sweep::every_nth;

use crate::plan_text::{Memory, PlanText, hash, plan_text};

/// How much of a plan is committed.
#[derive(Clone, Copy, PartialEq)]
enum Detail {
    Text,
    Hash,
}

/// A model whose plan is committed.
struct Case {
    name: String,
    gguf: Arc<Gguf>,
    purpose: Purpose,
    adapters: Vec<Adapter>,
    detail: Detail,
}

/// Layers, so that each kind appears at least once.
fn n_layers(name: &str) -> usize {
    match name {
        "smollm3" | "olmo3" => 4,
        "gemma3" => 6,
        _ => 2,
    }
}

fn writer(name: &str, ty: GgmlType, n_layers: usize) -> Writer<'static> {
    synth::model_of(name, ty, n_layers).unwrap().unwrap()
}

pub(crate) fn open(writer: &Writer<'_>) -> Arc<Gguf> {
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

/// The file with the metadata and tensors that `keep` selects by key and by name, each tensor with the type and name
/// that `change` gives it.
pub(crate) fn rewritten(
    gguf: &Gguf,
    keep: impl Fn(&str) -> bool,
    change: impl Fn(&str) -> (String, Option<GgmlType>),
) -> Writer<'_> {
    let mut out = Writer::new(gguf.metadata().str("general.architecture").unwrap());
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| keep(key)) {
        out.set(key, value);
    }
    for info in gguf.tensors().iter().filter(|info| keep(&info.name)) {
        let (name, ty) = change(&info.name);
        let data: Cow<'_, [u8]> = match ty {
            Some(ty) if ty != info.ty => {
                let n = info.n_elements() as usize;
                vec![0; n / ty.block_len() * ty.block_bytes()].into()
            }
            _ => gguf.tensor_data(info).into(),
        };
        out.add_tensor(&name, &info.dims, ty.unwrap_or(info.ty), data)
            .unwrap();
    }
    out
}

fn cases() -> Vec<Case> {
    let case = |name: &str, gguf: Arc<Gguf>, detail| Case {
        name: name.to_string(),
        gguf,
        purpose: Purpose::Text,
        adapters: Vec::new(),
        detail,
    };
    let mut cases = vec![case("forge-mini", forge_mini(), Detail::Hash)];
    for name in synth::NAMES.into_iter().chain(["uneven"]) {
        let file = |ty| open(&writer(name, ty, n_layers(name)));
        cases.push(case(name, file(GgmlType::Q8_0), Detail::Text));
        let label = format!("{name} F32");
        cases.push(case(&label, file(GgmlType::F32), Detail::Hash));
    }
    for name in synth::families::names() {
        let writer = synth::families::model_of(name, GgmlType::Q8_0, 3);
        let gguf = open(&writer.unwrap().unwrap());
        cases.push(case(name, gguf, Detail::Hash));
    }
    for embedding in synth::embeddings::CASES {
        let writer = synth::embeddings::model(embedding.name, GgmlType::Q8_0);
        let gguf = open(&writer.unwrap().unwrap());
        cases.push(Case {
            purpose: Purpose::Embeddings(None),
            ..case(embedding.name, gguf, Detail::Hash)
        });
    }
    // Files in which the number of layers names a model of its own.
    for (name, n_layers) in [("gemma2", 46), ("gemma3", 62)] {
        let gguf = open(&writer(name, GgmlType::Q4_0, n_layers));
        cases.push(case(
            &format!("{name} {n_layers} layers"),
            gguf,
            Detail::Hash,
        ));
    }
    let all = |_: &str| true;
    let same = |name: &str| (name.to_string(), None);
    let loads = |writer: &Writer<'_>| Model::load(open(writer)).is_ok();
    for name in synth::NAMES {
        let gguf = open(&writer(name, GgmlType::Q8_0, 1));
        let tied = rewritten(&gguf, |key| key != "output.weight", same);
        cases.push(case(&format!("{name} tied"), open(&tied), Detail::Hash));
        // Several formats of activations in a layer.
        let mixed = rewritten(&gguf, all, |name| {
            let ty = match name {
                _ if name.contains("_norm") || name.contains("bias") => None,
                // Its rows are narrower than a block of Q4_K.
                _ if name.contains("attn_v_b") => None,
                _ if name.contains("attn_v") || name.contains("ffn_up") => Some(GgmlType::Q4_K),
                _ if name.contains("ffn_down") => Some(GgmlType::F16),
                _ => None,
            };
            (name.to_string(), ty)
        });
        cases.push(case(&format!("{name} mixed"), open(&mixed), Detail::Hash));
        // What a file may have: norms of heads and biases of products.
        let mut extra = rewritten(&gguf, all, same);
        for info in gguf.tensors() {
            let Some(product) = info.name.strip_suffix(".weight") else {
                continue;
            };
            let is_product = info.dims.len() == 2 && !product.contains("embd");
            let bias = format!("{product}.bias");
            if is_product && gguf.tensor(&bias).is_none() {
                let n = info.dims[1] as usize;
                let values = synth::uniform(&bias, n, 0.0, 0.5);
                extra
                    .add_tensor_f32(&bias, &[n as u64], GgmlType::F32, &values)
                    .unwrap();
            }
        }
        // Latent attention reads no bias of the heads' matrices, and no norms of heads.
        if loads(&extra) {
            cases.push(case(&format!("{name} biases"), open(&extra), Detail::Hash));
        }
        if gguf.tensor("blk.0.attn_q_norm.weight").is_none() {
            let arch = gguf.metadata().str("general.architecture").unwrap();
            let head_dim = gguf
                .metadata()
                .opt_u32(&format!("{arch}.attention.key_length"));
            let head_dim = head_dim.unwrap().unwrap_or(32);
            let mut normed = rewritten(&gguf, all, same);
            for part in ["q", "k"] {
                let norm = format!("blk.0.attn_{part}_norm.weight");
                let values = synth::uniform(&norm, head_dim as usize, 1.0, 0.3);
                normed
                    .add_tensor_f32(&norm, &[head_dim.into()], GgmlType::F32, &values)
                    .unwrap();
            }
            if loads(&normed) {
                cases.push(case(
                    &format!("{name} head norms"),
                    open(&normed),
                    Detail::Hash,
                ));
            }
        }
        if gguf.tensor("rope_freqs.weight").is_some() {
            continue;
        }
        let mut factors = rewritten(&gguf, all, same);
        let values = synth::uniform("rope_freqs.weight", 16, 2.0, 0.5);
        factors
            .add_tensor_f32("rope_freqs.weight", &[16], GgmlType::F32, &values)
            .unwrap();
        let label = format!("{name} rope factors");
        if loads(&factors) {
            cases.push(case(&label, open(&factors), Detail::Hash));
        }
    }
    for (name, adapters) in [
        ("llama", vec![("one", 1.0)]),
        ("llama", vec![("one", 0.7), ("two", -1.5)]),
        ("qwen2", vec![("one", 1.0)]),
        ("phi3", vec![("one", 1.0)]),
        ("granite", vec![("one", 0.5)]),
        ("olmo3", vec![("two", 1.0)]),
        ("gemma3", vec![("two", 1.0)]),
        ("gpt2", vec![("one", 1.0)]),
        ("qwen2moe", vec![("one", 1.0)]),
    ] {
        let gguf = open(&writer(name, GgmlType::Q8_0, 1));
        let load = |&(seed, scale): &(&str, f32)| {
            let tied = gguf.tensor("output.weight").is_none();
            let can_change = |name: &str| match name {
                "position_embd.weight" => false,
                "token_embd.weight" => !tied,
                _ => true,
            };
            let file = adapter_of(&gguf, seed, can_change).unwrap();
            Adapter::new(seed, open(&file), scale).unwrap()
        };
        cases.push(Case {
            name: format!("{name} lora x{}", adapters.len()),
            purpose: Purpose::Text,
            adapters: adapters.iter().map(load).collect(),
            detail: match name {
                "llama" | "phi3" => Detail::Text,
                _ => Detail::Hash,
            },
            gguf,
        });
    }
    cases
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Compares `got` with the parts of a committed file whose heading is one of `has`, line by line; `may_differ` accepts a pair of
/// lines that are not equal.
fn compare(
    name: &str,
    got: &str,
    has: impl Fn(&str) -> bool,
    may_differ: impl Fn(&str, &str) -> bool,
) {
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&new, got).unwrap();
    let path = fixture(name);
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let mut is_part = true;
    let parts = expected.split_inclusive('\n').filter(|line| {
        is_part = line
            .strip_prefix("== ")
            .map_or(is_part, |heading| has(heading.trim_end()));
        is_part
    });
    let expected: String = parts.collect();
    let mut heading = "";
    let mut lines = expected.lines();
    for got in got.lines() {
        let expected = lines.next().unwrap_or("the end");
        if got.starts_with("== ") {
            heading = got;
        }
        assert!(
            got == expected || may_differ(expected, got),
            "{heading}\nexpected {expected}\n     got {got}\nthe new text, whole if ROCMFORGE_TEST_REPEATS is set, is {}; \
             if the change is wanted, copy it to {}",
            new.display(),
            path.display(),
        );
    }
    assert_eq!(lines.next(), None, "{} ends too early", new.display());
}

#[test]
fn plans_compute_what_they_did() {
    let mut all = String::new();
    for case in cases() {
        let model = Model::load_for(case.purpose, case.gguf.clone(), &case.adapters);
        let model = model.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let [off, on] = [Fusion::Off, Fusion::On].map(|it| plan_text(&model, &case.gguf, it));
        all += &format!("== {}\n", case.name);
        if case.detail == Detail::Text {
            all += &off.text;
        }
        for (label, PlanText { text, memory }) in [("separate", off), ("fused", on)] {
            let Memory([tokens, logits]) = memory;
            let (n_ops, hash) = (text.lines().count(), hash(text.bytes()));
            all += &format!("{label} {n_ops} {hash}\n{label} bytes {tokens} {logits}\n");
        }
    }
    let bytes = |line: &str| -> Option<Vec<u64>> {
        let (_, numbers) = line.split_once(" bytes ")?;
        numbers.split(' ').map(|n| n.parse().ok()).collect()
    };
    let may_differ = |expected: &str, got: &str| match (bytes(expected), bytes(got)) {
        (Some(most), Some(got)) => got.iter().zip(&most).all(|(got, most)| got <= most),
        _ => false,
    };
    compare("plans.txt", &all, |_| true, may_differ);
}

/// Metadata keys of all families, and values that each of them may have.
const KEYS: [&str; 48] = [
    "activation_sparsity_scale",
    "altup.active_idx",
    "altup.num_inputs",
    "attention.key_length_swa",
    "attention.shared_kv_layers",
    "attention.temperature_scale",
    "attention.value_length_swa",
    "embedding_length_per_layer_input",
    "rope.dimension_count_swa",
    "rope.scaling.yarn_log_multiplier",
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "attn_logit_softcapping",
    "block_count",
    "context_length",
    "deepstack_mapping",
    "embedding_length",
    "embedding_scale",
    "expert_count",
    "expert_feed_forward_length",
    "expert_group_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "expert_weights_scale",
    "feed_forward_length",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "vocab_size",
];

fn values() -> Vec<(&'static str, Option<OwnedValue>)> {
    vec![
        ("removed", None),
        ("0", Some(0u32.into())),
        ("1", Some(1u32.into())),
        ("3", Some(3u32.into())),
        ("2^32-1", Some(u32::MAX.into())),
        ("2.5", Some(2.5f32.into())),
        ("nan", Some(f32::NAN.into())),
        ("false", Some(false.into())),
        ("text", Some("yarn".into())),
        ("longrope", Some("longrope".into())),
        ("flags", Some(vec![false, true].into())),
        ("numbers", Some(vec![1u32, 2].into())),
        ("negative", Some(vec![-1i32, 0].into())),
    ]
}

/// Every third value, others for each key; all of them in a full run.
fn tried(key: &str) -> impl Iterator<Item = (&'static str, Option<OwnedValue>)> {
    let turn = KEYS
        .iter()
        .position(|known| *known == key)
        .expect("a key of the list");
    every_nth(3, turn, values())
}

/// What loading gives: a plan, or the error with the architecture's name left out.
fn outcome(gguf: Arc<Gguf>, arch: &str, usual: &str) -> String {
    match Model::load(gguf.clone()) {
        Ok(model) => {
            let text = plan_text(&model, &gguf, Fusion::Off).text;
            let facts = [model.config.n_ctx_train, model.config.n_vocab];
            let plan = format!("{}{facts:?}", hash(text.bytes()));
            match plan == usual {
                true => "no difference".to_string(),
                false => plan,
            }
        }
        Err(error) => message(&error, arch),
    }
}

fn message(error: &LoadError, arch: &str) -> String {
    let text = error.to_string().replace(&format!("`{arch}."), "`ARCH.");
    let text = text.replace(&format!("'{arch}."), "'ARCH.");
    let text = text.replace(&format!("this {arch} "), "this ARCH ");
    let text = text.replace(&format!("the {arch} "), "the ARCH ");
    text.replace(&format!("which {arch} needs"), "which ARCH needs")
}

/// Every key with other values, every tensor missing or of another shape, and a tensor too many, in a model of each
/// family. The text has each change with its outcomes and, for each, the models; changes without effect are left out.
#[test]
fn files_are_accepted_and_refused_as_they_were() {
    let mut all: BTreeMap<String, BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    for name in synth::NAMES {
        let gguf = open(&writer(name, GgmlType::Q4_0, 2));
        let arch = gguf.metadata().str("general.architecture").unwrap();
        let usual = outcome(gguf.clone(), arch, "");
        let same = |name: &str| (name.to_string(), None);
        let mut record = |change: String, writer: &Writer<'_>| {
            let outcome = outcome(open(writer), arch, &usual);
            if outcome != "no difference" {
                let outcomes = all.entry(change).or_default();
                outcomes.entry(outcome).or_default().push(name);
            }
        };
        for key in KEYS {
            let full = format!("{arch}.{key}");
            for (label, value) in tried(key) {
                let mut changed = rewritten(&gguf, |it| it != full, same);
                if let Some(value) = value {
                    changed.set(&full, value);
                }
                record(format!("{key}={label}"), &changed);
            }
        }
        let first = gguf.tensors().iter();
        for info in first.filter(|info| !info.name.starts_with("blk.1.")) {
            let missing = rewritten(&gguf, |it| it != info.name, same);
            record(format!("-{}", info.name), &missing);
            let mut narrow = rewritten(&gguf, |it| it != info.name, same);
            narrow
                .add_tensor_f32(&info.name, &[3], GgmlType::F32, &[1.0; 3])
                .unwrap();
            record(format!("~{}", info.name), &narrow);
        }
        for extra in [
            "blk.0.extra.weight",
            "blk.0.attn_rot_embd",
            "rope_freqs.weight",
        ] {
            if gguf.tensor(extra).is_some() {
                continue;
            }
            let mut more = rewritten(&gguf, |_| true, same);
            more.add_tensor_f32(extra, &[16], GgmlType::F32, &[1.5; 16])
                .unwrap();
            record(format!("+{extra}"), &more);
        }
    }
    let mut text = String::new();
    for (change, outcomes) in all {
        text += &format!("== {change}\n");
        for (outcome, models) in outcomes {
            let models = match models.len() == synth::NAMES.len() {
                true => "all".to_string(),
                false => models.join(" "),
            };
            text += &format!("{outcome}: {models}\n");
        }
    }
    let keys = KEYS
        .iter()
        .flat_map(|key| tried(key).map(move |(label, _)| format!("{key}={label}")));
    let keys: BTreeSet<String> = keys.collect();
    let is_tried = |change: &str| change.starts_with(['-', '~', '+']) || keys.contains(change);
    compare("outcomes.txt", &text, is_tried, |_, _| false);
}

#[test]
fn tensors_are_left_out_only_for_a_reason() {
    let mut writer = writer("llama", GgmlType::Q4_0, 1);
    assert!(Model::load(open(&writer)).unwrap().skipped.is_empty());
    writer
        .add_tensor_f32("blk.0.attn_rot_embd", &[16], GgmlType::F32, &[1.5; 16])
        .unwrap();
    let skipped = Model::load(open(&writer)).unwrap().skipped;
    let [tensor] = &skipped[..] else {
        panic!("one tensor is left out: {skipped:?}");
    };
    assert_eq!(tensor.name, "blk.0.attn_rot_embd");
    assert!(tensor.reason.contains("RoPE"), "{}", tensor.reason);
}
