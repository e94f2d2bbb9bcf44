//! Compares a backend with the scalar path, operation by operation, on the user's own plan.
//!
//! Both run part of a prompt and then a decode step. Before each compared operation the scalar side receives a copy of
//! the other's memory. Inputs are then equal and errors do not accumulate, so any difference is due to that operation.
//! Everything that an operation may have written is compared: float buffers, quantized activations, expert routings and
//! the KV cache. The list of operations comes from the plan, so none can be forgotten.

mod difference;
mod first_use;
mod moves;
mod non_finite;
mod passed_folder;
mod sampling;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use rocmforge_cpu::{Isa, default_threads};
use rocmforge_plan::Weight;
use serde::Serialize;

use self::difference::difference;
pub(crate) use self::first_use::FirstUse;
pub use self::non_finite::{NonFinite, non_finite};
pub use self::passed_folder::PassedFolder;
pub use self::sampling::{SamplingCheck, sampling};
use super::cpu::{ActsBuffer, CpuBackend, CpuOptions};
use super::gpu::{GpuBackend, GpuOptions};
use super::hybrid::{HybridBackend, HybridOptions};
use crate::config::{Device, EngineConfig};
use crate::error::RuntimeError;
use crate::place::{Place, place};
use crate::plans;
pub use crate::self_check::{OpCheck, PassedChecks, SelfCheck, Step};
use crate::stepwise::Part;
pub use crate::stepwise::{Memory, Pass, Stepwise};
use rocmforge_gguf::TokenId;
use rocmforge_model::Model;
use rocmforge_plan::Weights;
use rocmforge_plan::{ActFormat, ActsId, BufferId, ExpertStack, Mask, Op, Plan, WeightId};
use rocmforge_plan::{Batch, BatchSeq, InputToken, LogitsRow, SeqState, StateStart, Want};
use rocmforge_plan::{KvType, KvTypes};

/// Maximum error relative to the largest magnitude in its row, or to the magnitude of its terms where a GEMM has few
/// values per row. Sums of thousands of products in f32 differ from those in f64 by a few parts in a million. Gate and up may
/// have twice this error, since they are multiplied.
pub const BOUND: f64 = 1e-5;
/// Maximum relative error of products whose weights and activations are rounded to f16 (relative errors of 2^-12 each).
pub const HALF_BOUND: f64 = 4e-3;
/// Maximum relative error of attention. Scores pass through an exponential, which turns their absolute error into a
/// relative one.
///
/// Prefill over a KV cache whose values have scales must be within this bound of one of two results:
/// from the exact cache values, or from those values rounded to f16, as a GPU's matrix units use them. How far the two
/// results differ depends on the magnitude of the keys, so no single bound fits all models.
pub const ATTENTION_BOUND: f64 = 1e-4;
/// Maximum relative error of attention whose queries and weights are rounded to f16, which moves a score of 100 by some
/// hundredths.
pub const HALF_ATTENTION_BOUND: f64 = 3e-2;

/// Maximum relative error of linear attention in chunks, whose operands are sums of two f16. Errors are below 2e-5 of the
/// largest value of a column, but relative to that of a row, which may be small beside what cancels in its sums, and which a
/// norm of heads brings to the size of the others: 1.1e-4 in a model of 48 heads.
pub const CHUNK_BOUND: f64 = 1e-3;

/// Relative error of codes that are made where their values are computed: a value between two codes may round to either.
pub const CODE_BOUND: f64 = 1.01 / 127.0;

/// Compared tokens of two prompts: together more rows than a kernel for few rows takes at a time, with a remainder.
const PROMPT_ROWS: [usize; 2] = [32, 5];
/// Compared tokens of each prompt that are decoded after it.
const DECODED: [usize; 2] = [4, 2];
/// Maximum tokens of a step that only fills the KV cache.
const FILL_ROWS: usize = 256;

/// Which operations are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// One of each kind, shape and format in each step, because the scalar path is slow.
    Distinct,
    All,
}

/// The result of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Passes of all compared steps; fused operations count as one.
    pub n_ops: usize,
    /// The compared operations, in execution order.
    pub checks: Vec<OpCheck>,
}

impl Report {
    /// Returns the operations that exceeded their bound.
    pub fn failures(&self) -> impl Iterator<Item = &OpCheck> {
        self.checks.iter().filter(|check| !check.passed)
    }
}

/// How much a check compares.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Tokens before the comparison starts.
    pub n_depth: usize,
    /// Compared tokens of two prompts.
    pub prompt_rows: [usize; 2],
    pub coverage: Coverage,
}

impl Extent {
    /// Short prompts after `n_depth` tokens.
    pub const fn after(n_depth: usize, coverage: Coverage) -> Extent {
        Extent {
            n_depth,
            prompt_rows: PROMPT_ROWS,
            coverage,
        }
    }

    /// The same with a longer or shorter first prompt.
    pub const fn with_prompt(self, n_rows: usize) -> Extent {
        Extent {
            prompt_rows: [n_rows, self.prompt_rows[1]],
            ..self
        }
    }

    /// Returns the context length that the check needs.
    pub fn n_ctx(&self) -> usize {
        self.n_depth
            .saturating_add(self.prompt_rows[0] + DECODED[0])
    }
}

/// Compares the kernels of the device chosen by `config` with the scalar path.
///
/// The text is `tokens`, repeated as needed.
///
/// # Errors
/// Errors of a GPU, and models that do not fit on it.
///
/// # Panics
/// If there are no tokens, a prompt is empty, or [`start`](crate::start()) would reject `config`.
pub fn check(
    model: &Model,
    config: &EngineConfig,
    tokens: &[TokenId],
    extent: &Extent,
) -> Result<Report, RuntimeError> {
    assert!(!tokens.is_empty(), "tokens are empty");
    assert!(
        extent.prompt_rows.iter().all(|&n| n > 0),
        "a prompt is empty"
    );
    let max_rows = extent.prompt_rows.iter().sum::<usize>();
    let on_gpu = match &config.device {
        Device::Cpu => None,
        Device::Gpu(gpu) => {
            let device = gpu.open()?;
            let place = place(&device, model, config, gpu.offload)?.place;
            Some((gpu.graphs, device, place))
        }
    };
    let mut plan = match &on_gpu {
        Some((.., Place::Gpu)) => plans::on_gpu(model, config.fusion),
        _ => model.compiled_plan(config.fusion),
    };
    for table in &mut plan.rope {
        table.settle(extent.n_ctx());
    }
    let rows = (extent.prompt_rows, None);
    let script = Script::new(tokens, extent.n_depth, config.page, rows);
    let n_threads = config.n_threads.unwrap_or_else(default_threads);
    let on_cpu = |isa| CpuOptions {
        isa,
        n_threads,
        page: config.page,
        n_blocks: script.n_blocks,
        kv_types: config.kv_types,
        n_slots: PROMPT_ROWS.len(),
    };
    let weights = &model.weights;
    let labels = Labels {
        plan: &plan,
        weights,
        kv_types: config.kv_types,
    };
    let cpu = |isa| CpuBackend::new(plan.clone(), Arc::clone(weights), on_cpu(isa));
    let mut checked: Box<dyn Stepwise> = match on_gpu {
        None => Box::new(cpu(config.isa)),
        Some((graphs, device, place)) => {
            let options = GpuOptions {
                n_ctx: extent.n_ctx(),
                max_tokens: FILL_ROWS.max(max_rows),
                max_logits: PROMPT_ROWS.len(),
                max_sampled: PROMPT_ROWS.len(),
                max_seqs: PROMPT_ROWS.len(),
                answers_at_once: config.answers_at_once(),
                page: config.page,
                n_blocks: script.n_blocks,
                n_slots: PROMPT_ROWS.len(),
                kv_types: config.kv_types,
                batch_invariant: false,
                graphs,
                isa: config.isa,
                n_threads,
            };
            match place {
                Place::Cpu => Box::new(cpu(config.isa)),
                Place::Gpu => Box::new(GpuBackend::new(device, plan.clone(), weights, options)?),
                Place::Both(placement) => {
                    let options = HybridOptions {
                        cpu: on_cpu(config.isa),
                        gpu: options,
                    };
                    let plan = plan.clone();
                    let hybrid = HybridBackend::new(device, plan, placement, weights, options)?;
                    Box::new(hybrid)
                }
            }
        }
    };
    let mut oracle = cpu(Isa::Scalar);
    compare(
        checked.as_mut(),
        &mut oracle,
        &script,
        &labels,
        extent.coverage,
    )
}

/// The steps of a check.
struct Script {
    /// Steps that only fill the KV cache of the checked backend.
    fill: Vec<Batch>,
    checked: [(Step, Batch); 4],
    /// A prompt of which only linear attention in chunks is compared: the scalar path takes long for the products of so many
    /// rows.
    chunked: Option<Batch>,
    /// Positions of the longest sequence.
    n_ctx: usize,
    n_blocks: usize,
}

impl Script {
    /// Returns steps that compare `prompt_rows` tokens of two prompts, the first prompt after `n_depth` other tokens, and then
    /// the chunks of `chunk_rows` more.
    fn new(
        tokens: &[TokenId],
        n_depth: usize,
        page: usize,
        (prompt_rows, chunk_rows): ([usize; 2], Option<usize>),
    ) -> Script {
        // The blocks of the second prompt follow those of the first.
        let [long, short] = prompt_rows;
        let n_compared = n_depth.saturating_add(long + DECODED[0]);
        let n_ctx = n_compared.saturating_add(chunk_rows.unwrap_or(0));
        let first_blocks = [0, n_ctx.div_ceil(page)];
        let n_blocks = first_blocks[1] + (short + DECODED[1]).div_ceil(page);
        let rows = |seqs: &[(usize, usize, usize)]| {
            let mut batch = Batch::default();
            for &(seq, first_pos, n_rows) in seqs {
                let first_row = batch.tokens.len();
                let last_page = (first_pos + n_rows - 1) / page;
                let block = |number: usize| (first_blocks[seq] + number) as u32;
                for position in first_pos..first_pos + n_rows {
                    let token = tokens[(seq + position) % tokens.len()];
                    batch.tokens.push(InputToken::Id(token));
                    batch.positions.push(position as u32);
                    let slot = block(position / page) * page as u32 + (position % page) as u32;
                    batch.slots.push(slot);
                }
                batch.seqs.push(BatchSeq {
                    first_row,
                    n_rows,
                    first_pos,
                    block_table: Arc::new((0..=last_page).map(block).collect()),
                    state: Some(SeqState {
                        slot: seq as u32,
                        start: match first_pos {
                            0 => StateStart::Empty,
                            _ => StateStart::Slot(seq as u32),
                        },
                        kept: Vec::new(),
                    }),
                });
                batch.logits.push(LogitsRow {
                    row: batch.tokens.len() - 1,
                    want: Want::Logits,
                });
            }
            batch
        };
        let fill = (0..n_depth).step_by(FILL_ROWS);
        let fill = fill.map(|first| rows(&[(0, first, FILL_ROWS.min(n_depth - first))]));
        Script {
            fill: fill.collect(),
            checked: [
                (Step::Prompt, rows(&[(0, n_depth, long), (1, 0, short)])),
                (Step::Decode, rows(&[(0, n_depth + long, 1), (1, short, 1)])),
                (
                    Step::Few,
                    rows(&[(0, n_depth + long + 1, 2), (1, short + 1, 1)]),
                ),
                (Step::Single, rows(&[(0, n_depth + long + 3, 1)])),
            ],
            chunked: chunk_rows.map(|n_rows| rows(&[(0, n_compared, n_rows)])),
            n_ctx,
            n_blocks,
        }
    }
}

/// Runs `script` on both backends and compares their memory after each pass.
fn compare(
    checked: &mut dyn Stepwise,
    oracle: &mut CpuBackend,
    script: &Script,
    labels: &Labels<'_>,
    coverage: Coverage,
) -> Result<Report, RuntimeError> {
    let ops = &labels.plan.ops;
    let passes = passes(checked, ops.len());
    for batch in &script.fill {
        for (range, _) in &passes {
            checked.run_one(range.start, batch)?;
        }
    }
    let mut seen = HashSet::new();
    let mut checks = Vec::new();
    let all = script
        .checked
        .iter()
        .map(|(step, batch)| (step, batch, false));
    let chunked = { script.chunked.iter() }.map(|batch| (&Step::Prompt, batch, true));
    for (step, batch, only_chunks) in all.chain(chunked) {
        for (range, pass) in &passes {
            // The result of a fused pass is that of its last operation, and is reported for it, or for gate and up.
            let (index, op) = (range.end - 1, &ops[range.end - 1]);
            let reported = match &ops[range.start] {
                first @ Op::GatedMatMul { .. } => first,
                _ => op,
            };
            let (shape, format) = labels.shape_and_format(reported);
            let of_pass = ops[range.clone()]
                .iter()
                .map(|op| (op.name(), labels.shape_and_format(op)));
            let in_halves = checked.takes_halves(range.start, batch);
            let is_linear =
                { ops[range.clone()].iter() }.any(|op| matches!(op, Op::LinearAttention { .. }));
            let of_pass = of_pass.collect::<Vec<_>>();
            let is_new = seen.insert((*step, only_chunks, pass.side, of_pass));
            let is_left_out = only_chunks && !(is_linear && in_halves);
            if !is_new && coverage == Coverage::Distinct || is_left_out {
                checked.run_one(range.start, batch)?;
                continue;
            }
            oracle.set_memory(&checked.memory(batch)?);
            checked.run_one(range.start, batch)?;
            for index in range.clone() {
                oracle.run_one(index, batch)?;
            }
            let mut got = checked.memory(batch)?;
            let mut expected = oracle.memory(batch)?;
            if range.len() > 1 && matches!(op, Op::Route { .. }) {
                // Logits computed within the pass may order experts that are nearly equal the other way round.
                let computed = expected.into_owned();
                oracle.set_memory(&got);
                oracle.run_one(index, batch)?;
                let routings = oracle.memory(batch)?.into_owned().routings;
                expected = Memory {
                    routings,
                    ..computed
                };
            }
            for id in &pass.undefined {
                let at = id.0 as usize;
                got.buffers.to_mut()[at].clone_from(&expected.buffers[at]);
            }
            if let Some(id) = pass.unwritten {
                let at = id.0 as usize;
                got.acts.to_mut()[at].clone_from(&expected.acts[at]);
            }
            if let Op::Route { .. } = op {
                // The new routing gives old sorted activations another grouping, so they cannot be compared.
                let sorted = |acts: &ActsBuffer| matches!(acts, ActsBuffer::ByExpert(_));
                let pairs = got.acts.to_mut().iter_mut().zip(expected.acts.iter());
                let pairs = pairs.filter(|(_, expected)| sorted(expected));
                pairs.for_each(|(got, expected)| got.clone_from(expected));
            }
            if range.len() > 1 {
                // A key computed within the pass may lie between two cache values and round to either.
                let pairs = got.cache.to_mut().iter_mut().zip(expected.cache.iter());
                pairs.for_each(|(got, expected)| got.take_next(expected));
            }
            let floors = labels.floors(op, &expected);
            let mut error = difference(&got, &expected, labels.plan, &floors);
            let is_converted = match op {
                Op::NormQuantize { .. } => true,
                // The conversion of a norm, or of gate and up, in the same pass.
                Op::Quantize { out, .. } => range.len() > 1 && labels.is_coded(*out),
                _ => false,
            };
            let mut bound = match op {
                Op::Attention { .. } if in_halves => HALF_ATTENTION_BOUND,
                Op::Attention { .. } => ATTENTION_BOUND,
                _ if in_halves && is_linear => CHUNK_BOUND,
                _ if in_halves => HALF_BOUND,
                _ if multiplies_products(&ops[range.clone()]) => 2.0 * BOUND,
                _ => BOUND,
            };
            if is_converted {
                // Only codes may differ by one; what else the pass writes is near.
                *got.acts.to_mut() = expected.acts.to_vec();
                let beside = difference(&got, &expected, labels.plan, &floors);
                if beside.rel > bound {
                    error = beside;
                } else {
                    bound += CODE_BOUND;
                }
            }
            if error.rel > bound && labels.may_round(op, *step) {
                oracle.run_rounded(index, batch)?;
                let rounded = difference(&got, &oracle.memory(batch)?, labels.plan, &floors);
                if rounded.rel < error.rel {
                    error = rounded;
                }
            }
            checks.push(OpCheck {
                step: *step,
                index,
                op: reported.name(),
                tensor: labels.tensors(&ops[range.clone()]),
                shape,
                format,
                n_tokens: batch.tokens.len(),
                max_abs: error.abs,
                max_rel: error.rel,
                bound,
                passed: error.rel <= bound,
            });
        }
    }
    Ok(Report {
        n_ops: script.checked.len() * passes.len(),
        checks,
    })
}

/// Whether a pass computes gate and up and multiplies them.
fn multiplies_products(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::GatedMatMul { .. } => true,
        Op::GatedActivation { .. } => ops.iter().any(|op| matches!(op, Op::ExpertMatMul { .. })),
        _ => false,
    })
}

/// Returns the backend's passes and their ranges of operations.
fn passes(backend: &dyn Stepwise, n_ops: usize) -> Vec<(Range<usize>, Pass)> {
    let mut passes = Vec::new();
    let mut first = 0;
    while first < n_ops {
        let pass = backend.pass(first);
        let range = first..first + pass.n_ops;
        first = range.end;
        passes.push((range, pass));
    }
    passes
}

/// Describes operations for reports and keys.
struct Labels<'a> {
    plan: &'a Plan,
    weights: &'a Weights,
    kv_types: KvTypes,
}

impl Labels<'_> {
    /// Whether the operation may round KV cache values to f16.
    fn may_round(&self, op: &Op, step: Step) -> bool {
        let KvTypes { keys, values } = self.kv_types;
        let is_coded = |ty| !matches!(ty, KvType::F16 | KvType::F32);
        (is_coded(keys) || is_coded(values))
            && matches!((op, step), (Op::Attention { .. }, Step::Prompt))
    }

    /// Returns shape and format, which with the name identify the kernel of an operation.
    fn is_coded(&self, acts: ActsId) -> bool {
        self.plan.acts[acts.0 as usize].format != ActFormat::F32
    }

    fn shape_and_format(&self, op: &Op) -> (String, String) {
        let width = |id: BufferId| self.plan.buffers[id.0 as usize].width;
        match *op {
            Op::MatMul { x, mode, .. } => {
                let (shape, format) = self.products(op, x);
                (format!("{shape}, {mode:?}"), format)
            }
            Op::MatMuls { x, .. } => self.products(op, x),
            Op::GatedMatMul { x, activation, .. } => {
                let (shape, format) = self.products(op, x);
                (format!("{shape}, {activation:?}"), format)
            }
            Op::NormQuantize { out, .. } => {
                let info = self.plan.acts[out.0 as usize];
                (info.width.to_string(), format!("{:?}", info.format))
            }
            Op::Embed { table, .. } => {
                let matrix = self.weights.matrix(table);
                let shape = format!("{} of {}", matrix.n_in, matrix.n_out);
                (shape, matrix.ty.name().to_string())
            }
            Op::ExpertMatMul {
                x,
                weight,
                stack,
                shared,
                ..
            } => {
                let of = match shared {
                    None => "experts",
                    Some(_) => "experts and a shared one",
                };
                self.stacked(x, weight, stack, of)
            }
            Op::HeadMatMul {
                x, weight, n_heads, ..
            } => self.stacked(x, weight, ExpertStack::whole(n_heads), "heads"),
            Op::Quantize { x, out }
            | Op::QuantizeExperts { x, out, .. }
            | Op::QuantizeHeads { x, out, .. } => {
                let format = self.plan.acts[out.0 as usize].format;
                (width(x).to_string(), format!("{format:?}"))
            }
            Op::Rope {
                x, head_dim, style, ..
            } => {
                let shape = format!("{} heads of {head_dim}, {style:?}", width(x) / head_dim);
                (shape, "f32".to_string())
            }
            Op::KvAppend { layer, .. } => {
                let kv = self.plan.kv[layer];
                let shape = format!("{} heads of {} + {}", kv.n_kv_heads, kv.k_dim, kv.v_dim);
                (shape, self.kv_types.to_string())
            }
            Op::Attention { layer, n_heads, .. } => {
                let kv = self.plan.kv[layer];
                let mask = match kv.mask {
                    Mask::All => String::new(),
                    Mask::Window(n) => format!(", window {n}"),
                    Mask::Chunk(n) => format!(", chunks of {n}"),
                    Mask::Both => ", both sides".to_string(),
                    Mask::Near(n) => format!(", both sides up to {n}"),
                };
                let shape = format!(
                    "{n_heads}/{} heads of {} + {}{mask}",
                    kv.n_kv_heads, kv.k_dim, kv.v_dim
                );
                (shape, self.kv_types.to_string())
            }
            ref other => {
                let from: Vec<String> = other
                    .reads()
                    .into_iter()
                    .map(|x| width(x).to_string())
                    .collect();
                let to = other.writes().into_iter();
                let to: String = to.map(|out| format!(" -> {}", width(out))).collect();
                (format!("{}{to}", from.join(", ")), "f32".to_string())
            }
        }
    }

    /// Returns the shape of one of the stacked matrices, and their format with that of the activations.
    fn stacked(
        &self,
        x: ActsId,
        weight: WeightId,
        stack: ExpertStack,
        of: &str,
    ) -> (String, String) {
        let matrices = self.weights.matrix(weight);
        let acts = self.plan.acts[x.0 as usize].format;
        let (n_out, n) = (matrices.n_out / stack.n_matrices(), stack.n_experts);
        let shape = format!("{} -> {n_out}, {n} {of}", matrices.n_in);
        (shape, format!("{} x {acts:?}", matrices.ty.name()))
    }

    /// Returns the shapes of the matrices of `op`, and their formats with that of the activations.
    fn products(&self, op: &Op, x: ActsId) -> (String, String) {
        let matrices = op.matrices().into_iter().map(|id| self.weights.matrix(id));
        let matrices: Vec<Weight<'_>> = matrices.collect();
        let join = |part: fn(&Weight<'_>) -> String| {
            let parts: Vec<String> = matrices.iter().map(part).collect();
            parts.join(" + ")
        };
        let n_in = matrices.first().map_or(0, |matrix| matrix.n_in);
        let shape = format!("{n_in} -> {}", join(|matrix| matrix.n_out.to_string()));
        let acts = self.plan.acts[x.0 as usize].format;
        let format = join(|matrix| matrix.ty.name().to_string());
        (shape, format!("{format} x {acts:?}"))
    }

    /// Returns the names of the matrices of all `ops`.
    fn tensors(&self, ops: &[Op]) -> Option<String> {
        let names: Vec<String> = ops.iter().filter_map(|op| self.tensor(op)).collect();
        (!names.is_empty()).then(|| names.join(" + "))
    }

    /// Returns the names of the matrices of `op`.
    fn tensor(&self, op: &Op) -> Option<String> {
        let matrices = match *op {
            Op::AddPositions { table, .. } | Op::Embed { table, .. } => vec![table],
            _ => op.matrices(),
        };
        let names = matrices.into_iter().map(|id| {
            let name = self.weights.tensor_name(id)?;
            Some(rocmforge_gguf::escape_control(name).into_owned())
        });
        let names: Vec<String> = names.collect::<Option<_>>()?;
        (!names.is_empty()).then(|| names.join(" + "))
    }
}

#[cfg(test)]
mod tests;
