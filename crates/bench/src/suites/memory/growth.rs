//! Fills the KV cache: a sequence grows from nothing to its context in prompt chunks, in every layer of the model.

use rocmforge_cpu::{KvLayout, KvSliceMut, kv_append};
use rocmforge_gpu::{Buffer, Gpu, KvLayer, KvType, ops};

use super::{KvShape, MODELS};
use crate::case::{Case, Prepared, Work, time_cpu, time_gpu};
use crate::error::BenchError;
use crate::options::Effort;
use crate::suites::attention::GpuStep;
use crate::target::{Cpu, Opened};
use crate::values::Random;

const CONTEXTS: [usize; 2] = [512, 2048];
const QUICK_CONTEXTS: [usize; 1] = [32];
const PAGE: usize = 32;
/// Tokens written at once.
const CHUNK: usize = 256;

pub(super) fn cases(effort: Effort) -> Vec<Case> {
    let contexts = effort.pick(&CONTEXTS[..], &QUICK_CONTEXTS[..]);
    let of_model = |model: KvShape| contexts.iter().map(move |&n_ctx| case(model, n_ctx));
    MODELS.into_iter().flat_map(of_model).collect()
}

fn case(model: KvShape, n_ctx: usize) -> Case {
    let name = format!("kv-growth/{}/{n_ctx}", model.name);
    let shape = format!(
        "{n_ctx} tokens x {} layers x {} heads x {}",
        model.n_layers, model.n_kv_heads, model.head_dim
    );
    Case::new(name, Some("F16"), shape, move |target| {
        target.check_memory((n_ctx * model.bytes_per_token()) as u64)?;
        let (n_bytes, prepared) = match &target.on {
            Opened::Cpu(cpu) => on_cpu(cpu, model, n_ctx),
            Opened::Gpu(gpu) => on_gpu(gpu, model, n_ctx)?,
        };
        Ok(prepared
            .metric("kv_bytes", n_bytes as f64)
            .metric("kv_bytes_per_token", n_bytes as f64 / n_ctx as f64))
    })
}

fn work(model: &KvShape, n_ctx: usize) -> Work {
    Work {
        bytes: (n_ctx * model.bytes_per_token()) as u64,
        tokens: n_ctx as u64,
        ..Work::default()
    }
}

/// First position and number of tokens of each chunk.
fn chunks(n_ctx: usize) -> impl Iterator<Item = [usize; 2]> {
    let starts = (0..n_ctx).step_by(CHUNK);
    starts.map(move |start| [start, CHUNK.min(n_ctx - start)])
}

fn on_cpu(cpu: &Cpu, model: KvShape, n_ctx: usize) -> (usize, Prepared<'_>) {
    let width = model.n_kv_heads * model.head_dim;
    // Keys, then values, per layer.
    let mut caches = vec![vec![0u16; n_ctx * width]; 2 * model.n_layers];
    let n_bytes = caches.iter().map(|cache| size_of_val(&cache[..])).sum();
    let layout = KvLayout {
        n_kv_heads: model.n_kv_heads,
        dim: model.head_dim,
        page: PAGE,
        hadamard: 1,
    };
    let rows = Random(4).floats(CHUNK.min(n_ctx) * width);
    let slots: Vec<u32> = (0..n_ctx as u32).collect();
    let prepared = Prepared::new(work(&model, n_ctx), move |n| {
        time_cpu(n, || {
            for [start, len] in chunks(n_ctx) {
                for cache in &mut caches {
                    kv_append(
                        cpu.isa,
                        &cpu.pool,
                        &layout,
                        &rows[..len * width],
                        &slots[start..start + len],
                        KvSliceMut::F16(cache),
                    );
                }
            }
        })
    });
    (n_bytes, prepared)
}

fn on_gpu(gpu: &Gpu, model: KvShape, n_ctx: usize) -> Result<(usize, Prepared<'_>), BenchError> {
    let width = model.n_kv_heads * model.head_dim;
    let shape = rocmforge_gpu::KvShape {
        types: KvType::F16.into(),
        n_blocks: n_ctx / PAGE,
        n_kv_heads: model.n_kv_heads,
        page: PAGE,
        k_dim: model.head_dim,
        v_dim: model.head_dim,
        values: rocmforge_plan::Values::Apart,
    };
    let caches: Vec<[Buffer; 2]> = (0..model.n_layers)
        .map(|_| shape.alloc(gpu))
        .collect::<Result<_, _>>()?;
    let n_bytes = caches.iter().flatten().map(Buffer::n_bytes).sum();
    let rows = gpu.upload(&Random(4).floats(CHUNK.min(n_ctx) * width))?;
    let table: Vec<u32> = (0..n_ctx.div_ceil(PAGE) as u32).collect();
    let step = |[start, len]: [usize; 2]| GpuStep::new(gpu, &[[0, len, start]], &table, PAGE);
    let steps: Vec<GpuStep> = chunks(n_ctx).map(step).collect::<Result<_, _>>()?;
    let prepared = Prepared::new(work(&model, n_ctx), move |n| {
        time_gpu(gpu, n, || {
            for step in &steps {
                let step = step.step();
                let rows = rows.as_slice::<f32>().part(0..step.n_rows() * width);
                for cache in &caches {
                    let layer = KvLayer::new(shape, cache);
                    ops::kv_append(gpu, &layer, rows, rows, &step)?;
                }
            }
            Ok(())
        })
    });
    Ok((n_bytes, prepared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_context() {
        assert_eq!(
            chunks(600).collect::<Vec<_>>(),
            [[0, 256], [256, 256], [512, 88]]
        );
        assert_eq!(chunks(32).collect::<Vec<_>>(), [[0, 32]]);
    }

    #[test]
    fn cache_size_matches_its_tokens() {
        let cpu = Cpu {
            isa: rocmforge_cpu::Isa::detect(),
            pool: rocmforge_cpu::Pool::new(1),
        };
        for model in MODELS {
            let (n_bytes, _) = on_cpu(&cpu, model, 32);
            assert_eq!(n_bytes, 32 * model.bytes_per_token(), "{}", model.name);
        }
    }
}
