//! The CPU backend one operation at a time, for checks.

use std::borrow::Cow;

use half::f16;
use rocmforge_gguf::{GgmlType, quant};

use super::{CacheData, CpuBackend, LayerCache};
use crate::backend::check::{Memory, Part, Stepwise};
use crate::batch::Batch;
use crate::error::EngineError;
use crate::plan::KvSpec;

impl Stepwise for CpuBackend {
    fn run_one(&mut self, index: usize, batch: &Batch) -> Result<(), EngineError> {
        let (tokens, rotations) = self.begin(batch);
        let op = self.plan.ops[index].clone();
        self.run_op(&op, batch, &tokens, &rotations);
        Ok(())
    }

    fn memory(&self, _batch: &Batch) -> Result<Memory<'_>, EngineError> {
        Ok(Memory {
            buffers: Cow::Borrowed(&self.buffers),
            acts: Cow::Borrowed(&self.acts),
            routings: Cow::Borrowed(&self.routings),
            cache: Cow::Borrowed(&self.cache),
        })
    }
}

impl CpuBackend {
    /// Takes over the memory of another backend.
    pub(in crate::backend) fn set_memory(&mut self, memory: &Memory<'_>) {
        self.buffers.clone_from_slice(&memory.buffers);
        self.acts.clone_from_slice(&memory.acts);
        self.routings.clone_from_slice(&memory.routings);
        self.cache.clone_from_slice(&memory.cache);
    }
}

impl LayerCache {
    /// Keys and values as bits of f16.
    pub(in crate::backend) fn from_f16(spec: KvSpec, k: Vec<u16>, v: Vec<u16>) -> LayerCache {
        LayerCache {
            spec,
            k: CacheData::F16(k),
            v: CacheData::F16(v),
        }
    }

    /// Keys and values, in rows of one head.
    pub(in crate::backend) fn parts(&self) -> [Part<'_>; 2] {
        let part = |data: &CacheData, width| Part {
            values: Cow::Owned(data.to_f32()),
            width,
        };
        [
            part(&self.k, self.spec.k_dim),
            part(&self.v, self.spec.v_dim),
        ]
    }

    /// Takes those keys of `other` that are equal to its own or next to them among the numbers of f16.
    pub(in crate::backend) fn take_next(&mut self, other: &LayerCache) {
        if let (CacheData::F16(own), CacheData::F16(other)) = (&mut self.k, &other.k) {
            for (own, other) in own.iter_mut().zip(other) {
                if own.abs_diff(*other) <= 1 {
                    *own = *other;
                }
            }
        }
    }

    pub(in crate::backend) fn is_same(&self, other: &LayerCache) -> bool {
        self.k == other.k && self.v == other.v
    }
}

impl CacheData {
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
                quant::dequantize(ty, bytes, &mut values).expect("the cache is whole blocks");
                values
            }
        }
    }
}
