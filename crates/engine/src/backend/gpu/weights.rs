//! The model's weights on the device: matrices repacked for its kernels, vectors in one buffer.

use std::collections::{BTreeSet, HashMap};

use rocmforge_cpu as cpu;
use rocmforge_gpu::{Buffer, Gpu, Matrix, Slice, Uploader, chunk_bytes, ops};

use crate::error::EngineError;
use crate::model::Weights;
use crate::plan::{Plan, WeightId};

/// Vectors begin at multiples of this many values, which suits the widest loads.
const VECTOR_ALIGN: usize = 64;

/// Weights by [`WeightId`].
pub(super) struct DeviceWeights {
    matrices: HashMap<WeightId, DeviceMatrix>,
    data: Vec<Buffer>,
    /// First value and length of each vector.
    vectors: HashMap<WeightId, (usize, usize)>,
    vector_data: Buffer,
}

struct DeviceMatrix {
    ty: rocmforge_gguf::GgmlType,
    n_out: usize,
    n_in: usize,
    /// Place in `data`: tied weights share it.
    data: usize,
}

/// The matrices of a plan, each of the file's once.
struct Inventory<'a> {
    /// In the order of the file's data.
    matrices: Vec<cpu::Weight<'a>>,
    /// Place in `matrices`.
    by_id: HashMap<WeightId, usize>,
}

impl<'a> Inventory<'a> {
    fn new(plan: &Plan, weights: &'a Weights) -> Inventory<'a> {
        let of_op = |op: &crate::plan::Op| op.matrices().into_iter().chain(op.table());
        let ids: BTreeSet<WeightId> = plan.ops.iter().flat_map(of_op).collect();
        let mut all = Inventory {
            matrices: Vec::new(),
            by_id: HashMap::new(),
        };
        let mut known: HashMap<(*const u8, usize), usize> = HashMap::new();
        for id in ids {
            let matrix = weights.matrix(id);
            let key = (matrix.data.as_ptr(), matrix.data.len());
            let at = *known.entry(key).or_insert(all.matrices.len());
            if at == all.matrices.len() {
                all.matrices.push(matrix);
            }
            all.by_id.insert(id, at);
        }
        all
    }
}

/// Bytes that the weights of `plan` take on the device.
///
/// # Errors
/// If there are no kernels for one of their formats.
pub(super) fn device_bytes(gpu: &Gpu, plan: &Plan, weights: &Weights) -> Result<u64, EngineError> {
    let inventory = Inventory::new(plan, weights);
    let mut n_bytes = 0u64;
    for matrix in &inventory.matrices {
        n_bytes += ops::packed_bytes(gpu, matrix.ty, matrix.n_out, matrix.n_in)? as u64;
    }
    let vectors = vector_places(plan, weights).1 * size_of::<f32>();
    Ok(n_bytes + vectors as u64)
}

/// Bytes that the weights of `plan` pass through on their way to the device.
pub(super) fn staging_bytes(plan: &Plan, weights: &Weights) -> u64 {
    let matrices = Inventory::new(plan, weights).matrices.into_iter();
    let chunks = matrices.map(|matrix| chunk_bytes(matrix.ty, [matrix.n_out, matrix.n_in]));
    2 * chunks.max().unwrap_or(0) as u64
}

/// First value and length of each vector, and the values of all.
fn vector_places(plan: &Plan, weights: &Weights) -> (HashMap<WeightId, (usize, usize)>, usize) {
    let ids: BTreeSet<WeightId> = plan.ops.iter().flat_map(|op| op.vectors()).collect();
    let mut places = HashMap::new();
    let mut end = 0;
    for id in ids {
        let len = weights.vector(id).len();
        places.insert(id, (end, len));
        end += len.next_multiple_of(VECTOR_ALIGN);
    }
    (places, end)
}

impl DeviceWeights {
    /// Copies and repacks all weights of `plan`.
    pub(super) fn upload(
        gpu: &Gpu,
        plan: &Plan,
        weights: &Weights,
    ) -> Result<DeviceWeights, EngineError> {
        let inventory = Inventory::new(plan, weights);
        let (places, n_values) = vector_places(plan, weights);
        let mut values = vec![0.0f32; n_values];
        for (id, (first, len)) in &places {
            values[*first..first + len].copy_from_slice(weights.vector(*id));
        }
        let vector_data = gpu.upload(&values)?;
        let mut data = Vec::with_capacity(inventory.matrices.len());
        let chunks = inventory.matrices.iter();
        let chunks = chunks.map(|matrix| chunk_bytes(matrix.ty, [matrix.n_out, matrix.n_in]));
        let mut uploader = Uploader::new(gpu, chunks.max().unwrap_or(0))?;
        for matrix in &inventory.matrices {
            let packed = gpu.alloc::<u8>(ops::packed_bytes(
                gpu,
                matrix.ty,
                matrix.n_out,
                matrix.n_in,
            )?)?;
            let out = Matrix {
                ty: matrix.ty,
                n_out: matrix.n_out,
                n_in: matrix.n_in,
                data: packed.as_slice(),
            };
            uploader.repack(matrix.data, &out)?;
            data.push(packed);
        }
        uploader.finish()?;
        let matrices = inventory.by_id.into_iter().map(|(id, at)| {
            let matrix = &inventory.matrices[at];
            let matrix = DeviceMatrix {
                ty: matrix.ty,
                n_out: matrix.n_out,
                n_in: matrix.n_in,
                data: at,
            };
            (id, matrix)
        });
        Ok(DeviceWeights {
            matrices: matrices.collect(),
            data,
            vectors: places,
            vector_data,
        })
    }

    /// # Panics
    /// If no operation of the plan multiplies with `id` or looks up its rows.
    pub(super) fn matrix(&self, id: WeightId) -> Matrix<'_> {
        let matrix = &self.matrices[&id];
        Matrix {
            ty: matrix.ty,
            n_out: matrix.n_out,
            n_in: matrix.n_in,
            data: self.data[matrix.data].as_slice(),
        }
    }

    /// # Panics
    /// If no operation of the plan reads the vector `id`.
    pub(super) fn vector(&self, id: WeightId) -> Slice<'_, f32> {
        let (first, len) = self.vectors[&id];
        self.vector_data.as_slice().part(first..first + len)
    }
}
