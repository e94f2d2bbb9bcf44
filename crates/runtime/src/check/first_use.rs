//! The short check of a GPU before its first use with a model: compares one operation of each kind with the scalar
//! path, on the model's own weights. The caller may store which checks passed; a new device, driver, build, format or
//! shape is checked again.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use rocmforge_cpu::{Isa, default_threads};
use rocmforge_gpu::ops::{self, CHUNK_ROWS};
use rocmforge_gpu::{DeviceInfo, Gpu, fingerprint};

use super::moves::compare_moves;
use super::{Coverage, FILL_ROWS, Labels, Report, Script, compare};
use crate::config::EngineConfig;
use crate::cpu::{CpuBackend, CpuOptions};
use crate::error::{DeviceError, RuntimeError};
use crate::gpu::{GpuBackend, GpuOptions, Graphs, row_orders};
use crate::hybrid::{HybridBackend, HybridOptions};
use crate::plans;
use crate::self_check::{OpCheck, PassedChecks, SelfCheck};
use crate::stepwise::Stepwise;
use rocmforge_gguf::TokenId;
use rocmforge_model::Model;
use rocmforge_plan::KvTypes;
use rocmforge_plan::Weights;
use rocmforge_plan::{Op, Placement, Plan, Side};

/// Compared tokens of two prompts: together more rows than a GEMV takes.
const PROMPT_ROWS: [usize; 2] = [8, 2];
/// Rows of a prompt that kernels compute in chunks: two chunks of the longest kind, and one row more.
pub(super) const CHUNKED_ROWS: usize = 2 * CHUNK_ROWS + 1;
/// Earlier tokens in the second KV-cache block; the first block is full.
const ON_SECOND_BLOCK: usize = 8;

/// A check that has to run.
pub(crate) struct FirstUse<'a> {
    model: &'a Model,
    config: &'a EngineConfig,
    plan: Plan,
    /// Rows of a prompt that some layers compute in chunks, if any do.
    chunk_rows: Option<usize>,
    /// The side of each operation, if the CPU runs some.
    placement: Option<Placement>,
    info: DeviceInfo,
    graphs: Graphs,
    key: String,
    passed: Option<Arc<dyn PassedChecks>>,
}

impl<'a> FirstUse<'a> {
    /// Returns the check of `gpu` with `model`, or with the operations that `placement` gives it, or `None` if it is not
    /// needed; and which graphs to use: `graphs`, or fewer if an earlier check found launches to be faster.
    ///
    /// # Errors
    /// Device errors.
    pub(crate) fn due(
        (gpu, placement): (&Gpu, Option<&Placement>),
        model: &'a Model,
        config: &'a EngineConfig,
        (check, graphs): (&SelfCheck, Graphs),
    ) -> Result<(Option<FirstUse<'a>>, Graphs), RuntimeError> {
        let passed = match check {
            SelfCheck::Never => return Ok((None, graphs)),
            SelfCheck::Always => None,
            SelfCheck::FirstUse(passed) => Some(Arc::clone(passed)),
        };
        let chunk_rows = chunk_rows(&model.plan);
        let needed = PROMPT_ROWS[0] + 1 + chunk_rows.unwrap_or(0);
        if model.config.n_positions.is_some_and(|n| n < needed) {
            // The context is too short for the check.
            return Ok((None, graphs));
        }
        let (whole, sides) = match placement {
            Some(placement) => (
                model.compiled_plan(config.fusion),
                placement.sides().to_vec(),
            ),
            None => {
                let whole = plans::on_gpu(model, config.fusion);
                let sides = vec![Side::Gpu; whole.ops.len()];
                (whole, sides)
            }
        };
        let (plan, sides) = representative(&whole, &model.weights, &sides);
        let placement = placement.map(|_| Placement::new(&plan, sides));
        let gpu_part = placement
            .as_ref()
            .map(|placement| placement.part(&plan, Side::Gpu));
        let info = gpu.info()?;
        let key = key(
            &info,
            gpu,
            gpu_part.as_ref().map_or(&plan, |part| &part.plan),
            (model, config, graphs),
        );
        let has = |key: &str| passed.as_ref().is_some_and(|passed| passed.contains(key));
        if has(&faster_launches(&key)) {
            return Ok((None, Graphs::OfSeveral));
        }
        if has(&key) {
            return Ok((None, graphs));
        }
        let check = FirstUse {
            model,
            config,
            plan,
            chunk_rows,
            placement,
            info,
            graphs,
            key,
            passed,
        };
        Ok((Some(check), graphs))
    }

    /// Compares the operations. Temporarily allocates memory for the weights of a few layers.
    ///
    /// # Errors
    /// [`DeviceError::WrongGpu`] with the first operation that differs; device errors.
    pub(crate) fn compare_operations(&self, gpu: &Gpu) -> Result<(), RuntimeError> {
        let EngineConfig { page, isa, .. } = *self.config;
        let n_chunk_rows = self.chunk_rows.unwrap_or(0);
        let most = self.model.config.n_positions.unwrap_or(usize::MAX);
        let n_depth = (page + ON_SECOND_BLOCK).min(most - PROMPT_ROWS[0] - 1 - n_chunk_rows);
        let rows = (PROMPT_ROWS, self.chunk_rows);
        let script = Script::new(&tokens(self.model), n_depth, page, rows);
        let mut plan = self.plan.clone();
        for table in &mut plan.rope {
            table.settle(script.n_ctx);
        }
        let n_threads = self.config.n_threads.unwrap_or_else(default_threads);
        let options = GpuOptions {
            n_ctx: script.n_ctx,
            max_tokens: { FILL_ROWS.min(n_depth) }
                .max(PROMPT_ROWS.iter().sum())
                .max(n_chunk_rows),
            max_logits: PROMPT_ROWS.len(),
            max_sampled: PROMPT_ROWS.len(),
            max_seqs: PROMPT_ROWS.len(),
            answers_at_once: self.config.answers_at_once(),
            page,
            n_blocks: script.n_blocks,
            n_slots: PROMPT_ROWS.len(),
            kv_types: self.config.kv_types,
            batch_invariant: false,
            graphs: Graphs::Off,
            isa,
            n_threads,
        };
        let weights = &self.model.weights;
        let on_cpu = |isa| CpuOptions {
            isa,
            n_threads,
            page,
            n_blocks: script.n_blocks,
            kv_types: self.config.kv_types,
            n_slots: PROMPT_ROWS.len(),
        };
        let mut checked: Box<dyn Stepwise> = match &self.placement {
            None => Box::new(GpuBackend::new(
                gpu.clone(),
                plan.clone(),
                weights,
                options,
            )?),
            Some(placement) => {
                let options = HybridOptions {
                    cpu: on_cpu(isa),
                    gpu: options,
                };
                let (gpu, plan, placement) = (gpu.clone(), plan.clone(), placement.clone());
                Box::new(HybridBackend::new(gpu, plan, placement, weights, options)?)
            }
        };
        let mut oracle = CpuBackend::new(plan.clone(), Arc::clone(weights), on_cpu(Isa::Scalar));
        let labels = Labels {
            plan: &plan,
            weights,
            kv_types: self.config.kv_types,
        };
        let mut report = compare(
            checked.as_mut(),
            &mut oracle,
            &script,
            &labels,
            Coverage::Distinct,
        )?;
        if plan.fixed_by().is_none() {
            let pages = (page, self.config.kv_types);
            let check = compare_moves(checked.as_mut(), &mut oracle, &script, &plan, pages)?;
            report.checks.push(check);
        }
        verdict(&self.info, &report)
    }

    /// Stores that the check passed, and which of graphs and launches is faster.
    pub(crate) fn passed(&self, faster: Graphs) {
        if let Some(passed) = &self.passed {
            match faster == self.graphs {
                true => passed.insert(&self.key),
                false => passed.insert(&faster_launches(&self.key)),
            }
        }
    }
}

/// The line that is stored instead of `key` if launches were faster than graphs.
fn faster_launches(key: &str) -> String {
    format!("{key}; launches")
}

/// Returns an error if an operation exceeded its bound.
pub(crate) fn verdict(info: &DeviceInfo, report: &Report) -> Result<(), RuntimeError> {
    let failures: Vec<&OpCheck> = report.failures().collect();
    match failures.first() {
        None => Ok(()),
        Some(&first) => Err(DeviceError::WrongGpu {
            device: info.name.clone(),
            id: info.id.to_string(),
            n_failed: failures.len(),
            n_checked: report.checks.len(),
            first: Box::new(first.clone()),
        }
        .into()),
    }
}

/// Returns how many rows of a prompt reach the kernels that take rows of a sequence in chunks, if a layer has one.
pub(super) fn chunk_rows(plan: &Plan) -> Option<usize> {
    let may_chunk = |op: &Op| match op {
        Op::LinearAttention {
            heads, rule, decay, ..
        } => ops::has_chunks((heads, *rule, *decay)),
        _ => false,
    };
    plan.ops.iter().any(may_chunk).then_some(CHUNKED_ROWS)
}

/// Returns `plan` without the layers whose operations repeat earlier kinds, shapes, formats and sides, and the sides of
/// the remaining operations.
///
/// All layers read and write the same buffers, so the remaining ones still form a plan. `sides` is the side of each
/// operation.
pub(crate) fn representative(plan: &Plan, weights: &Weights, sides: &[Side]) -> (Plan, Vec<Side>) {
    let labels = Labels {
        plan,
        weights,
        kv_types: KvTypes::default(),
    };
    let mut seen = HashSet::new();
    let (mut ops, mut layers, mut kv, mut states) = (vec![], vec![], vec![], vec![]);
    let mut borrowed = Vec::new();
    let mut kept = Vec::new();
    let ends = plan.layers.iter().skip(1).copied().chain([plan.ops.len()]);
    let of_layers = plan.layers.iter().copied().zip(ends);
    let before = plan.layers.first().copied().unwrap_or(plan.ops.len());
    for (first, end) in std::iter::once((0, before)).chain(of_layers) {
        let mut is_new = false;
        for (op, side) in plan.ops[first..end].iter().zip(&sides[first..end]) {
            is_new |= seen.insert((side, op.name(), labels.shape_and_format(op)));
        }
        if !is_new {
            continue;
        }
        kept.extend(&sides[first..end]);
        if end > before {
            layers.push(ops.len());
        }
        let mut appended = None;
        for op in &plan.ops[first..end] {
            let mut op = op.clone();
            match &mut op {
                // The append comes first in a layer, if there is one.
                Op::KvAppend { layer, .. } => {
                    kv.push(plan.kv[*layer]);
                    borrowed.extend(plan.borrowed.get(*layer));
                    appended = Some(*layer);
                    *layer = kv.len() - 1;
                }
                Op::Attention { layer, .. } => {
                    if let Some(of_other) = plan.borrowed.get(*layer)
                        && appended != Some(*layer)
                    {
                        kv.push(plan.kv[*layer]);
                        borrowed.push(*of_other);
                    }
                    *layer = kv.len() - 1;
                }
                Op::CausalConv { state, .. } | Op::LinearAttention { state, .. } => {
                    states.push(plan.states[*state]);
                    *state = states.len() - 1;
                }
                _ => {}
            }
            ops.push(op);
        }
    }
    let plan = Plan {
        ops,
        layers,
        kv,
        borrowed,
        states,
        ..plan.clone()
    };
    (plan, kept)
}

/// Returns everything that the result of a check depends on, in one line.
fn key(
    info: &DeviceInfo,
    gpu: &Gpu,
    plan: &Plan,
    (model, config, graphs): (&Model, &EngineConfig, Graphs),
) -> String {
    let labels = Labels {
        plan,
        weights: &model.weights,
        kv_types: config.kv_types,
    };
    let (target, variants, tuning) = (gpu.target(), gpu.variants(), gpu.tuning());
    let mut hash = DefaultHasher::new();
    if !tuning.is_empty() {
        // Tuning selects other kernel variants.
        tuning.fingerprint().hash(&mut hash);
    }
    (fingerprint(target), config.page, plan.kv.len()).hash(&mut hash);
    for op in &plan.ops {
        (op.name(), labels.shape_and_format(op)).hash(&mut hash);
    }
    // Matrices in tiles have kernels of their own.
    row_orders(gpu, plan, &model.weights, config.answers_at_once()).hash(&mut hash);
    let facts = [
        env!("CARGO_PKG_VERSION"),
        info.name.as_str(),
        info.architecture.as_str(),
        info.driver_version.as_str(),
        info.runtime_version.as_str(),
        target,
    ];
    let facts = facts.map(|fact| fact.replace(char::is_control, " "));
    let graphs = match graphs {
        Graphs::On | Graphs::OfSeveral => "graphs",
        Graphs::Off => "no graphs",
    };
    let facts = facts.join("; ");
    format!("{facts}; {variants}; {graphs}; {:016x}", hash.finish())
}

/// Returns pseudorandom token ids.
fn tokens(model: &Model) -> Vec<TokenId> {
    let n_vocab = model.config.n_vocab as u64;
    let id = |i: u64| (i * 2_654_435_761 % n_vocab) as TokenId;
    (1..64).map(id).collect()
}
