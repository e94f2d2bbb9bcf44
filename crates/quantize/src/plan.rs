//! A quantization before and while it happens: which tensor becomes what, how large the file will be, and
//! its making, tensor after tensor, through the streaming writer.

use std::io::Write;
use std::sync::Arc;

use rocmforge_cpu::Pool;
use rocmforge_gguf::{GgmlType, Gguf, TensorInfo, Writer};

use super::convert::{Conversion, Errors};
use super::mix::{self, Mix, ModelFacts, Role};
use super::{FileType, Mixing, QuantizeError, QuantizeOptions, Requantize};
use crate::imatrix::Imatrix;
use std::ops::ControlFlow;

/// Values of a row at most: 64 MiB as floats. The longest rows of models have about 100,000.
const MAX_ROW_LEN: u64 = 1 << 24;
/// Bytes that are copied at a time.
const COPY_BYTES: usize = 16 << 20;
/// The version of GGML's block formats.
const QUANTIZATION_VERSION: u32 = 2;

/// What happens to one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorPlan {
    pub name: String,
    /// Row length first.
    pub dims: Vec<u64>,
    pub from: GgmlType,
    pub to: GgmlType,
    /// The type it was to have, but its rows are no whole blocks of that.
    pub instead_of: Option<GgmlType>,
    /// Whether the importance matrix has an entry for it.
    pub is_weighted: bool,
    /// Whether the result is useless without.
    pub needs_importance: bool,
    pub bytes_before: u64,
    pub bytes: u64,
}

/// A tensor and what its conversion has cost; no errors where it was copied.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorReport {
    pub tensor: TensorPlan,
    pub errors: Option<Errors>,
}

/// How far the work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The tensor in hand, counted from 0.
    pub tensor: usize,
    /// Bytes of the model's tensors that have been read.
    pub bytes_read: u64,
}

/// Everything decided: [`QuantizePlan::write`] does it.
#[derive(Debug)]
pub struct QuantizePlan {
    gguf: Arc<Gguf>,
    tensors: Vec<TensorPlan>,
    importance: Option<Imatrix>,
    /// Metadata, and the tensors as declared.
    writer: Writer<'static>,
    file_bytes: u64,
}

impl QuantizePlan {
    /// Chooses a type for every tensor. Reads no weights.
    ///
    /// # Errors
    /// If a tensor cannot or may not be converted, or the importance matrix is of another model.
    pub fn new(gguf: Arc<Gguf>, options: QuantizeOptions) -> Result<QuantizePlan, QuantizeError> {
        let tensors = choose_all(&gguf, &options)?;
        let mut writer = Writer::default();
        set_metadata(&mut writer, &gguf, &options);
        for tensor in &tensors {
            writer.declare_tensor(&tensor.name, &tensor.dims, tensor.to)?;
        }
        Ok(QuantizePlan {
            file_bytes: writer.file_bytes()?,
            gguf,
            tensors,
            importance: options.importance.map(|(imatrix, _)| imatrix),
            writer,
        })
    }

    /// In the order of the file.
    pub fn tensors(&self) -> &[TensorPlan] {
        &self.tensors
    }

    /// Length of the file to be.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of all tensors as they are.
    pub fn bytes_before(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes_before).sum()
    }

    /// Writes the file to `out` with `n_threads` threads. `on_progress` is told often and may stop the work.
    ///
    /// # Errors
    /// If a tensor holds what its type cannot, an importance matrix is missing, `out` refuses, or the work
    /// was stopped. What `out` has got then is no file.
    pub fn write(
        &self,
        out: impl Write,
        n_threads: usize,
        mut on_progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<TensorReport>, QuantizeError> {
        let missing = |tensor: &&TensorPlan| tensor.needs_importance && !tensor.is_weighted;
        if let Some(tensor) = self.tensors.iter().find(missing) {
            return Err(QuantizeError::NeedsImportance {
                name: tensor.name.clone(),
                ty: tensor.to.name(),
            });
        }
        let pool = Pool::new(n_threads);
        let mut stream = self.writer.stream(out)?;
        let mut reports = Vec::with_capacity(self.tensors.len());
        let mut progress = Progress {
            tensor: 0,
            bytes_read: 0,
        };
        for (index, (plan, info)) in self.tensors.iter().zip(self.gguf.tensors()).enumerate() {
            progress.tensor = index;
            let data = self.gguf.tensor_data(info);
            let mut sink = |bytes: &[u8], n_read: usize| {
                stream.write(bytes)?;
                progress.bytes_read += n_read as u64;
                match on_progress(progress) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(QuantizeError::Stopped),
                }
            };
            let errors = if plan.from == plan.to {
                data.chunks(COPY_BYTES)
                    .try_for_each(|bytes| sink(bytes, bytes.len()))?;
                None
            } else {
                let importance = plan
                    .is_weighted
                    .then(|| self.importance.as_ref()?.mean_squares(&plan.name))
                    .flatten();
                let conversion = Conversion {
                    data,
                    from: plan.from,
                    to: plan.to,
                    row_len: info.row_len() as usize,
                    rows_per_matrix: info.dims.get(1).map_or(1, |&rows| rows as usize),
                    importance: importance.as_deref(),
                };
                Some(conversion.run(&pool, &plan.name, sink)?)
            };
            reports.push(TensorReport {
                tensor: plan.clone(),
                errors,
            });
        }
        stream.finish()?;
        Ok(reports)
    }
}

/// The plans of all tensors, in the order of the file.
fn choose_all(gguf: &Gguf, options: &QuantizeOptions) -> Result<Vec<TensorPlan>, QuantizeError> {
    choose_types(&ModelFacts::read(gguf)?, gguf.tensors(), options)
}

/// The plans of the tensors of a model of which these facts hold, in their order.
pub(crate) fn choose_types(
    facts: &ModelFacts,
    infos: &[TensorInfo],
    options: &QuantizeOptions,
) -> Result<Vec<TensorPlan>, QuantizeError> {
    // A mix counts layers, whatever the order of the file.
    let mut order: Vec<usize> = (0..infos.len()).collect();
    order.sort_by_key(|&index| (mix::layer(&infos[index].name), &infos[index].name));
    let mut mix = Mix {
        facts,
        file_type: options.file_type,
        output_type: options.output_type,
        has_importance: options.importance.is_some(),
        n_v_seen: 0,
        n_down_seen: 0,
    };
    let mut plans: Vec<Option<TensorPlan>> = vec![None; infos.len()];
    for index in order {
        plans[index] = Some(choose(&infos[index], options, &mut mix)?);
    }
    let plans: Vec<TensorPlan> = plans.into_iter().flatten().collect();
    let converts = plans.iter().any(|plan| plan.from != plan.to);
    let is_weighted = plans.iter().any(|plan| plan.is_weighted);
    if options.importance.is_some() && converts && !is_weighted {
        return Err(QuantizeError::ForeignImportance);
    }
    Ok(plans)
}

fn choose(
    info: &TensorInfo,
    options: &QuantizeOptions,
    mix: &mut Mix<'_>,
) -> Result<TensorPlan, QuantizeError> {
    let wanted = wanted_type(info, options, mix)?;
    let to = match wanted == info.ty {
        true => wanted,
        false => mix::fitting(wanted, info.row_len()),
    };
    if to != info.ty {
        check_convertible(info, options.requantize)?;
    }
    Ok(TensorPlan {
        name: info.name.clone(),
        dims: info.dims.clone(),
        from: info.ty,
        to,
        instead_of: (to != wanted).then_some(wanted),
        is_weighted: to != info.ty && has_importance(info, options)?,
        needs_importance: to != info.ty
            && to == GgmlType::Q2_K
            && options.file_type == FileType::Q2_K_S
            && !matches!(Role::of(&info.name), Role::TokenEmbedding | Role::Output),
        bytes_before: info.n_bytes,
        bytes: info.n_rows().saturating_mul(row_bytes(to, info.row_len())),
    })
}

/// The type a tensor is to have if its rows are whole blocks of it.
fn wanted_type(
    info: &TensorInfo,
    options: &QuantizeOptions,
    mix: &mut Mix<'_>,
) -> Result<GgmlType, QuantizeError> {
    let Some(usual) = options.file_type.tensor_type() else {
        return Ok(info.ty);
    };
    if !mix::is_quantizable(info) {
        return Ok(info.ty);
    }
    match (
        Role::of(&info.name),
        options.embedding_type,
        options.output_type,
    ) {
        (Role::TokenEmbedding, Some(ty), _) | (Role::Output, _, Some(ty)) => return Ok(ty),
        _ => {}
    }
    if let Some(ty) = options.rules.iter().find_map(|rule| rule.apply(&info.name)) {
        return Ok(ty);
    }
    let is_float = usual.block_len() == 1;
    match options.mixing {
        Mixing::Mixed if !is_float => mix.choose(info, usual),
        Mixing::Mixed | Mixing::Pure => Ok(usual),
    }
}

fn check_convertible(info: &TensorInfo, requantize: Requantize) -> Result<(), QuantizeError> {
    let name = || info.name.clone();
    let ty = info.ty.name();
    if !info.ty.can_dequantize() {
        return Err(QuantizeError::Unreadable { name: name(), ty });
    }
    if info.ty.block_len() > 1 && requantize == Requantize::Refuse {
        return Err(QuantizeError::AlreadyQuantized { name: name(), ty });
    }
    if info.row_len() > MAX_ROW_LEN {
        return Err(QuantizeError::RowTooLong {
            name: name(),
            row_len: info.row_len(),
            limit: MAX_ROW_LEN,
        });
    }
    Ok(())
}

/// Whether the importance matrix has an entry for a tensor, of the right length.
fn has_importance(info: &TensorInfo, options: &QuantizeOptions) -> Result<bool, QuantizeError> {
    let Some((imatrix, _)) = &options.importance else {
        return Ok(false);
    };
    let Some(found) = imatrix.n_values(&info.name) else {
        return Ok(false);
    };
    let n_matrices: u64 = info.dims.iter().skip(2).product();
    let expected = info.row_len() * n_matrices;
    if found as u64 == expected {
        return Ok(true);
    }
    // An embedding is looked up, not multiplied; an entry under its name is of something else.
    if Role::of(&info.name) == Role::TokenEmbedding {
        return Ok(false);
    }
    Err(QuantizeError::ImportanceShape {
        name: info.name.clone(),
        found,
        expected,
    })
}

/// Bytes of a row of whole blocks.
fn row_bytes(ty: GgmlType, row_len: u64) -> u64 {
    (row_len / ty.block_len() as u64).saturating_mul(ty.block_bytes() as u64)
}

/// The metadata of `gguf`, and what has been done to it, under llama.cpp's keys.
fn set_metadata(writer: &mut Writer<'_>, gguf: &Gguf, options: &QuantizeOptions) {
    const OF_SPLIT: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];
    for (key, value) in gguf.metadata().iter() {
        if !OF_SPLIT.contains(&key) {
            writer.set(key, value);
        }
    }
    writer.set("general.quantization_version", QUANTIZATION_VERSION);
    if let Some(id) = options.file_type.id() {
        writer.set("general.file_type", id);
    }
    let Some((imatrix, file)) = &options.importance else {
        return;
    };
    writer.set("quantize.imatrix.file", file.as_str());
    if let Some(dataset) = imatrix.datasets.first() {
        writer.set("quantize.imatrix.dataset", dataset.as_str());
    }
    writer.set(
        "quantize.imatrix.entries_count",
        imatrix.entries.len() as u32,
    );
    if imatrix.n_chunks > 0 {
        writer.set("quantize.imatrix.chunks_count", imatrix.n_chunks);
    }
}
