//! Quantizes whole models. The types of every mix are compared with those that llama.cpp's quantizer chose for
//! the same tensors (`cargo xtask mix-golden`), and with its files of forge-mini.

use std::ops::ControlFlow;
use std::sync::Arc;

use rocmforge_gguf::quant::{dequantize, quantize_rows};
use rocmforge_gguf::{GgmlType, Gguf, LoadMode, Value as GgufValue, Writer};
use rocmforge_quantize::imatrix::{Entry, Imatrix};
use rocmforge_quantize::{
    FileType, Mixing, QuantizeError, QuantizeOptions, QuantizePlan, Requantize, TypeRule,
};
use rocmforge_testkit::data::{conformance, forge_mini, golden, models, read_json};
use serde_json::Value;

/// Expands a line of the table to names and dimensions: `blk.*.attn_q.weight 256 2` stands for every layer.
fn expand(line: &str, n_layers: u64) -> Vec<(String, Vec<u64>)> {
    let mut words = line.split(' ');
    let name = words.next().unwrap();
    let dims: Vec<u64> = words.map(|dim| dim.parse().unwrap()).collect();
    let n = if name.contains('*') { n_layers } else { 1 };
    (0..n)
        .map(|layer| (name.replace('*', &layer.to_string()), dims.clone()))
        .collect()
}

fn lines(model: &Value) -> Vec<&str> {
    let lines = model["tensors"].as_array().unwrap().iter();
    lines.map(|line| line.as_str().unwrap()).collect()
}

/// Creates a model of the table, in F32.
fn table_model(model: &Value) -> Gguf {
    let arch = model["arch"].as_str().unwrap();
    let mut writer = Writer::new(arch);
    for (key, fact) in [
        ("block_count", "layers"),
        ("attention.head_count", "heads"),
        ("attention.head_count_kv", "kv_heads"),
        ("expert_count", "experts"),
    ] {
        let value = model[fact].as_u64().unwrap() as u32;
        writer.set(&format!("{arch}.{key}"), value);
    }
    // In reverse, because a mix must count layers, not tensors of the file.
    for line in lines(model).into_iter().rev() {
        for (name, dims) in expand(line, model["layers"].as_u64().unwrap()).iter().rev() {
            let n: u64 = dims.iter().product();
            writer
                .add_tensor(name, dims, GgmlType::F32, vec![0; 4 * n as usize])
                .unwrap();
        }
    }
    Gguf::from_vec(writer.to_vec().unwrap()).unwrap()
}

/// An importance matrix of ones.
fn even_importance(gguf: &Gguf) -> Imatrix {
    let entry = |dims: &[u64]| Entry {
        sums: vec![1.0; (dims[0] * dims.get(2).unwrap_or(&1)) as usize],
        counts: vec![1],
    };
    let tensors = gguf.tensors().iter();
    Imatrix {
        datasets: vec!["some text".into(), "other text".into()],
        n_chunks: 7,
        chunk_size: 512,
        entries: tensors
            .map(|info| (info.name.clone(), entry(&info.dims)))
            .collect(),
    }
}

#[test]
fn mixes_choose_the_same_types_as_llama_cpp() {
    let table = read_json(&models().join("../crates/quantize/tests/fixtures/mixes.json"));
    let letter = |ty: GgmlType| table["letters"][ty.name()].as_str().unwrap();
    let (mut n_compared, mut n_fallbacks) = (0, 0);
    for (model_name, model) in table["models"].as_object().unwrap() {
        let gguf = Arc::new(table_model(model));
        for (type_name, expected) in model["types"].as_object().unwrap() {
            let mut options = QuantizeOptions::new(FileType::from_name(type_name).unwrap());
            if model["importance"] == true {
                options.importance = Some((even_importance(&gguf), "imatrix.gguf".into()));
            }
            let plan = QuantizePlan::new(Arc::clone(&gguf), options).unwrap();
            let types = plan.tensors().iter();
            if expected.is_null() && type_name == "Q1_0" {
                // llama.cpp knows no replacement for Q1_0 and rejects narrow models; here it is that of Q2_K.
                let mut replaced = types.filter(|plan| plan.instead_of == Some(GgmlType::Q1_0));
                let narrow = match model_name.as_str() {
                    "narrow-288" => GgmlType::Q4_0,
                    _ => GgmlType::F16,
                };
                assert!(replaced.any(|plan| plan.to == narrow), "{model_name}");
                continue;
            }
            if expected.is_null() {
                // llama.cpp rejects it as well: this mix is useless without an importance matrix.
                let refused = plan.write(std::io::sink(), 1, |_| ControlFlow::Continue(()));
                assert!(
                    matches!(refused, Err(QuantizeError::NeedsImportance { .. })),
                    "{model_name} {type_name}"
                );
                continue;
            }
            n_fallbacks += types.filter(|plan| plan.instead_of.is_some()).count();
            for (line, expected) in lines(model).iter().zip(expected.as_array().unwrap()) {
                let found: String = expand(line, model["layers"].as_u64().unwrap())
                    .iter()
                    .map(|(name, _)| {
                        let mut plans = plan.tensors().iter();
                        letter(plans.find(|plan| plan.name == *name).unwrap().to)
                    })
                    .collect();
                let mut expected = expected.as_str().unwrap().to_string();
                if expected.len() == 1 {
                    expected = expected.repeat(found.len());
                }
                assert_eq!(found, expected, "{model_name} {type_name} {line}");
                n_compared += found.len();
            }
        }
    }
    assert!(n_compared > 50_000, "{n_compared}");
    assert!(n_fallbacks > 500, "{n_fallbacks}");
}

#[test]
fn forge_mini_gets_the_same_types_as_golden_files() {
    let Some(folder) = conformance("models") else {
        return;
    };
    let open = |variant: &str| {
        let path = folder.join(format!("forge-mini-{variant}.gguf"));
        Gguf::open(&path, LoadMode::Mmap).unwrap()
    };
    let source = Arc::new(open("F16"));
    let variants = golden();
    for (variant, _) in variants["variants"].as_object().unwrap() {
        let expected = open(variant);
        let mut options = match FileType::from_name(variant) {
            Some(file_type) => QuantizeOptions::new(file_type),
            None => QuantizeOptions::new(FileType::MXFP4_MOE),
        };
        if variant == "MXFP4" {
            // In that file, everything except the embedding is MXFP4.
            options.rules = vec![TypeRule::parse("^blk=MXFP4").unwrap()];
        }
        let plan = QuantizePlan::new(Arc::clone(&source), options).unwrap();
        for tensor in plan.tensors() {
            let golden = expected.tensor(&tensor.name).unwrap();
            assert_eq!(tensor.to, golden.ty, "{variant} {}", tensor.name);
            assert_eq!(tensor.bytes, golden.n_bytes, "{variant} {}", tensor.name);
        }
        assert_eq!(plan.tensors().len(), expected.tensors().len());
    }
}

/// A model of two layers with experts, rows that fit every type, and one that fits none.
fn small_model() -> Gguf {
    let mut writer = Writer::new("llama");
    writer.set("llama.block_count", 2u32);
    writer.set("llama.expert_count", 2u32);
    writer.set("general.name", "small");
    writer.set("general.file_type", 0u32);
    let mut state = 1u32;
    let mut values = |n: u64| -> Vec<f32> {
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state) as f32 / 4e9 - 0.5
        };
        (0..n).map(next).collect()
    };
    for (name, dims) in [
        ("token_embd.weight", &[512, 70][..]),
        ("blk.0.attn_q.weight", &[512, 300]),
        ("blk.0.attn_norm.weight", &[512]),
        ("blk.1.ffn_down_exps.weight", &[256, 90, 2]),
        ("blk.1.attn_v.weight", &[100, 8]),
    ] {
        let values = values(dims.iter().product());
        writer
            .add_tensor_f32(name, dims, GgmlType::F32, &values)
            .unwrap();
    }
    Gguf::from_vec(writer.to_vec().unwrap()).unwrap()
}

fn write(plan: &QuantizePlan, n_threads: usize) -> Vec<u8> {
    let mut out = Vec::new();
    plan.write(&mut out, n_threads, |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(out.len() as u64, plan.file_bytes());
    out
}

fn f32s(gguf: &Gguf, name: &str) -> Vec<f32> {
    let info = gguf.tensor(name).unwrap();
    let mut values = vec![0.0; info.n_elements() as usize];
    dequantize(info.ty, gguf.tensor_data(info), &mut values).unwrap();
    values
}

#[test]
fn writes_blocks_of_all_rows_and_reports_errors() {
    let source = Arc::new(small_model());
    let mut imatrix = even_importance(&source);
    let experts = imatrix
        .entries
        .get_mut("blk.1.ffn_down_exps.weight")
        .unwrap();
    experts.counts = vec![4, 0];
    for (column, sum) in experts.sums.iter_mut().enumerate() {
        *sum = 1.0 + (column % 7) as f32;
    }
    let mut options = QuantizeOptions::new(FileType::Q8_0);
    options.rules = vec![TypeRule::parse("attn_[qk]=q4_0").unwrap()];
    options.importance = Some((imatrix.clone(), "some.gguf".into()));
    let plan = QuantizePlan::new(Arc::clone(&source), options).unwrap();
    let bytes = write(&plan, 1);
    assert!(bytes == write(&plan, 3), "the threads change the file");
    let reports = plan
        .write(std::io::sink(), 2, |_| ControlFlow::Continue(()))
        .unwrap();

    let file = Gguf::from_vec(bytes).unwrap();
    for (info, report) in source.tensors().iter().zip(&reports) {
        let made = file.tensor(&info.name).unwrap();
        assert_eq!((&made.name, &made.dims), (&info.name, &info.dims));
        assert_eq!(made.ty, report.tensor.to);
        let before = f32s(&source, &info.name);
        if info.name == "blk.0.attn_norm.weight" {
            assert_eq!(file.tensor_data(made), source.tensor_data(info));
            assert_eq!(report.errors, None);
            continue;
        }
        // Each expert's matrix has its own column importance.
        let row_len = info.row_len() as usize;
        let weights = imatrix.mean_squares(&info.name).unwrap();
        let n_matrices = info.dims.get(2).map_or(1, |&n| n as usize);
        let matrix = before.len() / n_matrices;
        let mut expected = Vec::new();
        for (values, weights) in before.chunks(matrix).zip(weights.chunks(row_len)) {
            let mut blocks = vec![0; made.ty.row_bytes(matrix).unwrap()];
            quantize_rows(made.ty, values, row_len, Some(weights), &mut blocks).unwrap();
            expected.extend(blocks);
        }
        assert!(file.tensor_data(made) == expected, "{}", info.name);

        let after = f32s(&file, &info.name);
        let weight = |i: usize| f64::from(weights[i / matrix * row_len + i % row_len]);
        let sum = |f: &dyn Fn(usize) -> f64| (0..before.len()).map(f).sum::<f64>();
        let e2 = |i: usize| f64::from(before[i] - after[i]).powi(2);
        let x2 = |i: usize| f64::from(before[i]).powi(2);
        let errors = report.errors.unwrap();
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b;
        assert!(close(errors.rmse, (sum(&e2) / before.len() as f64).sqrt()));
        assert!(close(errors.relative, (sum(&e2) / sum(&x2)).sqrt()));
        let weighted = sum(&|i| weight(i) * e2(i)) / sum(&|i| weight(i) * x2(i));
        assert!(close(errors.weighted.unwrap(), weighted.sqrt()));
    }
    assert_eq!(
        file.tensor("blk.0.attn_q.weight").unwrap().ty,
        GgmlType::Q4_0
    );
    // Rows of 100 values are no whole blocks.
    let narrow = &reports[4].tensor;
    assert_eq!(
        (narrow.to, narrow.instead_of),
        (GgmlType::F16, Some(GgmlType::Q8_0))
    );
    assert_eq!(
        imatrix.mean_squares("blk.1.ffn_down_exps.weight").unwrap()[1],
        0.5
    );
    assert_eq!(
        imatrix.mean_squares("blk.1.ffn_down_exps.weight").unwrap()[257],
        1.0
    );

    let metadata = file.metadata();
    assert_eq!(metadata.str("general.name").unwrap(), "small");
    assert_eq!(metadata.u32("general.file_type").unwrap(), 7);
    assert_eq!(metadata.u32("general.quantization_version").unwrap(), 2);
    assert_eq!(metadata.str("quantize.imatrix.file").unwrap(), "some.gguf");
    assert_eq!(
        metadata.str("quantize.imatrix.dataset").unwrap(),
        "some text"
    );
    assert_eq!(metadata.u32("quantize.imatrix.entries_count").unwrap(), 5);
    assert_eq!(metadata.u32("quantize.imatrix.chunks_count").unwrap(), 7);
}

#[test]
fn user_rules_override_the_mix() {
    let source = Arc::new(small_model());
    let types = |options: QuantizeOptions| -> Vec<GgmlType> {
        let plan = QuantizePlan::new(Arc::clone(&source), options).unwrap();
        plan.tensors().iter().map(|tensor| tensor.to).collect()
    };
    use GgmlType::{BF16, F16, F32, Q4_0, Q6_K, Q8_0};
    let mix = || QuantizeOptions::new(FileType::Q4_0);
    assert_eq!(types(mix()), [Q6_K, Q4_0, F32, Q4_0, F16]);
    let pure = QuantizeOptions {
        mixing: Mixing::Pure,
        ..mix()
    };
    assert_eq!(types(pure), [Q4_0, Q4_0, F32, Q4_0, F16]);
    // In this model the embedding is also the output projection.
    let output = QuantizeOptions {
        output_type: Some(Q8_0),
        ..mix()
    };
    assert_eq!(types(output)[0], Q8_0);
    let embedding = QuantizeOptions {
        embedding_type: Some(BF16),
        output_type: Some(Q8_0),
        ..mix()
    };
    assert_eq!(types(embedding)[0], BF16);
    let rules =
        ["attn=Q8_0", "q.weight=F16", "ffn=bf16"].map(|rule| TypeRule::parse(rule).unwrap());
    let ruled = QuantizeOptions {
        rules: rules.to_vec(),
        ..mix()
    };
    assert_eq!(types(ruled), [Q6_K, Q8_0, F32, BF16, F16]);
    let copy = QuantizeOptions::new(FileType::COPY);
    assert_eq!(types(copy), [F32; 5]);

    for bad in [
        "",
        "attn",
        "=Q8_0",
        "attn=",
        "attn=Q9",
        "attn=Q8_K",
        "(=Q8_0",
        "x{9999}{9999}=F16",
    ] {
        assert!(TypeRule::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn rejects_models_it_cannot_quantize() {
    let new = |gguf: &Arc<Gguf>, options| QuantizePlan::new(Arc::clone(gguf), options);
    let quantized = forge_mini();
    let error = new(&quantized, QuantizeOptions::new(FileType::Q8_0)).unwrap_err();
    assert!(error.to_string().contains("allow requantizing"), "{error}");
    let mut allowed = QuantizeOptions::new(FileType::Q8_0);
    allowed.requantize = Requantize::Allow;
    let requantized = Gguf::from_vec(write(&new(&quantized, allowed).unwrap(), 2)).unwrap();
    assert!(
        requantized
            .tensors()
            .iter()
            .all(|t| matches!(t.ty, GgmlType::F32 | GgmlType::Q8_0))
    );
    // A copy converts nothing.
    let copy = new(&quantized, QuantizeOptions::new(FileType::COPY)).unwrap();
    let copy = Gguf::from_vec(write(&copy, 1)).unwrap();
    for info in quantized.tensors() {
        let copied = copy.tensor(&info.name).unwrap();
        assert!(copy.tensor_data(copied) == quantized.tensor_data(info));
    }
    assert_eq!(copy.metadata().u32("general.file_type").unwrap(), 15);

    let source = Arc::new(small_model());
    let mut foreign = QuantizeOptions::new(FileType::Q8_0);
    let mut imatrix = even_importance(&source);
    imatrix
        .entries
        .get_mut("blk.0.attn_q.weight")
        .unwrap()
        .sums
        .pop();
    foreign.importance = Some((imatrix.clone(), "x".into()));
    let error = new(&source, foreign.clone()).unwrap_err();
    assert!(
        matches!(error, QuantizeError::ImportanceShape { .. }),
        "{error}"
    );
    imatrix.entries.retain(|name, _| name.contains("norm"));
    foreign.importance = Some((imatrix, "x".into()));
    let error = new(&source, foreign).unwrap_err();
    assert!(matches!(error, QuantizeError::ForeignImportance), "{error}");

    let plan = new(&source, QuantizeOptions::new(FileType::Q8_0)).unwrap();
    let mut calls = 0;
    let stopped = plan.write(std::io::sink(), 1, |_| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert!(matches!(stopped, Err(QuantizeError::Stopped)) && calls == 1);

    let mut writer = Writer::new("llama");
    let values: Vec<f32> = (0..64)
        .map(|i| if i == 40 { f32::NAN } else { 1.0 })
        .collect();
    writer
        .add_tensor_f32("blk.0.attn_q.weight", &[32, 2], GgmlType::F32, &values)
        .unwrap();
    let damaged = Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap());
    let plan = new(&damaged, QuantizeOptions::new(FileType::Q8_0)).unwrap();
    let error = plan
        .write(std::io::sink(), 1, |_| ControlFlow::Continue(()))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("blk.0.attn_q.weight") && text.contains("row 1, column 8"),
        "{text}"
    );
}

#[test]
fn joins_a_split_model() {
    let first = models().join("../crates/gguf/tests/fixtures/split/model-00001-of-00003.gguf");
    let split = Arc::new(Gguf::open(&first, LoadMode::Mmap).unwrap());
    let plan = QuantizePlan::new(Arc::clone(&split), QuantizeOptions::new(FileType::COPY)).unwrap();
    let whole = Gguf::from_vec(write(&plan, 1)).unwrap();
    assert_eq!(whole.n_parts(), 1);
    assert!(
        whole
            .metadata()
            .iter()
            .all(|(key, _)| !key.starts_with("split."))
    );
    assert!(matches!(
        whole.metadata().get("general.architecture"),
        Some(GgufValue::String(_))
    ));
    for info in split.tensors() {
        let copied = whole.tensor(&info.name).unwrap();
        assert!(
            whole.tensor_data(copied) == split.tensor_data(info),
            "{}",
            info.name
        );
    }
}

#[test]
fn importance_matrix_round_trips() {
    let gguf = small_model();
    let imatrix = even_importance(&gguf);
    let file = Gguf::from_vec(imatrix.to_writer().unwrap().to_vec().unwrap()).unwrap();
    assert_eq!(file.metadata().str("general.type").unwrap(), "imatrix");
    assert_eq!(Imatrix::from_gguf(&file).unwrap(), imatrix);
    assert!(Imatrix::from_gguf(&gguf).is_err());
}
