//! Small models with random weights, which together run every class of GPU kernel.

use std::cell::LazyCell;
use std::time::Instant;

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

/// All classes, in the order in which they are compared.
pub const ALL: [Class; 8] = [
    Class::Sampling,
    Class::Experts,
    Class::Attention,
    Class::LinearAttention,
    Class::LatentAttention,
    Class::StateSpaces,
    // A driver that compiles kernels takes longest for these.
    Class::Formats,
    Class::Caches,
];

/// What the comparison with the scalar CPU path found.
pub enum Found {
    Operations {
        reports: Vec<Report>,
        /// Models, or types of the cache, that there was no time for.
        left: Vec<String>,
    },
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

    /// Compares the kernels of this class on a GPU with the scalar CPU path. After `until`, begins no other comparison.
    pub fn compare(self, gpu: &GpuConfig, until: Instant) -> Result<Found, String> {
        if self == Class::Sampling {
            let found = check::sampling(gpu).map_err(|error| error.to_string())?;
            return Ok(Found::Tokens(found));
        }
        let caches = match self {
            Class::Caches => gpu::all_kv_types().collect(),
            _ => vec![KvTypes::default()],
        };
        let (mut reports, mut left) = (Vec::new(), Vec::new());
        for (name, synthetic) in self.models() {
            let model = LazyCell::new(|| {
                let file = synthetic.open().map_err(|error| error.to_string())?;
                Model::load(file.into()).map_err(|error| error.to_string())
            });
            for &kv_types in &caches {
                let name = match self {
                    Class::Caches => kv_types.to_string(),
                    _ => name.to_string(),
                };
                if Instant::now() > until {
                    left.push(name);
                    continue;
                }
                let model = model.as_ref().map_err(String::clone)?;
                let report = compare(model, gpu, kv_types);
                reports.push(report.map_err(|error| format!("{name}: {error}"))?);
            }
        }
        Ok(Found::Operations { reports, left })
    }

    /// The models, with their names.
    fn models(self) -> Vec<(&'static str, Synthetic)> {
        let shapes: &[Shape] = match self {
            Class::Formats => {
                let of_format = |ty: &GgmlType| (ty.name(), of(DENSE, *ty));
                return GgmlType::COMPUTED.iter().map(of_format).collect();
            }
            Class::Experts => &[EXPERTS, SHARED_EXPERT],
            Class::Attention => &[SINKS, CAPS, WIDE_HEADS],
            Class::LatentAttention => &[LATENT],
            Class::LinearAttention => &[LINEAR],
            Class::StateSpaces => &[MAMBA],
            Class::Caches => &[HEADS],
            Class::Sampling => &[],
        };
        let usual = |shape: &Shape| (shape.name, of(*shape, GgmlType::Q4_K));
        shapes.iter().map(usual).collect()
    }
}

/// A model whose matrices have one type.
fn of(shape: Shape, ty: GgmlType) -> Synthetic {
    let rule = TypeRule::parse(&format!(".*={}", ty.name()));
    Synthetic {
        shape,
        types: QuantizeOptions {
            rules: vec![rule.expect("types that kernels compute with can be written")],
            ..QuantizeOptions::new(FileType::F32)
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
    channels: None,
    selective: None,
    blocks: "",
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

const HEADS: Shape = Shape {
    name: "heads of 128",
    n_heads: 8,
    n_kv_heads: 2,
    head_dim: 128,
    ..DENSE
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
    use std::time::Duration;

    use rocmforge_testkit::sweep::every_nth;

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
        let until = Instant::now() + Duration::from_secs(3600);
        match class.compare(&config, until).unwrap() {
            Found::Tokens(found) => assert!(found.n_tokens > 0 && found.n_wrong == 0, "{found:?}"),
            Found::Operations { reports, left } => {
                assert!(!reports.is_empty() && left.is_empty());
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

    #[test]
    fn what_there_is_no_time_for_is_named() {
        let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let left = |class: Class| match class.compare(&GpuConfig::default(), past).unwrap() {
            Found::Operations { reports, left } if reports.is_empty() => left,
            _ => panic!("{} were compared", class.name()),
        };
        let formats = GgmlType::COMPUTED.iter().map(|ty| ty.name());
        assert!(formats.eq(left(Class::Formats)));
        let caches = gpu::all_kv_types().map(|types| types.to_string());
        assert!(caches.eq(left(Class::Caches)));
    }

    /// All matrices of a model for a format are in it.
    #[test]
    fn models_load_and_have_their_format() {
        for class in ALL {
            for (name, synthetic) in every_nth(3, 0, class.models()) {
                let file = synthetic.open().unwrap();
                if class == Class::Formats {
                    let mut matrices = file.tensors().iter();
                    assert!(
                        matrices.any(
                            |tensor| tensor.name.contains("ffn_up") && tensor.ty.name() == name
                        )
                    );
                }
                let model = Model::load(file.into());
                model.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }
}
