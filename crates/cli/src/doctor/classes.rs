//! Small models with random weights, which together run every class of GPU kernel.

use rocmforge_engine::{Device, EngineConfig};
use rocmforge_gguf::GgmlType;
use rocmforge_model::Model;
use rocmforge_plan::KvTypes;
use rocmforge_quantize::synthetic::{
    Shape, ShapeExperts, ShapeGlobal, ShapeLatent, ShapeLinear, ShapeMamba, Synthetic,
};
use rocmforge_quantize::{FileType, QuantizeOptions, TypeRule};
use rocmforge_runtime::check::{self, Coverage, Extent, Report, SamplingCheck};
use rocmforge_runtime::gpu::{self, GpuConfig};

/// Rows of prompts: more than most tiles of GEMM have, with a remainder.
const PROMPT_ROWS: [usize; 2] = [150, 5];

/// A class of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Products with weights of each format.
    Formats,
    /// Mixtures of experts, with and without one that every token takes.
    Experts,
    /// Attention with sinks, sliding windows, capped scores and wide heads.
    Attention,
    LatentAttention,
    LinearAttention,
    /// Mamba-2.
    StateSpaces,
    /// The types of the KV cache.
    Caches,
    Sampling,
}

/// All classes, the most used first.
pub const ALL: [Class; 8] = [
    Class::Formats,
    Class::Caches,
    Class::Sampling,
    Class::Experts,
    Class::Attention,
    Class::LinearAttention,
    Class::LatentAttention,
    Class::StateSpaces,
];

/// What the comparison with the scalar CPU path found.
pub enum Found {
    Operations(Vec<Report>),
    Tokens(SamplingCheck),
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Class::Formats => "weight formats",
            Class::Experts => "experts",
            Class::Attention => "attention",
            Class::LatentAttention => "latent attention",
            Class::LinearAttention => "linear attention",
            Class::StateSpaces => "state spaces",
            Class::Caches => "KV caches",
            Class::Sampling => "sampling",
        }
    }

    /// Compares the kernels of this class on a GPU with the scalar CPU path.
    pub fn compare(self, gpu: &GpuConfig) -> Result<Found, String> {
        if self == Class::Sampling {
            let found = check::sampling(gpu).map_err(|error| error.to_string())?;
            return Ok(Found::Tokens(found));
        }
        let caches = match self {
            Class::Caches => gpu::all_kv_types().collect(),
            _ => vec![KvTypes::default()],
        };
        let mut reports = Vec::new();
        for synthetic in self.models()? {
            let file = synthetic.open().map_err(|error| error.to_string())?;
            let model = Model::load(file.into()).map_err(|error| error.to_string())?;
            for &kv_types in &caches {
                reports.push(compare(&model, gpu, kv_types)?);
            }
        }
        Ok(Found::Operations(reports))
    }

    fn models(self) -> Result<Vec<Synthetic>, String> {
        let plain = |shape| of(shape, Vec::new());
        Ok(match self {
            Class::Formats => {
                let rules = { GgmlType::COMPUTED.iter().enumerate() }.map(|(layer, ty)| {
                    TypeRule::parse(&format!("^blk\\.{layer}\\.={}", ty.name()))
                });
                let rules: Result<Vec<TypeRule>, _> = rules.collect();
                let n_layers = GgmlType::COMPUTED.len();
                let shape = Shape { n_layers, ..DENSE };
                vec![of(shape, rules.map_err(|error| error.to_string())?)]
            }
            Class::Experts => vec![plain(EXPERTS), plain(SHARED_EXPERT)],
            Class::Attention => vec![plain(SINKS), plain(CAPS), plain(WIDE_HEADS)],
            Class::LatentAttention => vec![plain(LATENT)],
            Class::LinearAttention => vec![plain(LINEAR)],
            Class::StateSpaces => vec![plain(MAMBA)],
            Class::Caches => vec![plain(Shape {
                n_heads: 8,
                n_kv_heads: 2,
                head_dim: 128,
                ..DENSE
            })],
            Class::Sampling => Vec::new(),
        })
    }
}

fn of(shape: Shape, rules: Vec<TypeRule>) -> Synthetic {
    Synthetic {
        shape,
        types: QuantizeOptions {
            rules,
            ..QuantizeOptions::new(FileType::Q4_K_M)
        },
        n_layers: None,
        metadata: Vec::new(),
    }
}

fn compare(model: &Model, gpu: &GpuConfig, kv_types: KvTypes) -> Result<Report, String> {
    let extent = Extent {
        prompt_rows: PROMPT_ROWS,
        ..Extent::after(0, Coverage::Distinct)
    };
    let config = EngineConfig {
        n_ctx: Some(extent.n_ctx()),
        kv_types,
        ..EngineConfig::default()
    }
    .on(Device::Gpu(gpu.clone()));
    let tokens = super::devices::tokens(model);
    check::check(model, &config, &tokens, &extent).map_err(|error| error.to_string())
}

/// A narrow model of llama's architecture, which the others differ from.
const DENSE: Shape = Shape {
    name: "dense",
    arch: "llama",
    n_layers: 1,
    n_embd: 256,
    n_ff: 512,
    experts: None,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 64,
    latent: None,
    linear: None,
    mamba: None,
    n_vocab: 256,
    rope_base: 1e4,
    n_ctx: 4096,
    norm_eps: 1e-5,
    is_tied: false,
    has_rope_freqs: false,
    window: None,
    global: None,
    n_nextn: 0,
};

const EXPERTS: Shape = Shape {
    name: "experts",
    arch: "qwen3moe",
    experts: Some(ShapeExperts {
        n_experts: 32,
        n_used: 4,
        n_ff: 256,
        n_ff_shared: None,
    }),
    ..DENSE
};

const SHARED_EXPERT: Shape = Shape {
    name: "shared expert",
    arch: "qwen2moe",
    experts: Some(ShapeExperts {
        n_experts: 8,
        n_used: 2,
        n_ff: 256,
        n_ff_shared: Some(256),
    }),
    ..DENSE
};

const SINKS: Shape = Shape {
    name: "sinks",
    arch: "gpt-oss",
    n_layers: 2,
    window: Some(64),
    ..EXPERTS
};

const CAPS: Shape = Shape {
    name: "caps",
    arch: "gemma2",
    n_layers: 2,
    n_heads: 4,
    head_dim: 256,
    is_tied: true,
    window: Some(64),
    ..DENSE
};

const WIDE_HEADS: Shape = Shape {
    name: "wide heads",
    arch: "gemma4",
    global: Some(ShapeGlobal {
        n_kv_heads: 1,
        head_dim: 512,
        every: 2,
    }),
    has_rope_freqs: true,
    ..CAPS
};

const LATENT: Shape = Shape {
    name: "latent",
    arch: "deepseek2",
    n_layers: 2,
    n_heads: 8,
    n_kv_heads: 1,
    head_dim: 192,
    latent: Some(ShapeLatent {
        q_rank: 256,
        kv_rank: 512,
        n_rot: 64,
        v_dim: 128,
        n_dense: 1,
    }),
    experts: SHARED_EXPERT.experts,
    ..DENSE
};

const LINEAR: Shape = Shape {
    name: "linear",
    arch: "qwen35",
    n_layers: 4,
    n_heads: 4,
    n_kv_heads: 1,
    head_dim: 256,
    linear: Some(ShapeLinear {
        interval: 4,
        n_conv: 4,
        n_heads: 8,
        n_k_heads: 4,
        dim: 128,
        n_rot: 64,
    }),
    ..DENSE
};

const MAMBA: Shape = Shape {
    name: "mamba",
    arch: "granitehybrid",
    n_layers: 3,
    mamba: Some(ShapeMamba {
        attention: [1, 2],
        n_conv: 4,
        n_heads: 16,
        dim: 64,
        n_groups: 1,
        n_state: 128,
    }),
    is_tied: true,
    ..DENSE
};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Compares a class on an emulated GPU, if the build has one.
    fn agrees(class: Class) {
        if !gpu::image_targets().contains(&"host-nv") {
            return println!("skipped: built without the target host-nv");
        }
        let config = GpuConfig {
            id: Some("host:nv".parse().unwrap()),
            ..GpuConfig::default()
        };
        match class.compare(&config).unwrap() {
            Found::Tokens(found) => assert!(found.n_tokens > 0 && found.n_wrong == 0, "{found:?}"),
            Found::Operations(reports) => {
                for report in &reports {
                    let failed: Vec<_> = report.failures().collect();
                    assert!(failed.is_empty(), "{}: {failed:?}", class.name());
                }
            }
        }
    }

    #[test]
    fn sampling_and_state_spaces_agree() {
        [Class::Sampling, Class::StateSpaces]
            .into_iter()
            .for_each(agrees);
    }

    #[test]
    #[ignore = "exhaustive: two minutes on an emulated GPU"]
    fn every_class_agrees() {
        ALL.into_iter().for_each(agrees);
    }

    /// Every format has a layer.
    #[test]
    fn models_load_and_have_every_format() {
        for class in ALL {
            for synthetic in class.models().unwrap() {
                let file = synthetic.open().unwrap();
                if class == Class::Formats {
                    let types = file.tensors().iter();
                    let types: HashSet<GgmlType> = types
                        .filter(|tensor| tensor.name.contains("ffn_up"))
                        .map(|tensor| tensor.ty)
                        .collect();
                    assert_eq!(types.len(), GgmlType::COMPUTED.len());
                }
                let model = Model::load(file.into());
                model.unwrap_or_else(|error| panic!("{}: {error}", synthetic.shape.name));
            }
        }
    }
}
