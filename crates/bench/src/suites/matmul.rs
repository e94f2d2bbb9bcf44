//! GEMM and GEMV: `out [tokens, outputs] = x [tokens, inputs] * weights [outputs, inputs]^T`, with F32 in the specified
//! sizes, and with every format for few tokens, as in decode, and many, as in prefill.
//!
//! Activations are converted to the format's activation type before the clock starts. With few tokens, weights are read
//! from memory, as in a model: copies of them are used in turn.

use rocmforge_cpu as cpu;
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{ActsBuffer, Buffer, Gpu, GpuError, Matrix, OutMode, RowOrder, ops};
use rocmforge_plan::act_format;

use crate::case::{Case, Prepared, Work, time_cpu, time_gpu};
use crate::error::BenchError;
use crate::options::Effort;
use crate::target::{Cpu, Opened};
use crate::values::{Format, Random, n_copies};

/// Tokens, outputs, inputs.
type Shape = [usize; 3];

const DENSE: [Shape; 9] = [
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [1, 4096, 4096],
    [32, 128, 4096],
    [128, 128, 1024],
    [32, 32, 768],
    [2048, 4096, 2048],
];
const QUANTIZED: [Shape; 4] = [
    [1, 4096, 4096],
    [4, 4096, 4096],
    [8, 4096, 4096],
    [512, 4096, 4096],
];

const QUICK_DENSE: [Shape; 2] = [[1, 64, 256], [32, 32, 256]];
const QUICK_QUANTIZED: [Shape; 4] = [[1, 64, 256], [4, 64, 256], [8, 64, 256], [16, 64, 256]];

/// With more tokens a product is not limited by reading weights, so they may stay in a cache.
const FEW_TOKENS: usize = 8;

pub(super) fn cases(effort: Effort) -> Vec<Case> {
    let dense = effort.pick(&DENSE[..], &QUICK_DENSE[..]).iter();
    let dense = dense.map(|&shape| case(effort, "dense", GgmlType::F32, shape));
    let shapes = effort.pick(&QUANTIZED, &QUICK_QUANTIZED).iter();
    let quantized = GgmlType::COMPUTED.iter().flat_map(|&ty| {
        let shapes = shapes.clone();
        shapes.map(move |&shape| case(effort, "quantized", ty, shape))
    });
    dense.chain(quantized).collect()
}

fn case(effort: Effort, group: &str, ty: GgmlType, shape: Shape) -> Case {
    let [n_tokens, n_out, n_in] = shape;
    let shown = format!("{n_tokens}x{n_out}x{n_in}");
    let name = format!("{group}/{}/{shown}", ty.name());
    Case::new(name, Some(ty.name()), shown, move |target| {
        let bytes = Format::Ggml(ty).bytes(n_out * n_in);
        let n = match n_tokens <= FEW_TOKENS {
            true => n_copies(bytes, effort),
            false => 1,
        };
        target.check_memory((bytes * n) as u64)?;
        let one = Format::Ggml(ty).matrix(n_out, n_in)?;
        let copies = Copies { one, n };
        let prepared = match &target.on {
            Opened::Cpu(cpu) => on_cpu(cpu, copies, ty, shape),
            Opened::Gpu(gpu) => on_gpu(gpu, copies, ty, shape)?,
        };
        Ok(prepared.metric("weight_bytes", bytes as f64))
    })
}

/// The weights, and their number of copies.
struct Copies {
    one: Vec<u8>,
    n: usize,
}

/// Returns the work of a product with weights of type `ty`.
pub(super) fn work(ty: GgmlType, [n_tokens, n_out, n_in]: Shape) -> Work {
    let n_ops = 2 * (n_tokens * n_out * n_in) as u64;
    let act_bytes = match rocmforge_plan::act_format(ty) {
        rocmforge_plan::ActFormat::F32 => size_of::<f32>(),
        rocmforge_plan::ActFormat::Q8x32 | rocmforge_plan::ActFormat::Q8x256 => size_of::<i8>(),
    };
    let bytes = Format::Ggml(ty).bytes(n_out * n_in)
        + n_tokens * (n_in * act_bytes + n_out * size_of::<f32>());
    let is_float = act_bytes == size_of::<f32>();
    Work {
        bytes: bytes as u64,
        f32_ops: if is_float { n_ops } else { 0 },
        i8_ops: if is_float { 0 } else { n_ops },
        elements: 0,
        tokens: n_tokens as u64,
    }
}

/// Returns activations in the format that weights of type `ty` need.
pub(super) fn cpu_acts(cpu: &Cpu, ty: GgmlType, n_tokens: usize, n_in: usize) -> cpu::Acts {
    let x = Random(2).floats(n_tokens * n_in);
    let mut acts = cpu::Acts::new();
    let format = rocmforge_plan::act_format(ty);
    acts.quantize(cpu.isa, &cpu.pool, &x, [n_tokens, n_in], format);
    acts
}

fn on_cpu(cpu: &Cpu, copies: Copies, ty: GgmlType, shape: Shape) -> Prepared<'_> {
    let [n_tokens, n_out, n_in] = shape;
    let bytes = copies.one.len();
    let data = copies.one.repeat(copies.n);
    let acts = cpu_acts(cpu, ty, n_tokens, n_in);
    let mut out = vec![0.0; n_tokens * n_out];
    let mut i = 0;
    let prepared = Prepared::new(work(ty, shape), move |n| {
        time_cpu(n, || {
            let w = rocmforge_plan::Weight {
                ty,
                n_out,
                n_in,
                data: &data[i * bytes..][..bytes],
            };
            i = (i + 1) % copies.n;
            let product = cpu::Product {
                w,
                bias: None,
                mode: rocmforge_plan::OutMode::Store,
                out: &mut out,
            };
            cpu::matmul(cpu.isa, &cpu.pool, &acts, product);
        })
    });
    match cpu::is_fast(cpu.isa, ty) {
        true => prepared,
        false => prepared.note(format!(
            "slow path: {} has no kernel for {}",
            cpu.isa,
            ty.name()
        )),
    }
}

/// Returns `n` copies of a matrix `[n_out, n_in]` in the kernels' layout.
pub(super) fn upload(
    gpu: &Gpu,
    ty: GgmlType,
    [n_out, n_in]: [usize; 2],
    data: &[u8],
    n: usize,
) -> Result<Vec<Buffer>, BenchError> {
    let file = gpu.upload(data)?;
    let copy = |_| {
        let packed = gpu.alloc::<u8>(ops::packed_bytes(gpu, ty, n_out, n_in)?)?;
        let matrix = Matrix {
            ty,
            n_out,
            n_in,
            order: RowOrder::Apart,
            data: packed.as_slice(),
        };
        ops::repack(gpu, file.as_slice(), &matrix, 0)?;
        Ok(packed)
    };
    let copies: Vec<Buffer> = (0..n).map(copy).collect::<Result<_, GpuError>>()?;
    gpu.synchronize()?;
    Ok(copies)
}

/// Returns activations in the format that weights of type `ty` need.
pub(super) fn gpu_acts(
    gpu: &Gpu,
    ty: GgmlType,
    n_tokens: usize,
    n_in: usize,
) -> Result<ActsBuffer, BenchError> {
    let x = gpu.upload(&Random(2).floats(n_tokens * n_in))?;
    let acts = ActsBuffer::new(gpu, act_format(ty), n_tokens, n_in)?;
    ops::quantize(gpu, x.as_slice(), &acts.rows(n_tokens))?;
    gpu.synchronize()?;
    Ok(acts)
}

fn on_gpu(
    gpu: &Gpu,
    copies: Copies,
    ty: GgmlType,
    shape: Shape,
) -> Result<Prepared<'_>, BenchError> {
    let [n_tokens, n_out, n_in] = shape;
    let matrices = upload(gpu, ty, [n_out, n_in], &copies.one, copies.n)?;
    let acts = gpu_acts(gpu, ty, n_tokens, n_in)?;
    let out = gpu.alloc::<f32>(n_tokens * n_out)?;
    let mut i = 0;
    Ok(Prepared::new(work(ty, shape), move |n| {
        let x = acts.rows(n_tokens);
        time_gpu(gpu, n, || {
            let product = ops::Product {
                matrix: Matrix {
                    ty,
                    n_out,
                    n_in,
                    order: RowOrder::Apart,
                    data: matrices[i].as_slice(),
                },
                bias: None,
                mode: OutMode::Store,
                out: out.as_slice(),
            };
            i = (i + 1) % matrices.len();
            match n_tokens <= ops::MAX_ROWS {
                true => ops::matvec(gpu, &x, &[product]),
                false => ops::matmul(gpu, &x, &product),
            }
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_work_of_products() {
        // Q4_K: 144 bytes per 256 weights; one byte per activation, four per result.
        let q4_k = work(GgmlType::Q4_K, [2, 3, 256]);
        assert_eq!(q4_k.bytes, 3 * 144 + 2 * (256 + 3 * 4));
        assert_eq!(
            (q4_k.f32_ops, q4_k.i8_ops, q4_k.tokens),
            (0, 2 * 2 * 3 * 256, 2)
        );
        let f16 = work(GgmlType::F16, [2, 3, 256]);
        assert_eq!(f16.bytes, 3 * 512 + 2 * (1024 + 12));
        assert_eq!((f16.f32_ops, f16.i8_ops), (2 * 2 * 3 * 256, 0));
    }
}
