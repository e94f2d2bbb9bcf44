//! Factors on the products of each expert, as files have them beside matrices in NVFP4: the same as matrices that were
//! multiplied before, in every kind of mixture.

use std::sync::Arc;

use rocmforge_engine::{Device, Engine, EngineConfig};
use rocmforge_gguf::{GgmlType, Gguf, Writer, quant};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_testkit::models::{self, families, prompt, uniform};

use crate::common::cases::test_cases;
use crate::common::{device, logits, test_gpu};

/// Where the factors are.
#[derive(Clone, Copy, PartialEq)]
enum Factors {
    Beside,
    InMatrices,
}

/// A model whose experts have factors.
fn model(name: &str, factors: Factors) -> Model {
    let ty = GgmlType::F32;
    let writer = models::model_of(name, ty, 2).or_else(|| families::model_of(name, ty, 4));
    let bytes = writer.unwrap().unwrap().to_vec().unwrap();
    let gguf = Gguf::from_vec(bytes).unwrap();
    let mut out = Writer::new(gguf.metadata().str("general.architecture").unwrap());
    for (key, value) in gguf.metadata().iter() {
        out.set(key, value);
    }
    let mut n_scaled = 0;
    for info in gguf.tensors() {
        let matrices = info.name.strip_suffix("_exps.weight");
        let scale = matrices.map(|name| format!("{name}_exps.scale"));
        let scale = scale.filter(|scale| gguf.tensor(scale).is_none());
        let mut values = vec![0.0; info.n_elements() as usize];
        quant::dequantize(info.ty, gguf.tensor_data(info), &mut values).unwrap();
        if let Some(scale) = scale {
            n_scaled += 1;
            let n_experts = info.dims[2];
            let by = uniform(&scale, n_experts as usize, 1.2, 0.6);
            match factors {
                Factors::Beside => {
                    out.add_tensor_f32(&scale, &[n_experts], ty, &by).unwrap();
                }
                Factors::InMatrices => {
                    let n = values.len() / by.len();
                    for (expert, by) in values.chunks_exact_mut(n).zip(by) {
                        expert.iter_mut().for_each(|x| *x *= by);
                    }
                }
            }
        }
        out.add_tensor_f32(&info.name, &info.dims, info.ty, &values)
            .unwrap();
    }
    assert!(n_scaled > 0, "{name} has experts");
    Model::load(Arc::new(Gguf::from_vec(out.to_vec().unwrap()).unwrap())).unwrap()
}

test_cases! {
    factors_of_experts_multiply_their_products:
    gates("mixtral"), with_biases_and_limits("gpt_oss"), one_matrix_of_both("gemma4_moe"),
    weighed_inputs("llama4"), without_gates("nemotron_h_moe"),
}

fn factors_of_experts_multiply_their_products(name: &str) {
    let config = EngineConfig {
        n_ctx: Some(33),
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    };
    let [beside, inside] = [Factors::Beside, Factors::InMatrices].map(|at| model(name, at));
    let prompt = prompt(33, beside.config.n_vocab);
    let [got, expected] = [&beside, &inside].map(|model| {
        let mut engine = Engine::on_cpu(model, None, &config).unwrap();
        logits(&mut engine, &prompt).concat()
    });
    let d = device::difference(&got, &expected);
    assert!(d <= 1e-9, "{name}: {d:e}");

    let Some(gpu) = test_gpu() else { return };
    let devices = [Device::Cpu, Device::Gpu(gpu)];
    let [expected, got] = devices.map(|device| {
        let mut engine = Engine::start(&beside, None, &device::config(&device)).unwrap();
        // Few rows, and more than a GEMV takes.
        [1, 33].map(|n| logits(&mut engine, &prompt[..n]).concat())
    });
    for (got, expected) in got.iter().zip(&expected) {
        let d = device::difference(got, expected);
        assert!(d <= 1e-5, "{name} on a GPU: {d:e}");
    }
}
