//! Inputs and outputs of measured launches other than the model's matrices.

use super::Work;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kv::{KvLayer, KvShape};
use crate::memory::Buffer;
use crate::operands::{ActFormat, ActsBuffer, Matrix, OutMode};
use crate::ops::{self, Product, Queries};
use crate::step::{SeqRows, Step};
use rocmforge_plan::act_format;

/// Total bytes of the KV caches used to measure attention: more than the caches of GPUs hold, if a few copies suffice.
const CACHE_BYTES: usize = 96 << 20;
const MAX_CACHES: usize = 8;
/// Fill byte of outputs before a launch. No product gives four such bytes.
const UNWRITTEN: u8 = 0xff;

/// Memory of a launch.
pub(super) enum Operands {
    Products {
        acts: ActsBuffer,
        n_rows: usize,
        /// One buffer per matrix of a launch.
        outs: Vec<Buffer>,
    },
    Attention(Attention),
}

/// A step with one row per sequence, and several KV caches of a layer to rotate through.
pub(super) struct Attention {
    q: Buffer,
    out: Buffer,
    shape: KvShape,
    caches: Vec<[Buffer; 2]>,
    positions: Buffer,
    seq_of_row: Buffer,
    seqs: Buffer,
    block_tables: Buffer,
    max_pages: usize,
}

/// Returns pseudo-random numbers between -1 and 1 (splitmix64).
fn values(n: usize) -> Vec<f32> {
    let mut state = 0u64;
    let value = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(value).collect()
}

impl Operands {
    pub(super) fn new(gpu: &Gpu, work: &Work<'_>) -> Result<Operands, GpuError> {
        match work {
            Work::Few { sets } => Operands::products(gpu, &sets[0], 1),
            Work::Many { matrices, n_rows } => Operands::products(gpu, &matrices[..1], *n_rows),
            Work::Attention { .. } => Ok(Operands::Attention(Attention::new(gpu, work)?)),
        }
    }

    fn products(gpu: &Gpu, set: &[Matrix<'_>], n_rows: usize) -> Result<Operands, GpuError> {
        let (ty, n_in) = (set[0].ty, set[0].n_in);
        let form = act_format(ty);
        let acts = ActsBuffer::new(gpu, form, n_rows, n_in)?;
        let x = values(n_rows * n_in);
        match form {
            ActFormat::F32 => gpu.write(acts.rows(n_rows).values, &x)?,
            ActFormat::Q8x32 | ActFormat::Q8x256 => {
                let x = gpu.upload(&x)?;
                ops::quantize(gpu, x.as_slice(), &acts.rows(n_rows))?;
            }
        }
        let outs = set
            .iter()
            .map(|matrix| gpu.alloc::<f32>(n_rows * matrix.n_out));
        Ok(Operands::Products {
            acts,
            n_rows,
            outs: outs.collect::<Result<_, GpuError>>()?,
        })
    }

    fn outs(&self) -> Vec<&Buffer> {
        match self {
            Operands::Products { outs, .. } => outs.iter().collect(),
            Operands::Attention(attention) => vec![&attention.out],
        }
    }

    /// Queues `n` launches, rotating through the sets of matrices or the caches.
    pub(super) fn queue(&self, gpu: &Gpu, work: &Work<'_>, n: usize) -> Result<(), GpuError> {
        (0..n).try_for_each(|i| self.launch(gpu, work, i))
    }

    /// Returns the output bits of each of `n` launches.
    pub(super) fn results(
        &self,
        gpu: &Gpu,
        work: &Work<'_>,
        n: usize,
    ) -> Result<Vec<u32>, GpuError> {
        let mut bits = Vec::new();
        for i in 0..n {
            for out in self.outs() {
                gpu.fill_bytes(out.as_slice::<u32>(), UNWRITTEN)?;
            }
            self.launch(gpu, work, i)?;
            for out in self.outs() {
                bits.extend(gpu.read(out.as_slice::<u32>())?);
            }
        }
        Ok(bits)
    }

    fn launch(&self, gpu: &Gpu, work: &Work<'_>, i: usize) -> Result<(), GpuError> {
        match (self, work) {
            (Operands::Products { acts, n_rows, outs }, Work::Few { sets }) => {
                let set = &sets[i % sets.len()];
                let products = set
                    .iter()
                    .zip(outs)
                    .map(|(matrix, out)| product(matrix, out));
                ops::matvec(gpu, &acts.rows(*n_rows), &products.collect::<Vec<_>>())
            }
            (Operands::Products { acts, n_rows, outs }, Work::Many { matrices, .. }) => {
                let product = product(&matrices[i % matrices.len()], &outs[0]);
                ops::matmul(gpu, &acts.rows(*n_rows), &product)
            }
            (
                Operands::Attention(memory),
                Work::Attention {
                    n_heads,
                    scores,
                    scratch,
                    ..
                },
            ) => {
                let queries = Queries {
                    q: memory.q.as_slice(),
                    n_heads: *n_heads,
                    scores: *scores,
                    // They are added once, after all positions.
                    sinks: None,
                    out: memory.out.as_slice(),
                };
                let cache = &memory.caches[i % memory.caches.len()];
                let kv = KvLayer::new(memory.shape, cache);
                ops::attention(gpu, &queries, &kv, &memory.step(), scratch)
            }
            _ => unreachable!("operands match the work"),
        }
    }
}

fn product<'a>(matrix: &Matrix<'a>, out: &'a Buffer) -> Product<'a> {
    Product {
        matrix: *matrix,
        bias: None,
        mode: OutMode::Store,
        out: out.as_slice(),
    }
}

impl Attention {
    fn new(gpu: &Gpu, work: &Work<'_>) -> Result<Attention, GpuError> {
        let Work::Attention {
            n_rows,
            n_heads,
            kv,
            n_positions,
            ..
        } = *work
        else {
            unreachable!("attention");
        };
        let max_pages = n_positions.div_ceil(kv.page);
        let shape = KvShape {
            n_blocks: n_rows * max_pages,
            ..kv
        };
        let n_bytes: usize = shape.n_bytes().iter().sum();
        let n_caches = (CACHE_BYTES / n_bytes.max(1)).clamp(1, MAX_CACHES);
        let caches = (0..n_caches).map(|_| {
            let cache = shape.alloc(gpu)?;
            for (memory, bytes) in cache.iter().zip(shape.example()) {
                gpu.write(memory.as_slice(), &bytes)?;
            }
            Ok(cache)
        });
        let caches = caches.collect::<Result<_, GpuError>>()?;
        let rows = 0..n_rows as u32;
        let last = n_positions as u32 - 1;
        let seqs: Vec<SeqRows> = rows
            .clone()
            .map(|row| SeqRows {
                first_row: row,
                n_rows: 1,
                first_pos: last,
                pad: 0,
            })
            .collect();
        Ok(Attention {
            q: gpu.upload(&values(n_rows * n_heads * kv.k_dim))?,
            out: gpu.alloc::<f32>(n_rows * n_heads * kv.v_dim)?,
            caches,
            positions: gpu.upload(&vec![last; n_rows])?,
            seq_of_row: gpu.upload(&rows.collect::<Vec<u32>>())?,
            seqs: gpu.upload(&seqs)?,
            block_tables: gpu.upload(&(0..shape.n_blocks as u32).collect::<Vec<u32>>())?,
            shape,
            max_pages,
        })
    }

    fn step(&self) -> Step<'_> {
        Step {
            positions: self.positions.as_slice(),
            // Nothing is appended.
            slots: self.positions.as_slice(),
            seq_of_row: self.seq_of_row.as_slice(),
            seqs: self.seqs.as_slice(),
            block_tables: self.block_tables.as_slice(),
            max_pages: self.max_pages,
            max_rows_of_seq: 1,
            longest: usize::MAX,
        }
    }
}

impl KvShape {
    /// Returns keys and values as bytes of a layer. All numbers are between -2 and 2.
    fn example(&self) -> [Vec<u8>; 2] {
        let keys = (self.types.keys(), self.k_dim);
        [keys, (self.types.values(), self.stored_v_dim())].map(|(ty, dim)| {
            if dim == 0 {
                return Vec::new();
            }
            let n_rows = self.n_rows();
            let n_codes = n_rows * dim;
            let mut bytes: Vec<u8> = match ty {
                crate::KvType::F16 => values(n_codes)
                    .iter()
                    .flat_map(|&x| half::f16::from_f32(x).to_le_bytes())
                    .collect(),
                crate::KvType::Q8_0 => values(n_codes)
                    .iter()
                    .map(|&x| (x * 127.0) as i8 as u8)
                    .collect(),
                // Magnitude below 2: exponent codes up to 7.
                crate::KvType::F8E4M3 => values(n_codes)
                    .iter()
                    .map(|&x| (x.abs() * 63.0) as u8 | u8::from(x < 0.0) << 7)
                    .collect(),
                // Two codes in each byte.
                crate::KvType::Q5_1 | crate::KvType::Q4_0 => values(n_rows * dim.div_ceil(32) * 16)
                    .iter()
                    .map(|&x| (x * 127.0) as i8 as u8)
                    .collect(),
            };
            let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
            let scales = match ty {
                crate::KvType::F16 => vec![],
                crate::KvType::Q8_0 => half(1.0 / 64.0).to_vec(),
                crate::KvType::F8E4M3 => half::bf16::from_f32(1.0).to_le_bytes().to_vec(),
                // Scale, minimum, and fifth bits of every other value.
                crate::KvType::Q5_1 => {
                    [half(1.0 / 16.0), half(-1.0), [0x55; 2], [0x55; 2]].concat()
                }
                crate::KvType::Q4_0 => half(1.0 / 8.0).to_vec(),
            };
            let n_scales = n_rows * ty.head_bytes(dim) - bytes.len();
            bytes.extend(scales.iter().cycle().take(n_scales));
            bytes
        })
    }
}
