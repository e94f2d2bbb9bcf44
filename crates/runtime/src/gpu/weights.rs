//! The model's weights on the device: matrices repacked for the kernels, and all vectors in one buffer. Models of one file, such
//! as one and its drafter, share the matrices that both have.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{
    Buffer, DeviceId, ExpertMatrices, Gpu, Matrix, RowOrder, Slice, Uploader, chunk_bytes, ops,
};

use crate::error::RuntimeError;
use rocmforge_plan::Weights;
use rocmforge_plan::{ExpertStack, Op, Plan, WeightId};

/// Alignment of vectors in values, enough for the widest loads.
const VECTOR_ALIGN: usize = 64;

/// The uploaded weights of a plan, by [`WeightId`].
pub(crate) struct DeviceWeights {
    matrices: HashMap<WeightId, DeviceMatrix>,
    data: Vec<Arc<Uploaded>>,
    /// Offset and length of each vector, in values.
    vectors: HashMap<WeightId, (usize, usize)>,
    vector_data: Buffer,
}

/// The matrices of a tensor on a device.
struct Uploaded {
    packed: Buffer,
    order: RowOrder,
    /// While they live, no other tensor has their place in memory.
    _weights: Arc<Weights>,
}

/// What matrices on a device are of: the device, where the tensor is in memory, its type, how many matrices it is, and their shape.
type Origin = (DeviceId, (usize, usize), GgmlType, [usize; 3]);

/// The matrices on all devices.
static UPLOADED: LazyLock<Mutex<HashMap<Origin, Weak<Uploaded>>>> = LazyLock::new(Mutex::default);

/// A matrix on the device, or the matrices of all experts of an MoE layer.
struct DeviceMatrix {
    ty: rocmforge_gguf::GgmlType,
    /// How many matrices these are; `None` for one that is of no expert.
    n_matrices: Option<usize>,
    /// Of one expert's matrix.
    n_out: usize,
    n_in: usize,
    /// Index in `data`, shared by tied weights.
    data: usize,
}

/// A matrix of the file, or the matrices of all experts, stacked by rows.
struct FileMatrix<'a> {
    weight: rocmforge_plan::Weight<'a>,
    n_stacked: Option<usize>,
}

impl FileMatrix<'_> {
    fn n_matrices(&self) -> usize {
        self.n_stacked.unwrap_or(1)
    }

    /// Rows of one matrix.
    fn n_out(&self) -> usize {
        self.weight.n_out / self.n_matrices()
    }

    fn order(&self, gpu: &Gpu, max_rows: usize) -> RowOrder {
        let shape = [self.n_out(), self.weight.n_in];
        ops::row_order(gpu, self.weight.ty, shape, max_rows)
    }

    fn may_lie_in_tiles(&self, gpu: &Gpu) -> bool {
        self.order(gpu, usize::MAX) == RowOrder::Tiles
    }

    fn origin(&self, gpu: &Gpu) -> Origin {
        let data = self.weight.data;
        let place = (data.as_ptr() as usize, data.len());
        let shape = [self.n_matrices(), self.n_out(), self.weight.n_in];
        (gpu.id(), place, self.weight.ty, shape)
    }

    /// Bytes of all its matrices on the device.
    fn packed_bytes(&self, gpu: &Gpu) -> Result<usize, rocmforge_gpu::GpuError> {
        let one = ops::packed_bytes(gpu, self.weight.ty, self.n_out(), self.weight.n_in)?;
        Ok(self.n_matrices() * one)
    }
}

/// The matrices of a plan. Tied weights appear once.
struct Inventory<'a> {
    /// In the order of the file's data.
    matrices: Vec<FileMatrix<'a>>,
    /// Index in `matrices`.
    by_id: HashMap<WeightId, usize>,
}

impl<'a> Inventory<'a> {
    fn new(plan: &Plan, weights: &'a Weights) -> Inventory<'a> {
        let of_op = |op: &Op| op.matrices().into_iter().chain(op.table());
        let ids: BTreeSet<WeightId> = plan.ops.iter().flat_map(of_op).collect();
        let stacked = plan.ops.iter().filter_map(|op| match *op {
            Op::ExpertMatMul { weight, stack, .. } => Some((weight, stack.n_matrices())),
            Op::HeadMatMul {
                weight, n_heads, ..
            } => Some((weight, n_heads)),
            _ => None,
        });
        let stacked: HashMap<WeightId, usize> = stacked.collect();
        let mut all = Inventory {
            matrices: Vec::new(),
            by_id: HashMap::new(),
        };
        let mut known: HashMap<(*const u8, usize), usize> = HashMap::new();
        for id in ids {
            let weight = weights.matrix(id);
            let key = (weight.data.as_ptr(), weight.data.len());
            let at = *known.entry(key).or_insert(all.matrices.len());
            if at == all.matrices.len() {
                let n_stacked = stacked.get(&id).copied();
                all.matrices.push(FileMatrix { weight, n_stacked });
            }
            all.by_id.insert(id, at);
        }
        all
    }

    /// Returns the matrices that other models have uploaded; of those that may lie in tiles, the ones in the order of the first.
    fn uploaded(&self, gpu: &Gpu) -> Vec<Option<Arc<Uploaded>>> {
        let all = UPLOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut first = None;
        let of_file = |file: &FileMatrix<'_>| {
            let uploaded = all.get(&file.origin(gpu))?.upgrade()?;
            if uploaded.packed.is_lost() {
                return None;
            }
            let is_alike = !file.may_lie_in_tiles(gpu)
                || *first.get_or_insert(uploaded.order) == uploaded.order;
            is_alike.then_some(uploaded)
        };
        self.matrices.iter().map(of_file).collect()
    }

    /// Returns the order of rows of each matrix: the fastest for answers of up to `max_rows` sequences at a time. All that may
    /// lie in tiles do so or none, as those that are `uploaded`, since kernels take up like its gate, and the matrix of a shared
    /// expert like those of the others.
    fn orders(
        &self,
        gpu: &Gpu,
        uploaded: &[Option<Arc<Uploaded>>],
        max_rows: usize,
    ) -> Vec<RowOrder> {
        let mut known = self.matrices.iter().zip(uploaded);
        let of_uploaded = known.find_map(|(file, uploaded)| {
            let uploaded = uploaded.as_ref()?;
            file.may_lie_in_tiles(gpu).then_some(uploaded.order)
        });
        let max_rows = match of_uploaded {
            Some(RowOrder::Tiles) => usize::MAX,
            Some(RowOrder::Apart) => 1,
            None => max_rows,
        };
        let all = || self.matrices.iter();
        let is_best = |file: &FileMatrix<'_>| {
            !file.may_lie_in_tiles(gpu) || file.order(gpu, max_rows) == RowOrder::Tiles
        };
        let max_rows = if all().all(is_best) { max_rows } else { 1 };
        all().map(|file| file.order(gpu, max_rows)).collect()
    }
}

/// Returns the order of rows of each matrix of `plan`, as [`DeviceWeights::upload`] would choose it now.
pub(crate) fn row_orders(
    gpu: &Gpu,
    plan: &Plan,
    weights: &Weights,
    max_rows: usize,
) -> Vec<RowOrder> {
    let inventory = Inventory::new(plan, weights);
    inventory.orders(gpu, &inventory.uploaded(gpu), max_rows)
}

/// Returns the bytes of the weights of `plan` on the device, except those that are there already.
///
/// # Errors
/// If there are no kernels for one of their formats.
pub(crate) fn device_bytes(gpu: &Gpu, plan: &Plan, weights: &Weights) -> Result<u64, RuntimeError> {
    let inventory = Inventory::new(plan, weights);
    let mut n_bytes = 0u64;
    for (matrix, uploaded) in inventory.matrices.iter().zip(inventory.uploaded(gpu)) {
        if uploaded.is_none() {
            n_bytes += matrix.packed_bytes(gpu)? as u64;
        }
    }
    let vectors = vector_places(plan, weights).1 * size_of::<f32>();
    Ok(n_bytes + vectors as u64)
}

/// Returns the bytes of the matrices of `plan` as they are in the file.
pub(crate) fn file_bytes(plan: &Plan, weights: &Weights) -> u64 {
    let matrices = Inventory::new(plan, weights).matrices.into_iter();
    matrices.map(|file| file.weight.data.len() as u64).sum()
}

/// Returns the bytes of the staging buffers that upload the weights of `plan`.
pub(crate) fn staging_bytes(plan: &Plan, weights: &Weights) -> u64 {
    let matrices = Inventory::new(plan, weights).matrices.into_iter();
    let chunks = matrices.map(|file| chunk_bytes(file.weight.ty, [file.n_out(), file.weight.n_in]));
    2 * chunks.max().unwrap_or(0) as u64
}

/// Returns the offset and length of each vector, and the total length, in values.
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
    /// Uploads and repacks all weights of `plan`, for answers of up to `max_rows` sequences at a time. Takes those that other
    /// models have uploaded.
    pub(crate) fn upload(
        gpu: &Gpu,
        plan: &Plan,
        weights: &Arc<Weights>,
        max_rows: usize,
    ) -> Result<DeviceWeights, RuntimeError> {
        let inventory = Inventory::new(plan, weights);
        let uploaded = inventory.uploaded(gpu);
        let orders = inventory.orders(gpu, &uploaded, max_rows);
        let (places, n_values) = vector_places(plan, weights);
        let mut values = vec![0.0f32; n_values];
        for (id, (first, len)) in &places {
            values[*first..first + len].copy_from_slice(weights.vector(*id));
        }
        let vector_data = gpu.upload(&values)?;
        let mut data = Vec::with_capacity(inventory.matrices.len());
        let chunks = inventory.matrices.iter();
        let chunks =
            chunks.map(|file| chunk_bytes(file.weight.ty, [file.n_out(), file.weight.n_in]));
        let mut uploader = Uploader::new(gpu, chunks.max().unwrap_or(0))?;
        let mut new = Vec::new();
        for ((file, uploaded), order) in inventory.matrices.iter().zip(uploaded).zip(orders) {
            if let Some(uploaded) = uploaded {
                data.push(uploaded);
                continue;
            }
            let rocmforge_plan::Weight { ty, n_in, .. } = file.weight;
            let (n_matrices, n_out) = (file.n_matrices(), file.n_out());
            let packed = gpu.alloc::<u8>(file.packed_bytes(gpu)?)?;
            let out = ExpertMatrices {
                ty,
                stack: ExpertStack::whole(n_matrices),
                n_out,
                n_in,
                order,
                data: packed.as_slice(),
            };
            for i in 0..n_matrices {
                let n_bytes = file.weight.data.len() / n_matrices;
                let rows = &file.weight.data[i * n_bytes..][..n_bytes];
                uploader.repack(rows, &out.matrix(i))?;
            }
            let uploaded = Arc::new(Uploaded {
                packed,
                order,
                _weights: Arc::clone(weights),
            });
            new.push((file.origin(gpu), Arc::downgrade(&uploaded)));
            data.push(uploaded);
        }
        uploader.finish()?;
        let mut all = UPLOADED.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, uploaded| uploaded.strong_count() > 0);
        all.extend(new);
        drop(all);
        let matrices = inventory.by_id.into_iter().map(|(id, at)| {
            let file = &inventory.matrices[at];
            let matrix = DeviceMatrix {
                ty: file.weight.ty,
                n_matrices: file.n_stacked,
                n_out: file.n_out(),
                n_in: file.weight.n_in,
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

    /// Returns the type of a matrix, or of those of all experts.
    pub(crate) fn ty(&self, id: WeightId) -> GgmlType {
        self.matrices[&id].ty
    }

    /// Returns the order of rows of a matrix, or of those of all experts.
    pub(crate) fn order(&self, id: WeightId) -> RowOrder {
        self.data[self.matrices[&id].data].order
    }

    /// Returns a matrix.
    ///
    /// # Panics
    /// If no operation of the plan multiplies with `id` or looks up its rows, or if it is an expert matrix.
    pub(crate) fn matrix(&self, id: WeightId) -> Matrix<'_> {
        let matrix = &self.matrices[&id];
        assert_eq!(matrix.n_matrices, None, "one matrix");
        Matrix {
            ty: matrix.ty,
            n_out: matrix.n_out,
            n_in: matrix.n_in,
            order: self.data[matrix.data].order,
            data: self.data[matrix.data].packed.as_slice(),
        }
    }

    /// Returns the matrices of all experts of an MoE layer, or of all heads.
    ///
    /// # Panics
    /// If no product of experts or heads of the plan uses `id`, of as many matrices.
    pub(crate) fn experts(&self, id: WeightId, stack: ExpertStack) -> ExpertMatrices<'_> {
        let matrix = &self.matrices[&id];
        assert_eq!(
            matrix.n_matrices,
            Some(stack.n_matrices()),
            "matrices of experts"
        );
        ExpertMatrices {
            ty: matrix.ty,
            stack,
            n_out: matrix.n_out,
            n_in: matrix.n_in,
            order: self.data[matrix.data].order,
            data: self.data[matrix.data].packed.as_slice(),
        }
    }

    /// Returns a vector.
    ///
    /// # Panics
    /// If no operation of the plan reads the vector `id`.
    pub(crate) fn vector(&self, id: WeightId) -> Slice<'_, f32> {
        let (first, len) = self.vectors[&id];
        self.vector_data.as_slice().part(first..first + len)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use rocmforge_gguf::Gguf;
    use rocmforge_model::Model;
    use rocmforge_plan::Fusion;
    use rocmforge_quantize::{FileType, QuantizeOptions, QuantizePlan, Requantize, TypeRule};
    use rocmforge_testkit::models as synth;

    use super::super::tests::{Passed, hopper};
    use super::super::{GpuConfig, Graphs};
    use super::*;
    use crate::check::FirstUse;
    use crate::config::{Device, EngineConfig};
    use crate::self_check::SelfCheck;
    use crate::start::start;

    fn model() -> Model {
        let writer = synth::model("llama", GgmlType::Q4_K).unwrap().unwrap();
        let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        Model::load(Arc::new(gguf)).unwrap()
    }

    fn config(max_seqs: usize, batch_invariant: bool) -> EngineConfig {
        EngineConfig {
            max_seqs,
            n_ctx: Some(64),
            n_threads: Some(1),
            device: Device::Gpu(GpuConfig {
                id: Some("host:nv".parse().unwrap()),
                batch_invariant,
                self_check: SelfCheck::Never,
                ..GpuConfig::default()
            }),
            ..EngineConfig::default()
        }
    }

    fn has_tiles(orders: &[RowOrder]) -> bool {
        orders.contains(&RowOrder::Tiles)
    }

    #[test]
    fn started_models_have_tiles_for_more_than_two_sequences() {
        let Some(gpu) = hopper() else { return };
        for (config, expected) in [
            (config(2, false), false),
            (config(3, false), true),
            (config(1, true), true),
        ] {
            let model = model();
            let plan = model.compiled_plan(Fusion::On);
            let _started = start(&model, &config).unwrap();
            // What is there decides, whatever is asked for.
            let other = if expected { 1 } else { usize::MAX };
            let orders = row_orders(&gpu, &plan, &model.weights, other);
            assert_eq!(has_tiles(&orders), expected, "{} at once", config.max_seqs);
        }
    }

    /// A check without tiles says nothing about the kernels of tiles.
    #[test]
    fn tiles_have_a_check_of_their_own() {
        let Some(gpu) = hopper() else { return };
        let model = model();
        let store = SelfCheck::FirstUse(Arc::new(Passed::default()));
        let due = |max_seqs| {
            let config = config(max_seqs, false);
            let (check, _) =
                FirstUse::due((&gpu, None), &model, &config, (&store, Graphs::On)).unwrap();
            check.inspect(|check| check.passed(Graphs::On)).is_some()
        };
        assert!(due(2) && !due(2) && !due(1));
        assert!(due(3) && !due(64));
    }

    /// A model of which only some matrices are best in tiles for three sequences has none there.
    #[test]
    fn matrices_of_a_model_have_one_order_of_rows() {
        let Some(gpu) = hopper() else { return };
        let gguf = synth::model("llama", GgmlType::Q4_K).unwrap().unwrap();
        let gguf = Gguf::from_vec(gguf.to_vec().unwrap()).unwrap();
        let options = QuantizeOptions {
            rules: vec![TypeRule::parse("attn_q=q2_k").unwrap()],
            requantize: Requantize::Allow,
            ..QuantizeOptions::new(FileType::Q4_K_M)
        };
        let plan = QuantizePlan::new(Arc::new(gguf), options).unwrap();
        let mut file = Vec::new();
        plan.write(&mut file, 1, |_| ControlFlow::Continue(()))
            .unwrap();
        let model = Model::load(Arc::new(Gguf::from_vec(file).unwrap())).unwrap();
        let plan = model.compiled_plan(Fusion::On);
        let orders = |max_rows| row_orders(&gpu, &plan, &model.weights, max_rows);
        assert!(!has_tiles(&orders(4)) && has_tiles(&orders(5)));
    }

    #[test]
    fn models_of_one_file_have_one_order_of_rows() {
        let Some(gpu) = hopper() else { return };
        let model = model();
        let plan = model.compiled_plan(Fusion::On);
        let upload = |max_rows| DeviceWeights::upload(&gpu, &plan, &model.weights, max_rows);
        let orders = |max_rows| row_orders(&gpu, &plan, &model.weights, max_rows);
        assert!(has_tiles(&orders(8)) && !has_tiles(&orders(2)));
        for (first, second) in [(1, 8), (8, 1)] {
            let expected = orders(first);
            let first = upload(first).unwrap();
            assert_eq!(orders(second), expected);
            let of_vectors = size_of::<f32>() * vector_places(&plan, &model.weights).1;
            let n_bytes = device_bytes(&gpu, &plan, &model.weights).unwrap();
            assert_eq!(n_bytes, of_vectors as u64, "all matrices are there");
            let second = upload(second).unwrap();
            let mut both = first.data.iter().zip(&second.data).zip(&expected);
            assert!(both.all(|((a, b), order)| Arc::ptr_eq(a, b) && a.order == *order));
        }
    }
}
