//! Which layers of a model go to the GPU: as the user says, or as its memory has room for.

use rocmforge_gpu::Gpu;

use super::EngineConfig;
use super::limits::{self, Resolved, Room};
use crate::backend::gpu::{self, Experts, GpuLayers, Offload};
use crate::error::EngineError;
use crate::memory;
use crate::model::Model;
use crate::plan::{
    BatchShape, Op, OpCost, Placement, Plan, PlanCost, PlanPart, SeqShape, Side, Split,
};

/// A buffer that crosses counts as so many bytes that the CPU reads: the wait for the other side takes about as long.
const CROSSING_BYTES: u64 = 512 << 10;

/// What runs a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Place {
    Cpu,
    Gpu,
    Both(Placement),
}

/// Where a model runs, and what it can serve there.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) place: Place,
    pub(crate) resolved: Resolved,
    /// What was chosen and why, if the choice was not the user's.
    pub(crate) notice: Option<String>,
}

/// Places the model of `config` on `gpu` and the CPU.
///
/// # Errors
/// [`EngineError::TooManyGpuLayers`]; if there is no room where the user wants it.
pub(crate) fn place(
    gpu: &Gpu,
    model: &Model,
    config: &EngineConfig,
    offload: Offload,
) -> Result<Placed, EngineError> {
    let planner = Planner {
        gpu,
        model,
        config,
        plan: model.compiled_plan(config.passes),
    };
    let place = match offload.layers {
        GpuLayers::Auto => return planner.automatic(offload.experts),
        GpuLayers::All => planner.fixed(planner.n_layers(), offload.experts),
        GpuLayers::Count(n) => {
            let n_layers = planner.n_layers();
            // The output may be counted as a layer.
            if n > n_layers + 1 {
                return Err(EngineError::TooManyGpuLayers { n, n_layers });
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

struct Planner<'a> {
    gpu: &'a Gpu,
    model: &'a Model,
    config: &'a EngineConfig,
    plan: Plan,
}

impl Planner<'_> {
    fn n_layers(&self) -> usize {
        self.plan.kv.len()
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

    /// What the GPU runs.
    fn of_gpu(&self, place: &Place) -> Option<PlanPart> {
        match place {
            Place::Cpu => None,
            Place::Gpu => Some(self.plan.clone().into()),
            Place::Both(placement) => Some(placement.part(&self.plan, Side::Gpu)),
        }
    }

    /// The limits of `place`, or that there is no room for it.
    fn resolve(&self, place: &Place, config: &EngineConfig) -> Result<Resolved, EngineError> {
        let weights = &self.model.weights;
        let free = |part: &PlanPart| gpu::free_for_steps(self.gpu, part, weights).map(Some);
        match (place, self.of_gpu(place)) {
            (Place::Both(placement), Some(of_gpu)) => {
                let of_cpu = placement.part(&self.plan, Side::Cpu);
                let rooms = [
                    Room {
                        plan: &of_gpu.plan,
                        available: free(&of_gpu)?,
                    },
                    Room {
                        plan: &of_cpu.plan,
                        available: memory::available_bytes(),
                    },
                ];
                limits::resolve_in(self.model, config, &rooms)
            }
            (_, Some(of_gpu)) => limits::resolve(self.model, config, free(&of_gpu)?),
            (_, None) => limits::resolve(self.model, config, memory::available_bytes()),
        }
    }

    /// The fastest place that has room for the context.
    fn automatic(&self, experts: Experts) -> Result<Placed, EngineError> {
        let n_ctx = limits::wanted_ctx(self.model, self.config);
        let wanted = EngineConfig {
            n_ctx: Some(n_ctx),
            ..self.config.clone()
        };
        let mut places = self.candidates(experts);
        places.sort_by_cached_key(|place| self.cpu_bytes(place, n_ctx));
        let mut too_large = None;
        for place in places {
            match self.resolve(&place, &wanted) {
                Ok(resolved) => {
                    let notice = self.notice(&place, too_large.as_ref(), n_ctx)?;
                    return Ok(Placed {
                        place,
                        resolved,
                        notice: Some(notice),
                    });
                }
                Err(error) if is_for_lack_of_room(&error) => too_large = Some(place),
                Err(error) => return Err(error),
            }
        }
        // Not even the CPU has room for the context that is usual.
        Ok(Placed {
            resolved: self.resolve(&Place::Cpu, self.config)?,
            place: Place::Cpu,
            notice: None,
        })
    }

    fn candidates(&self, experts: Experts) -> Vec<Place> {
        let counts = (1..=self.n_layers()).rev();
        let with_experts = match experts {
            Experts::OnCpu if self.has_experts() => Vec::new(),
            // The table of embeddings may be what there is no room for.
            _ => counts.clone().map(|n| self.split(n, Side::Gpu)).collect(),
        };
        let without = counts.map(|n| self.split(n, Side::Cpu));
        let without = without.filter(|_| self.has_experts());
        let whole = self.fixed(self.n_layers(), experts);
        let places = std::iter::once(whole).chain(with_experts).chain(without);
        places.chain([Place::Cpu]).collect()
    }

    /// What the CPU reads of weights and cache for one token in the middle of the context: what a token takes most of
    /// its time for, since a GPU reads the rest many times as fast.
    fn cpu_bytes(&self, place: &Place, n_ctx: usize) -> u64 {
        let cost = PlanCost {
            plan: &self.plan,
            weights: &self.model.weights,
            kv_type: self.config.kv_type,
        };
        let shape = BatchShape {
            seqs: vec![SeqShape {
                first_pos: n_ctx / 2,
                n_rows: 1,
            }],
            n_logits: 1,
        };
        let bytes = |op: &Op| {
            let OpCost {
                weight_bytes,
                kv_bytes,
                ..
            } = cost.op(op, &shape);
            weight_bytes + kv_bytes
        };
        let ops = &self.plan.ops;
        match place {
            Place::Gpu => 0,
            Place::Cpu => ops.iter().map(bytes).sum(),
            Place::Both(placement) => {
                let sides = ops.iter().zip(placement.sides());
                let on_cpu = sides.filter(|(_, side)| **side == Side::Cpu);
                let crossings = placement.segments().iter().map(|s| s.imports.len() as u64);
                on_cpu.map(|(op, _)| bytes(op)).sum::<u64>()
                    + crossings.sum::<u64>() * CROSSING_BYTES
            }
        }
    }

    /// MiB that a place takes of the GPU's memory: weights, the cache of `n_ctx` tokens and the buffers of a step.
    fn needed_mib(&self, place: &Place, n_ctx: usize) -> Result<u64, EngineError> {
        let Some(of_gpu) = self.of_gpu(place) else {
            return Ok(0);
        };
        let weights = gpu::weight_bytes(self.gpu, &of_gpu, &self.model.weights)?;
        let (max_tokens, max_logits) = limits::step_rows(self.config);
        let n_tokens = self.config.n_kv_tokens.unwrap_or(n_ctx).max(n_ctx) as u64;
        let kv = of_gpu.plan.kv_bytes_per_token(self.config.kv_type) * n_tokens;
        Ok((weights + kv + of_gpu.plan.buffer_bytes(max_tokens, max_logits)) >> 20)
    }

    /// What was chosen, and what the next faster place would have needed.
    fn notice(
        &self,
        place: &Place,
        faster: Option<&Place>,
        n_ctx: usize,
    ) -> Result<String, EngineError> {
        let free = self.gpu.free_bytes()? >> 20;
        let why = match faster {
            None => String::new(),
            Some(faster) => match self.needed_mib(faster, n_ctx) {
                Ok(needed) => format!("; {} would need {needed} MiB", self.words(faster)),
                // What it cannot compute has no size there.
                Err(_) => String::new(),
            },
        };
        Ok(format!(
            "--gpu-layers auto: {} ({} of {free} MiB free there, with a context of {n_ctx}){why}",
            self.words(place),
            self.needed_mib(place, n_ctx)?
        ))
    }

    fn words(&self, place: &Place) -> String {
        let n_layers = self.n_layers();
        match place {
            Place::Cpu => "nothing on the GPU".to_string(),
            Place::Gpu => format!("all {n_layers} layers on the GPU"),
            Place::Both(placement) => {
                let ops = self.plan.ops.iter().zip(placement.sides());
                let mut of_experts = ops.filter(|(op, _)| op.routing().is_some());
                let n_gpu = placement.n_layers(&self.plan, Side::Gpu);
                let experts = match of_experts.all(|(_, side)| *side == Side::Cpu) {
                    true if self.has_experts() => " without their experts",
                    _ => "",
                };
                let embeddings = match n_gpu == n_layers && experts.is_empty() {
                    true => " without the embeddings",
                    false => "",
                };
                format!("{n_gpu} of {n_layers} layers{experts}{embeddings} on the GPU")
            }
        }
    }
}

/// Whether another place may do.
fn is_for_lack_of_room(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::NoMemory { .. }
            | EngineError::NoMemoryAtAll { .. }
            | EngineError::NoMemoryForWeights { .. }
    )
}
