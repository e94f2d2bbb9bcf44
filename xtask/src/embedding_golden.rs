//! `cargo xtask embedding-golden`: records llama.cpp's embeddings of the random models, for the engine's tests.

use std::path::Path;

use anyhow::{Context as _, Result};
use rocmforge_gguf::GgmlType;
use rocmforge_testkit::models::{embeddings, prompt};

use crate::gen_model::write_golden;
use crate::python;

const SCRIPT: &str = include_str!("llama_embeddings.py");

pub(crate) fn write(python: &Path) -> Result<()> {
    let folder = crate::root().join("target/gen-model");
    std::fs::create_dir_all(&folder)?;
    let mut entries = Vec::new();
    let mut add = |name: &str, ty: GgmlType, label: &str, poolings: &[&str]| -> Result<()> {
        let path = folder.join(format!("embeddings-{name}.gguf"));
        let model = embeddings::model(name, ty).context("its name is known")?;
        std::fs::write(&path, model?.to_vec()?)?;
        for pooling in poolings {
            entries.push(entry(&path, label, pooling, python)?);
        }
        Ok(std::fs::remove_file(&path)?)
    };
    for case in embeddings::CASES {
        add(case.name, GgmlType::F32, case.name, case.poolings)?;
    }
    for (name, ty) in embeddings::QUANTIZED {
        let mut cases = embeddings::CASES.iter();
        let case = cases.find(|case| case.name == name);
        let first = &case.context("it is a case")?.poolings[..1];
        add(name, ty, &format!("{name} {}", ty.name()), first)?;
    }
    write_golden("crates/engine/tests/fixtures/embeddings.json", &entries)
}

/// The entry of a model and a pooling: for each length, what is kept of the embedding.
fn entry(path: &Path, name: &str, pooling: &str, python: &Path) -> Result<String> {
    let texts = embeddings::LENGTHS.map(|n| {
        let ids: Vec<String> = prompt(n, 512).iter().map(u32::to_string).collect();
        ids.join(",")
    });
    let texts_as_ids = texts.join(";");
    let arguments = [path.as_os_str(), pooling.as_ref(), texts_as_ids.as_ref()];
    let values = python::run(python, SCRIPT, arguments)?;
    let values: Vec<f32> = values
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    let all = values.chunks_exact(values.len() / texts.len());
    let rows = embeddings::LENGTHS.iter().zip(all).map(|(n, values)| {
        let length = values
            .iter()
            .map(|&x| f64::from(x).powi(2))
            .sum::<f64>()
            .sqrt();
        let scale = if pooling == "rank" { 1.0 } else { length };
        let unit: Vec<f32> = values
            .iter()
            .map(|&x| (f64::from(x) / scale) as f32)
            .collect();
        let kept: Vec<String> = embeddings::kept(&unit)
            .iter()
            .map(|x| format!("{x:.7}"))
            .collect();
        format!("    \"{n}\": [{}]", kept.join(", "))
    });
    let rows: Vec<String> = rows.collect();
    Ok(format!(
        "  \"{name} {pooling}\": {{\n{}\n  }}",
        rows.join(",\n")
    ))
}
