//! Plans and runs a quantization: the type of each tensor, the size of the file, and the conversion of one tensor
//! after the other through the streaming writer.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use rocmforge_cpu::Pool;
use rocmforge_gguf::{GgmlType, Gguf, TensorInfo, Writer};

use crate::convert::{Conversion, Errors};
use crate::error::QuantizeError;
use crate::file_type::FileType;
use crate::imatrix::Imatrix;
use crate::mix::{self, Mix, ModelFacts, Role};
use crate::options::{Mixing, QuantizeOptions, Requantize};

/// Maximum values per row: 64 MiB as f32. The longest rows of real models have about 100,000.
const MAX_ROW_LEN: u64 = 1 << 24;
/// Bytes copied at a time.
const COPY_BYTES: usize = 16 << 20;
/// The version of GGML's block formats.
const QUANTIZATION_VERSION: u32 = 2;

/// How one tensor will be converted.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorPlan {
    pub name: String,
    /// Dimensions, row length first.
    pub dims: Vec<u64>,
    pub from: GgmlType,
    pub to: GgmlType,
    /// The type originally chosen, if rows are not whole blocks of it.
    pub instead_of: Option<GgmlType>,
    /// Whether the importance matrix has an entry for it.
    pub is_weighted: bool,
    /// Whether the result is useless without an importance matrix.
    pub needs_importance: bool,
    pub bytes_before: u64,
    pub bytes: u64,
}

/// A converted tensor and its error; no error if it was copied.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorReport {
    pub tensor: TensorPlan,
    pub errors: Option<Errors>,
}

/// The progress of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Index of the current tensor.
    pub tensor: usize,
    /// Bytes of the model's tensors read so far.
    pub bytes_read: u64,
}

/// A planned quantization, with the type of every tensor chosen; [`QuantizePlan::write`] runs it.
#[derive(Debug)]
pub struct QuantizePlan {
    gguf: Arc<Gguf>,
    tensors: Vec<TensorPlan>,
    importance: Option<Imatrix>,
    /// Metadata and declared tensors.
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

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[TensorPlan] {
        &self.tensors
    }

    /// The size of the file to write, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The size of all tensors before quantization, in bytes.
    pub fn bytes_before(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes_before).sum()
    }

    /// Writes the file to `out` on `n_threads` threads. `on_progress` is called often and may stop the work.
    ///
    /// # Errors
    /// If a tensor holds values that its type cannot represent, a needed importance matrix is missing, `out` returns an
    /// error, or the work was stopped. What was written to `out` is then incomplete.
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

/// Returns the plans of all tensors, in file order.
fn choose_all(gguf: &Gguf, options: &QuantizeOptions) -> Result<Vec<TensorPlan>, QuantizeError> {
    choose_types(&ModelFacts::read(gguf)?, gguf.tensors(), options)
}

/// Returns the plans of the given tensors of a model, in order.
pub(crate) fn choose_types(
    facts: &ModelFacts,
    infos: &[TensorInfo],
    options: &QuantizeOptions,
) -> Result<Vec<TensorPlan>, QuantizeError> {
    // A mix counts layers, so the order of the file must not matter.
    let mut order: Vec<usize> = (0..infos.len()).collect();
    order.sort_by_key(|&index| (mix::layer(&infos[index].name), &infos[index].name));
    let mut mix = Mix {
        facts,
        file_type: options.file_type,
        output_type: options.output_type,
        has_importance: options.importance.is_some(),
        n_v_seen: 0,
        n_down_seen: 0,
        n_gate_seen: 0,
        n_up_seen: 0,
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
            && is_useless_unweighted(to, options.file_type)
            && !matches!(Role::of(&info.name), Role::TokenEmbedding | Role::Output),
        bytes_before: info.n_bytes,
        bytes: info.n_rows().saturating_mul(row_bytes(to, info.row_len())),
    })
}

/// Whether most tensors of this type are useless if they were quantized without an importance matrix. As in llama.cpp.
fn is_useless_unweighted(ty: GgmlType, file_type: FileType) -> bool {
    match ty {
        GgmlType::Q2_K => file_type == FileType::Q2_K_S,
        GgmlType::IQ1_S | GgmlType::IQ1_M => true,
        GgmlType::IQ2_XXS | GgmlType::IQ2_XS | GgmlType::IQ2_S | GgmlType::IQ3_XXS => true,
        _ => false,
    }
}

/// Returns the type chosen for a tensor, whether or not its rows are whole blocks of it.
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

/// Returns whether the importance matrix has an entry for a tensor. An entry of the wrong length is an error.
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
    // An embedding is looked up, not multiplied; an entry under its name is for something else.
    if Role::of(&info.name) == Role::TokenEmbedding {
        return Ok(false);
    }
    Err(QuantizeError::ImportanceShape {
        name: info.name.clone(),
        found,
        expected,
    })
}

/// Returns the bytes of a row of whole blocks.
fn row_bytes(ty: GgmlType, row_len: u64) -> u64 {
    (row_len / ty.block_len() as u64).saturating_mul(ty.block_bytes() as u64)
}

/// Copies the metadata of `gguf` and records the quantization under llama.cpp's keys.
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
