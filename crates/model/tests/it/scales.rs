//! Factors beside the matrices of files in NVFP4. What they multiply, `architectures.rs` of the engine compares with
//! llama.cpp.

use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::{LoadError, Model};
use rocmforge_testkit::models;

use crate::plans::{open, rewritten};

/// The model `name` in NVFP4.
fn model(name: &str) -> Arc<Gguf> {
    open(&models::model(name, GgmlType::NVFP4).unwrap().unwrap())
}

/// The model without its tensor `tensor`, to which values are then added.
fn with_scale<'m>(model: &'m Gguf, tensor: &str, values: &[f32]) -> Writer<'m> {
    let mut writer = rewritten(model, |it| it != tensor, |it| (it.to_string(), None));
    let dims = [values.len() as u64];
    writer
        .add_tensor_f32(tensor, &dims, GgmlType::F32, values)
        .unwrap();
    writer
}

#[test]
fn scales_of_activations_are_skipped() {
    let gguf = model("llama");
    let model = Model::load(gguf.clone()).unwrap();
    let of_activations = |name: &str| name.ends_with(".input_scale");
    let in_file = gguf.tensors().iter().filter(|it| of_activations(&it.name));
    assert_eq!(in_file.count(), 29);
    assert_eq!(model.skipped.len(), 29);
    for tensor in &model.skipped {
        assert!(of_activations(&tensor.name), "{}", tensor.name);
    }
}

#[test]
fn scales_without_use_are_refused() {
    const NAME: &str = "blk.1.ffn_up.scale";
    let llama = model("llama");
    for value in [0.0, -0.0, 1e-40, f32::INFINITY, f32::NAN] {
        let writer = with_scale(&llama, NAME, &[value]);
        match Model::load(open(&writer)).unwrap_err() {
            LoadError::TensorValue { name, .. } => assert_eq!(name, NAME),
            error => panic!("{value}: {error}"),
        }
    }
    for tensor in [NAME, "output.scale"] {
        let writer = with_scale(&llama, tensor, &[1.0, 2.0]);
        let error = Model::load(open(&writer)).unwrap_err().to_string();
        assert!(error.contains(tensor) && error.contains("[2]"), "{error}");
    }
    // The matrix of a tied embedding has none.
    let granite = model("granite");
    let writer = with_scale(&granite, "output.scale", &[2.0]);
    let error = Model::load(open(&writer)).unwrap_err().to_string();
    assert!(
        error.contains("no use for tensor `output.scale`"),
        "{error}"
    );
}

#[test]
fn scales_of_experts_are_checked() {
    let mixtral = model("mixtral");
    for part in ["gate", "up", "down"] {
        let name = format!("blk.0.ffn_{part}_exps.scale");
        let mut values = [1.0; 8];
        // An expert without weights.
        values[2] = 0.0;
        let writer = with_scale(&mixtral, &name, &values);
        Model::load(open(&writer)).unwrap();
        values[5] = f32::INFINITY;
        let writer = with_scale(&mixtral, &name, &values);
        match Model::load(open(&writer)).unwrap_err() {
            LoadError::TensorValue { name: found, .. } => assert_eq!(found, name),
            error => panic!("{error}"),
        }
        let writer = with_scale(&mixtral, &name, &[1.0; 7]);
        let error = Model::load(open(&writer)).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("[7]"), "{error}");
    }
    // There is no such matrix.
    let writer = with_scale(&mixtral, "blk.0.ffn_gate_up_exps.scale", &[1.0; 8]);
    let error = Model::load(open(&writer)).unwrap_err().to_string();
    assert!(error.contains("no use for tensor"), "{error}");
}
