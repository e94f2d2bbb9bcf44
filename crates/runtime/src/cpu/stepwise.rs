//! Runs the CPU backend one operation at a time, for checks.

use std::borrow::Cow;
use std::sync::{Arc, RwLock};

use half::f16;
use rocmforge_cpu::HeadCode;
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant;

use super::CpuBackend;
use super::buffers::{CacheData, LayerCache};
use crate::error::RuntimeError;
use crate::shared_cache;
use crate::stepwise::{Memory, Part, Stepwise};
use rocmforge_plan::Batch;
use rocmforge_plan::{KvShift, KvType, KvTypes};
use rocmforge_plan::{KvSpec, Op};

impl Stepwise for CpuBackend {
    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError> {
        let step = self.begin(batch);
        let op = self.plan.ops[index].clone();
        self.run_op(&op, batch, &step);
        Ok(())
    }

    fn run_shift(&mut self, shift: &KvShift) -> Result<(), RuntimeError> {
        self.shift(shift);
        Ok(())
    }

    fn memory(&self, _batch: &Batch) -> Result<Memory<'_>, RuntimeError> {
        Ok(Memory {
            buffers: Cow::Borrowed(&self.buffers),
            acts: Cow::Borrowed(&self.acts),
            routings: Cow::Borrowed(&self.routings),
            cache: Cow::Owned(self.copied_cache()),
            states: Cow::Borrowed(&self.states),
        })
    }
}

impl CpuBackend {
    /// Copies another backend's memory into this one.
    pub(crate) fn set_memory(&mut self, memory: &Memory<'_>) {
        self.buffers.clone_from_slice(&memory.buffers);
        self.acts.clone_from_slice(&memory.acts);
        self.routings.clone_from_slice(&memory.routings);
        for (layer, other) in self.cache.iter().zip(&*memory.cache) {
            shared_cache::write(layer).clone_from(other);
        }
        self.states.clone_from_slice(&memory.states);
    }

    /// Runs an operation; attention reads its layer's keys and values rounded to f16.
    pub(crate) fn run_rounded(&mut self, index: usize, batch: &Batch) -> Result<(), RuntimeError> {
        let Op::Attention { layer, .. } = self.plan.ops[index] else {
            return self.run_one(index, batch);
        };
        let rounded = {
            let cache = shared_cache::read(&self.cache[layer]);
            LayerCache {
                spec: cache.spec,
                hadamard: cache.hadamard,
                k: cache.k.rounded(),
                v: cache.v.rounded(),
            }
        };
        let rounded = Arc::new(RwLock::new(rounded));
        let kept = std::mem::replace(&mut self.cache[layer], rounded);
        let ran = self.run_one(index, batch);
        self.cache[layer] = kept;
        ran
    }

    /// Returns a copy of the cache.
    pub(super) fn copied_cache(&self) -> Vec<LayerCache> {
        let layers = self.cache.iter();
        layers
            .map(|layer| shared_cache::read(layer).clone())
            .collect()
    }
}

impl LayerCache {
    /// Converts a GPU's cache, which stores all codes before all scales.
    pub(crate) fn from_planes(spec: KvSpec, types: KvTypes, [k, v]: [&[u8]; 2]) -> LayerCache {
        LayerCache {
            spec,
            hadamard: spec.hadamard_lens(types),
            k: CacheData::from_planes(types.keys, spec.k_dim, k),
            v: CacheData::from_planes(types.values, spec.v_dim, v),
        }
    }

    /// Returns keys and values as f32, in rows of one head, rotated as they are stored.
    pub(crate) fn parts(&self) -> [Part<'_>; 2] {
        let part = |data: &CacheData, width| Part {
            values: Cow::Owned(data.to_f32()),
            width,
        };
        [
            part(&self.k, self.spec.k_dim),
            part(&self.v, self.spec.v_dim),
        ]
    }

    /// Replaces keys by those of `other` that differ by at most one rounding step of the cache type: single values, or
    /// groups that share a scale.
    pub(crate) fn take_next(&mut self, other: &LayerCache) {
        match (&mut self.k, &other.k) {
            (CacheData::F16(own), CacheData::F16(other)) => {
                for (own, other) in own.iter_mut().zip(other) {
                    if own.abs_diff(*other) <= 1 {
                        *own = *other;
                    }
                }
            }
            (CacheData::Q8_0(own), CacheData::Q8_0(other)) => {
                let len = GgmlType::Q8_0.block_bytes();
                take_near(own, other, len, |block| {
                    let mut values = vec![0.0; GgmlType::Q8_0.block_len()];
                    quant::dequantize(GgmlType::Q8_0, block, &mut values).expect("a block");
                    // One code, and the last bit of the scale.
                    let largest = values.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
                    let step = vec![largest * 1.1 / 127.0; values.len()];
                    (values, step)
                });
            }
            (
                CacheData::Heads {
                    code,
                    heads: own,
                    dim,
                },
                CacheData::Heads { heads: other, .. },
            ) => {
                let (code, dim) = (*code, *dim);
                // Values that share a scale.
                let n = match code {
                    HeadCode::F8E4M3 | HeadCode::Q8_0 => dim,
                    HeadCode::Q5_1 | HeadCode::Q4_0 => dim.min(32),
                };
                take_near(own, other, code.head_bytes(n), |group| {
                    let mut values = vec![0.0; n];
                    code.load(group, &mut values);
                    let largest = values.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
                    let step = |x: &f32| match code {
                        HeadCode::Q8_0 => largest * 1.1 / 127.0,
                        // Three mantissa bits, or subnormal steps of 2^-9, and the last bit of the scale.
                        HeadCode::F8E4M3 => (x.abs() / 7.0).max(largest / 448.0 / 500.0),
                        // The range is at most twice the largest magnitude.
                        HeadCode::Q5_1 => largest * 2.2 / 31.0,
                        HeadCode::Q4_0 => largest * 1.1 / 8.0,
                    };
                    let step = values.iter().map(step).collect();
                    (values, step)
                });
            }
            _ => {}
        }
    }

    pub(crate) fn is_same(&self, other: &LayerCache) -> bool {
        self.k == other.k && self.v == other.v
    }
}

impl CacheData {
    fn rounded(&self) -> CacheData {
        let bits = |x: f32| f16::from_f32(x).to_bits();
        CacheData::F16(self.to_f32().into_iter().map(bits).collect())
    }
}

/// Converts blocks of 16 bytes of nibbles behind `n_scale` bytes: on a GPU, neighbouring nibbles are of neighbouring values.
fn from_words(mut blocks: Vec<u8>, n_scale: usize) -> Vec<u8> {
    for block in blocks.chunks_exact_mut(n_scale + 16) {
        let codes = &mut block[n_scale..];
        let nibbles: [u8; 32] = std::array::from_fn(|i| codes[i / 2] >> (4 * (i % 2)) & 15);
        for (j, code) in codes.iter_mut().enumerate() {
            *code = nibbles[j] | nibbles[j + 16] << 4;
        }
    }
    blocks
}

/// Copies groups of `len` bytes from `other` whose values are near those of `own`. `read` returns a group's values and
/// their tolerances.
fn take_near(
    own: &mut [u8],
    other: &[u8],
    len: usize,
    read: impl Fn(&[u8]) -> (Vec<f32>, Vec<f32>),
) {
    for (own, other) in own.chunks_exact_mut(len).zip(other.chunks_exact(len)) {
        if own == other {
            continue;
        }
        let ((a, _), (b, step)) = (read(own), read(other));
        let pairs = a.iter().zip(&b).zip(&step);
        if pairs
            .into_iter()
            .all(|((a, b), step)| (a - b).abs() <= *step)
        {
            own.copy_from_slice(other);
        }
    }
}

impl CacheData {
    fn from_planes(kv_type: KvType, dim: usize, planes: &[u8]) -> CacheData {
        // On the CPU, the `n_scale` bytes of a scale precede its `n_codes` bytes of codes.
        let together = |n_scale: usize, n_codes: usize| -> Vec<u8> {
            let n = planes.len() / (n_scale + n_codes);
            let (codes, scales) = planes.split_at(n * n_codes);
            let pairs = scales
                .chunks_exact(n_scale)
                .zip(codes.chunks_exact(n_codes));
            pairs
                .flat_map(|(scale, codes)| [scale, codes].concat())
                .collect()
        };
        match kv_type {
            KvType::F16 => {
                let pairs = planes.as_chunks::<2>().0.iter();
                CacheData::F16(pairs.map(|&bytes| u16::from_le_bytes(bytes)).collect())
            }
            KvType::F32 => {
                let values = planes.as_chunks::<4>().0.iter();
                CacheData::F32(values.map(|&bytes| f32::from_le_bytes(bytes)).collect())
            }
            KvType::Q8_0 => CacheData::of_bytes(kv_type, dim, together(2, dim.min(32))),
            KvType::F8E4M3 => CacheData::of_bytes(kv_type, dim, together(2, dim)),
            KvType::Q5_1 => {
                // A GPU has the fifth bits with the scale and the minimum.
                CacheData::of_bytes(kv_type, dim, from_words(together(8, 16), 8))
            }
            KvType::Q4_0 => CacheData::of_bytes(kv_type, dim, from_words(together(2, 16), 2)),
        }
    }

    fn to_f32(&self) -> Vec<f32> {
        match self {
            CacheData::F16(bits) => bits
                .iter()
                .map(|&bits| f16::from_bits(bits).to_f32())
                .collect(),
            CacheData::F32(values) => values.clone(),
            CacheData::Q8_0(bytes) => {
                let ty = GgmlType::Q8_0;
                let mut values = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
                quant::dequantize(ty, bytes, &mut values).expect("the cache has whole blocks");
                values
            }
            CacheData::Heads { code, heads, dim } => {
                let len = code.head_bytes(*dim);
                let mut values = vec![0.0; heads.len() / len * dim];
                let heads = heads.chunks_exact(len);
                for (head, values) in heads.zip(values.chunks_exact_mut(*dim)) {
                    code.load(head, values);
                }
                values
            }
        }
    }
}
