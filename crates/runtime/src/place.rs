//! Offload: which layers of a model run on the GPU, as the user sets or as many as fit in its memory.

mod cpu_bytes;
mod fit;

use std::ops::RangeInclusive;

use rocmforge_gpu::Gpu;

use crate::config::EngineConfig;
use crate::error::{ConfigError, RuntimeError};
use crate::gpu::{self, Experts, GpuLayers, Offload};
use crate::limits::{self, MemoryBudget, Output, Resolved};
use crate::plans;
use cpu_bytes::CpuBytes;
pub use fit::{Fit, Fits, fit, free_bytes};
use rocmforge_cpu::memory;
use rocmforge_model::Model;
use rocmforge_plan::{Placement, Plan, PlanPart, Side, Split};

/// The devices that run a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Place {
    Cpu,
    Gpu,
    Both(Placement),
}

/// Where a model runs, and its limits there.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) place: Place,
    pub(crate) resolved: Resolved,
    /// The automatic choice and its reason, if the user left it open.
    pub(crate) notice: Option<String>,
}

/// Places `model` on `gpu` and the CPU.
///
/// # Errors
/// [`ConfigError`] if the model does not have that many layers, exceeds a limit of the kernels or does not fit.
pub(crate) fn place(
    gpu: &Gpu,
    model: &Model,
    config: &EngineConfig,
    offload: Offload,
) -> Result<Placed, RuntimeError> {
    limits::check(model, config)?;
    let planner = Planner::new(gpu, model, config, Memory::of(gpu)?);
    let place = match offload.layers {
        GpuLayers::Auto => return planner.automatic(offload.experts),
        GpuLayers::All => planner.fixed(planner.n_layers(), offload.experts),
        GpuLayers::Count(n) => {
            let n_layers = planner.n_layers();
            // Users may count the output as a layer.
            if n > n_layers + 1 {
                return Err(ConfigError::TooManyGpuLayers { n, n_layers }.into());
            }
            planner.fixed(n, offload.experts)
        }
    };
    Ok(Placed {
        resolved: planner.resolve(&place, config)?,
        place,
        notice: None,
    })
}

/// Tokens of a step that a GPU computes in any case.
const FEWEST_STEP_TOKENS: usize = 512;

/// The buffers of larger steps take at most this part of a GPU's free memory, so that weights and KV cache keep the rest.
const STEP_PART: u64 = 16;

/// Returns `config` with fewer tokens per step where the buffers of a step would take memory that the weights or the KV cache
/// on `gpu` need.
///
/// # Errors
/// Device errors.
pub(crate) fn with_step_that_fits(
    gpu: &Gpu,
    model: &Model,
    config: &EngineConfig,
) -> Result<EngineConfig, RuntimeError> {
    Ok(with_step_for(gpu, model, config, Memory::of(gpu)?))
}

fn with_step_for(gpu: &Gpu, model: &Model, config: &EngineConfig, memory: Memory) -> EngineConfig {
    let mut config = config.clone();
    while config.max_batch_tokens > FEWEST_STEP_TOKENS && !model.plan.looks_ahead() {
        let planner = Planner::new(gpu, model, &config, memory);
        if planner.has_room_for_steps() {
            break;
        }
        config.max_batch_tokens = FEWEST_STEP_TOKENS.max(config.max_batch_tokens / 2);
    }
    config
}

/// Free bytes of both memories.
#[derive(Debug, Clone, Copy)]
struct Memory {
    gpu: u64,
    /// `None` if the system does not report them.
    machine: Option<u64>,
    /// Whether the GPU uses the machine's memory (integrated GPUs).
    is_shared: bool,
}

impl Memory {
    fn of(gpu: &Gpu) -> Result<Memory, RuntimeError> {
        Ok(Memory {
            gpu: gpu.free_bytes()?,
            machine: memory::available_bytes(),
            is_shared: gpu.is_integrated(),
        })
    }
}

/// The memory budgets of a place.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Budgets {
    gpu: Option<MemoryBudget>,
    /// On an integrated GPU, the needs of both.
    machine: Option<MemoryBudget>,
}

impl Budgets {
    /// Returns the budgets of a model split between both devices.
    fn for_split(gpu: MemoryBudget, cpu: MemoryBudget, memory: Memory) -> Budgets {
        let machine = match memory.is_shared {
            true => cpu.shared_with(gpu),
            false => cpu,
        };
        Budgets {
            gpu: Some(gpu),
            machine: Some(machine),
        }
    }

    fn all(&self) -> Vec<MemoryBudget> {
        [self.gpu, self.machine].into_iter().flatten().collect()
    }
}

/// A place that `auto` may choose.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Candidate {
    Whole,
    Split(Split),
    Cpu,
}

/// The fastest place that fits, and the next faster one, which does not.
struct Fastest {
    candidate: Candidate,
    faster: Option<Candidate>,
}

struct Planner<'a> {
    gpu: &'a Gpu,
    model: &'a Model,
    config: &'a EngineConfig,
    plan: Plan,
    /// If the GPU runs all of it.
    on_gpu: Plan,
    memory: Memory,
}

impl<'a> Planner<'a> {
    fn new(
        gpu: &'a Gpu,
        model: &'a Model,
        config: &'a EngineConfig,
        memory: Memory,
    ) -> Planner<'a> {
        Planner {
            gpu,
            model,
            config,
            plan: model.compiled_plan(config.fusion),
            on_gpu: plans::on_gpu(model, config.fusion),
            memory,
        }
    }
}

impl Planner<'_> {
    fn n_layers(&self) -> usize {
        self.plan.layers.len()
    }

    fn has_experts(&self) -> bool {
        self.plan.ops.iter().any(|op| op.routing().is_some())
    }

    fn fixed(&self, n_gpu_layers: usize, experts: Experts) -> Place {
        if n_gpu_layers == 0 {
            return Place::Cpu;
        }
        match experts {
            Experts::OnCpu if self.has_experts() => self.split(n_gpu_layers, Side::Cpu),
            _ if n_gpu_layers >= self.n_layers() => Place::Gpu,
            _ => self.split(n_gpu_layers, Side::Gpu),
        }
    }

    fn split(&self, n_gpu_layers: usize, experts: Side) -> Place {
        let n_gpu_layers = n_gpu_layers.min(self.n_layers());
        let split = Split {
            n_gpu_layers,
            experts,
        };
        Place::Both(Placement::split(&self.plan, split))
    }

    fn place(&self, candidate: Candidate) -> Place {
        match candidate {
            Candidate::Whole => Place::Gpu,
            Candidate::Split(split) => self.split(split.n_gpu_layers, split.experts),
            Candidate::Cpu => Place::Cpu,
        }
    }

    /// Returns the GPU's part of the plan.
    fn of_gpu(&self, place: &Place) -> Option<PlanPart> {
        match place {
            Place::Cpu => None,
            Place::Gpu => Some(self.on_gpu.clone().into()),
            Place::Both(placement) => Some(placement.part(&self.plan, Side::Gpu)),
        }
    }

    /// Returns the memory budgets of `place`.
    ///
    /// # Errors
    /// [`ConfigError::GpuLimit`] if the GPU kernels do not support its part.
    fn budgets(&self, place: &Place) -> Result<Budgets, RuntimeError> {
        let output = Output::of(self.model);
        let for_plan =
            |plan: &Plan, free| MemoryBudget::for_plan((plan, output), self.config, free);
        let Some(part) = self.of_gpu(place) else {
            return Ok(Budgets {
                gpu: None,
                machine: Some(for_plan(&self.model.plan, self.memory.machine)),
            });
        };
        let cache = (self.config.kv_types, self.config.page);
        let prompt_bytes = gpu::prompt_bytes(self.gpu, &part, &self.model.weights, cache)?;
        let of_gpu = part.plan;
        let (max_tokens, max_logits) = limits::step_rows(self.config, output);
        gpu::check(self.gpu, &of_gpu, self.config, [max_tokens, max_logits])?;
        let weight_bytes = gpu::weight_bytes(self.gpu, &of_gpu, &self.model.weights)?;
        let free = Some(self.memory.gpu);
        let with_weights = |budget: MemoryBudget| MemoryBudget {
            weight_bytes,
            step_bytes: budget
                .step_bytes
                .saturating_add(gpu::sampler_bytes(output.max_sampled(max_logits)))
                .saturating_add(prompt_bytes),
            ..budget
        };
        match place {
            Place::Both(placement) => {
                let of_cpu = placement.part(&self.plan, Side::Cpu).plan;
                let gpu = with_weights(for_plan(&of_gpu, free));
                let cpu = for_plan(&of_cpu, self.memory.machine);
                Ok(Budgets::for_split(gpu, cpu, self.memory))
            }
            _ => {
                let unfused = plans::unfused_on_gpu(self.model, self.config.fusion);
                Ok(Budgets {
                    gpu: Some(with_weights(for_plan(&unfused, free))),
                    machine: None,
                })
            }
        }
    }

    /// Whether the whole model fits on the GPU with the usual context, and the buffers of a step take little of its memory.
    fn has_room_for_steps(&self) -> bool {
        // What the kernels do not support is an error elsewhere.
        let Ok(Budgets { gpu: Some(gpu), .. }) = self.budgets(&Place::Gpu) else {
            return true;
        };
        let n_tokens = limits::cache_tokens(self.config, self.config.usual_ctx(self.model));
        gpu.step_bytes <= self.memory.gpu / STEP_PART && gpu.fits(n_tokens, self.config.page)
    }

    /// Resolves the limits of `place`.
    ///
    /// # Errors
    /// [`ConfigError`] if it does not fit.
    fn resolve(&self, place: &Place, config: &EngineConfig) -> Result<Resolved, RuntimeError> {
        let budgets = self.budgets(place)?.all();
        Ok(limits::resolve_in(self.model, config, &budgets)?)
    }

    /// Chooses the fastest place in which the context fits; if there is none, halves the context until there is one.
    fn automatic(&self, experts: Experts) -> Result<Placed, RuntimeError> {
        let wanted = self.config.usual_ctx(self.model);
        let candidates = self.candidates(experts, wanted);
        // Unsupported kernels are an error whatever fits.
        self.budgets(&self.place(candidates[0]))?;
        let mut n_ctx = wanted;
        loop {
            if let Some(Fastest { candidate, faster }) = self.fastest(&candidates, n_ctx)? {
                let place = self.place(candidate);
                let resolved = self.resolve(&place, self.config)?;
                let n_ctx = resolved.limits.n_ctx;
                let mut notice = self.notice(candidate, faster, n_ctx)?;
                if n_ctx < wanted {
                    notice.push_str(&format!("; a context of {wanted} does not fit anywhere"));
                }
                return Ok(Placed {
                    place,
                    resolved,
                    notice: Some(notice),
                });
            }
            if self.config.n_ctx.is_some() || n_ctx <= self.config.page {
                break;
            }
            n_ctx /= 2;
        }
        // Nothing fits: the CPU's error says how much memory it needs.
        Ok(Placed {
            resolved: self.resolve(&Place::Cpu, self.config)?,
            place: Place::Cpu,
            notice: None,
        })
    }

    /// Returns all places, fastest first.
    fn candidates(&self, experts: Experts, n_ctx: usize) -> Vec<Candidate> {
        let splits = |experts| {
            let counts = (1..=self.n_layers()).rev();
            counts.map(move |n_gpu_layers| {
                Candidate::Split(Split {
                    n_gpu_layers,
                    experts,
                })
            })
        };
        let mut candidates = Vec::new();
        if experts == Experts::WithTheirLayer || !self.has_experts() {
            candidates.push(Candidate::Whole);
            // All layers may fit without the embedding table.
            candidates.extend(splits(Side::Gpu));
        }
        if self.has_experts() {
            candidates.extend(splits(Side::Cpu));
        }
        candidates.push(Candidate::Cpu);
        let bytes = CpuBytes::of(&self.plan, self.model, self.config.kv_types, n_ctx);
        candidates.sort_by_key(|candidate| match candidate {
            Candidate::Whole => 0,
            Candidate::Split(split) => bytes.of_split(*split),
            Candidate::Cpu => bytes.of_all(),
        });
        candidates
    }

    /// Returns the first of `candidates` in which contexts of `n_ctx` tokens fit. Computes few budgets: for experts on
    /// one side, the numbers of GPU layers that fit are a contiguous range.
    fn fastest(
        &self,
        candidates: &[Candidate],
        n_ctx: usize,
    ) -> Result<Option<Fastest>, RuntimeError> {
        let mut fitting_counts = [None, None];
        for (at, &candidate) in candidates.iter().enumerate() {
            let fits = match candidate {
                Candidate::Split(Split {
                    n_gpu_layers,
                    experts,
                }) => {
                    let known = &mut fitting_counts[experts as usize];
                    let counts = match known {
                        Some(counts) => counts,
                        None => known.insert(self.fitting_counts(experts, n_ctx)?),
                    };
                    counts.contains(&n_gpu_layers)
                }
                candidate => self.fits(candidate, n_ctx)? == [true; 2],
            };
            if fits {
                let faster = at.checked_sub(1).map(|before| candidates[before]);
                return Ok(Some(Fastest { candidate, faster }));
            }
        }
        Ok(None)
    }

    /// Returns whether the candidate fits in the memory of the GPU and in that of the machine.
    fn fits(&self, candidate: Candidate, n_ctx: usize) -> Result<[bool; 2], RuntimeError> {
        let n_tokens = limits::cache_tokens(self.config, n_ctx);
        let Budgets { gpu, machine } = self.budgets(&self.place(candidate))?;
        let fits = |budget: MemoryBudget| budget.fits(n_tokens, self.config.page);
        Ok([gpu, machine].map(|budget| budget.is_none_or(fits)))
    }

    /// Returns the numbers of GPU layers that fit with the experts on this side. More layers need more GPU memory and
    /// less CPU memory.
    fn fitting_counts(
        &self,
        experts: Side,
        n_ctx: usize,
    ) -> Result<RangeInclusive<usize>, RuntimeError> {
        let fits = |n_gpu_layers| {
            let split = Split {
                n_gpu_layers,
                experts,
            };
            self.fits(Candidate::Split(split), n_ctx)
        };
        let is_shared = self.memory.is_shared;
        let most_on_gpu = |n| fits(n).map(|[gpu, machine]| gpu && (machine || !is_shared));
        let n_layers = self.n_layers();
        // The last layer also moves the layer buffers off the CPU, which may free more than the layer needs.
        let most = match most_on_gpu(n_layers)? {
            true => n_layers,
            false => last(n_layers.saturating_sub(1), most_on_gpu)?,
        };
        let too_few = match is_shared {
            true => 0,
            false => last(most, |n| fits(n).map(|[_, machine]| !machine))?,
        };
        Ok(too_few + 1..=most)
    }

    /// Describes the choice, and how much memory the next faster place would need.
    fn notice(
        &self,
        chosen: Candidate,
        faster: Option<Candidate>,
        n_ctx: usize,
    ) -> Result<String, RuntimeError> {
        let n_tokens = limits::cache_tokens(self.config, n_ctx);
        let required = |budget: &MemoryBudget| budget.required_bytes(n_tokens, self.config.page);
        // Sizes that fit are rounded down and others up, so that the numbers agree with the choice.
        let on_gpu = self.budgets(&self.place(chosen))?.gpu;
        let taken = on_gpu.as_ref().map_or(0, required) >> 20;
        let free = self.memory.gpu >> 20;
        let mut notice = format!(
            "--gpu-layers auto: {} ({taken} of {free} MiB free there, with a context of {n_ctx})",
            self.words(chosen)
        );
        let Some(faster) = faster else {
            return Ok(notice);
        };
        let Budgets { gpu, machine } = self.budgets(&self.place(faster))?;
        let too_large = |budget: Option<MemoryBudget>| {
            let budget = budget.filter(|budget| !budget.fits(n_tokens, self.config.page))?;
            Some(required(&budget).div_ceil(1 << 20))
        };
        let words = self.words(faster);
        if let Some(needed) = too_large(gpu) {
            notice.push_str(&format!("; {words} would need {needed} MiB"));
        } else if let Some(needed) = too_large(machine) {
            let free = self.memory.machine.unwrap_or(u64::MAX) >> 20;
            notice.push_str(&format!(
                "; {words} would need {needed} MiB of the {free} MiB free on the machine"
            ));
        }
        Ok(notice)
    }

    fn words(&self, candidate: Candidate) -> String {
        let n_layers = self.n_layers();
        match candidate {
            Candidate::Cpu => "nothing on the GPU".to_string(),
            Candidate::Whole => format!("all {n_layers} layers on the GPU"),
            Candidate::Split(Split {
                n_gpu_layers,
                experts,
            }) => {
                let without = match (experts, n_gpu_layers == n_layers) {
                    (Side::Cpu, _) => " without their experts",
                    (Side::Gpu, true) => " without the embeddings",
                    (Side::Gpu, false) => "",
                };
                format!("{n_gpu_layers} of {n_layers} layers{without} on the GPU")
            }
        }
    }
}

/// Returns the last of `1..=n` for which `holds`, by bisection; 0 if there is none. `holds` must be true up to some
/// number.
fn last(
    n: usize,
    mut holds: impl FnMut(usize) -> Result<bool, RuntimeError>,
) -> Result<usize, RuntimeError> {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = high - (high - low) / 2;
        match holds(middle)? {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests;
