//! Which layers of a model go to the GPU: as the user says, or as its memory has room for.

mod cpu_bytes;

use std::ops::RangeInclusive;

use rocmforge_gpu::Gpu;

use crate::config::EngineConfig;
use crate::error::{ConfigError, RuntimeError};
use crate::gpu::{self, Experts, GpuLayers, Offload};
use crate::limits::{self, Resolved, Room};
use cpu_bytes::CpuBytes;
use rocmforge_cpu::memory;
use rocmforge_model::Model;
use rocmforge_plan::{Placement, Plan, PlanPart, Side, Split};

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
/// [`ConfigError::TooManyGpuLayers`]; [`ConfigError::GpuLimit`]; if there is no room where the user wants it.
pub(crate) fn place(
    gpu: &Gpu,
    model: &Model,
    config: &EngineConfig,
    offload: Offload,
) -> Result<Placed, RuntimeError> {
    limits::check(model, config)?;
    let planner = Planner {
        gpu,
        model,
        config,
        plan: model.compiled_plan(config.fusion),
        memory: Memory::of(gpu)?,
    };
    let place = match offload.layers {
        GpuLayers::Auto => return planner.automatic(offload.experts),
        GpuLayers::All => planner.fixed(planner.n_layers(), offload.experts),
        GpuLayers::Count(n) => {
            let n_layers = planner.n_layers();
            // The output may be counted as a layer.
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

/// Bytes that are free.
#[derive(Debug, Clone, Copy)]
struct Memory {
    gpu: u64,
    /// `None` where the system does not say.
    machine: Option<u64>,
    /// Whether what the GPU takes is the machine's.
    is_shared: bool,
}

impl Memory {
    fn of(gpu: &Gpu) -> Result<Memory, RuntimeError> {
        let info = gpu.info()?;
        Ok(Memory {
            gpu: info.free_bytes,
            machine: memory::available_bytes(),
            is_shared: info.integrated,
        })
    }
}

/// What a place takes of each memory.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rooms {
    gpu: Option<Room>,
    /// On a GPU that shares it, what both take.
    machine: Option<Room>,
}

impl Rooms {
    /// Those of two parts of a model.
    fn of_both(gpu: Room, cpu: Room, memory: Memory) -> Rooms {
        let machine = match memory.is_shared {
            true => cpu.beside(gpu),
            false => cpu,
        };
        Rooms {
            gpu: Some(gpu),
            machine: Some(machine),
        }
    }

    fn all(&self) -> Vec<Room> {
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

/// A place with room, and the next faster one, which has none.
struct Fastest {
    candidate: Candidate,
    faster: Option<Candidate>,
}

struct Planner<'a> {
    gpu: &'a Gpu,
    model: &'a Model,
    config: &'a EngineConfig,
    plan: Plan,
    memory: Memory,
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

    fn place(&self, candidate: Candidate) -> Place {
        match candidate {
            Candidate::Whole => Place::Gpu,
            Candidate::Split(split) => self.split(split.n_gpu_layers, split.experts),
            Candidate::Cpu => Place::Cpu,
        }
    }

    /// What the GPU runs.
    fn of_gpu(&self, place: &Place) -> Option<PlanPart> {
        match place {
            Place::Cpu => None,
            Place::Gpu => Some(self.plan.clone().into()),
            Place::Both(placement) => Some(placement.part(&self.plan, Side::Gpu)),
        }
    }

    /// What `place` takes, or that the GPU does not compute its part.
    fn rooms(&self, place: &Place) -> Result<Rooms, RuntimeError> {
        let whole = |free| Room::of(&self.model.plan, self.config, free);
        let Some(PlanPart { plan: of_gpu, .. }) = self.of_gpu(place) else {
            return Ok(Rooms {
                gpu: None,
                machine: Some(whole(self.memory.machine)),
            });
        };
        let (max_tokens, max_logits) = limits::step_rows(self.config);
        gpu::check(self.gpu, &of_gpu, self.config, [max_tokens, max_logits])?;
        let weight_bytes = gpu::weight_bytes(self.gpu, &of_gpu, &self.model.weights)?;
        let free = Some(self.memory.gpu);
        let with_weights = |room| Room {
            weight_bytes,
            ..room
        };
        match place {
            Place::Both(placement) => {
                let of_cpu = placement.part(&self.plan, Side::Cpu).plan;
                let gpu = with_weights(Room::of(&of_gpu, self.config, free));
                let cpu = Room::of(&of_cpu, self.config, self.memory.machine);
                Ok(Rooms::of_both(gpu, cpu, self.memory))
            }
            _ => Ok(Rooms {
                gpu: Some(with_weights(whole(free))),
                machine: None,
            }),
        }
    }

    /// The limits of `place`, or that there is no room for it.
    fn resolve(&self, place: &Place, config: &EngineConfig) -> Result<Resolved, RuntimeError> {
        let rooms = self.rooms(place)?.all();
        Ok(limits::resolve_in(self.model, config, &rooms)?)
    }

    /// The fastest place that has room for the context, or, if none has, for a half of it, and so on.
    fn automatic(&self, experts: Experts) -> Result<Placed, RuntimeError> {
        let wanted = limits::wanted_ctx(self.model, self.config);
        let candidates = self.candidates(experts, wanted);
        // What the GPU does not compute is no question of room.
        self.rooms(&self.place(candidates[0]))?;
        let mut n_ctx = wanted;
        loop {
            if let Some(Fastest { candidate, faster }) = self.fastest(&candidates, n_ctx)? {
                let place = self.place(candidate);
                let resolved = self.resolve(&place, self.config)?;
                let n_ctx = resolved.limits.n_ctx;
                let mut notice = self.notice(candidate, faster, n_ctx)?;
                if n_ctx < wanted {
                    notice.push_str(&format!("; nothing has room for a context of {wanted}"));
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
        // The error says what the CPU would need.
        Ok(Placed {
            resolved: self.resolve(&Place::Cpu, self.config)?,
            place: Place::Cpu,
            notice: None,
        })
    }

    /// All places, the fastest first.
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
            // The table of embeddings may be what there is no room for.
            candidates.extend(splits(Side::Gpu));
        }
        if self.has_experts() {
            candidates.extend(splits(Side::Cpu));
        }
        candidates.push(Candidate::Cpu);
        let bytes = CpuBytes::of(&self.plan, self.model, self.config.kv_type, n_ctx);
        candidates.sort_by_key(|candidate| match candidate {
            Candidate::Whole => 0,
            Candidate::Split(split) => bytes.of_split(*split),
            Candidate::Cpu => bytes.of_all(),
        });
        candidates
    }

    /// The first of `candidates` that has room for contexts of `n_ctx` tokens. Only some are looked at: of all splits that
    /// have the experts on one side those with room follow each other.
    fn fastest(
        &self,
        candidates: &[Candidate],
        n_ctx: usize,
    ) -> Result<Option<Fastest>, RuntimeError> {
        let mut with_room = [None, None];
        for (at, &candidate) in candidates.iter().enumerate() {
            let fits = match candidate {
                Candidate::Split(Split {
                    n_gpu_layers,
                    experts,
                }) => {
                    let known = &mut with_room[experts as usize];
                    let counts = match known {
                        Some(counts) => counts,
                        None => known.insert(self.counts_with_room(experts, n_ctx)?),
                    };
                    counts.contains(&n_gpu_layers)
                }
                candidate => self.has_room(candidate, n_ctx)? == [true; 2],
            };
            if fits {
                let faster = at.checked_sub(1).map(|before| candidates[before]);
                return Ok(Some(Fastest { candidate, faster }));
            }
        }
        Ok(None)
    }

    /// Whether the memory of the GPU has room for its part, and that of the machine.
    fn has_room(&self, candidate: Candidate, n_ctx: usize) -> Result<[bool; 2], RuntimeError> {
        let n_tokens = limits::cache_tokens(self.config, n_ctx);
        let Rooms { gpu, machine } = self.rooms(&self.place(candidate))?;
        let has_room = |room: Room| room.has_room(n_tokens, self.config.page);
        Ok([gpu, machine].map(|room| room.is_none_or(has_room)))
    }

    /// How many layers with the experts on this side can be the GPU's. More take more of its memory and less of the CPU's.
    fn counts_with_room(
        &self,
        experts: Side,
        n_ctx: usize,
    ) -> Result<RangeInclusive<usize>, RuntimeError> {
        let has_room = |n_gpu_layers| {
            let split = Split {
                n_gpu_layers,
                experts,
            };
            self.has_room(Candidate::Split(split), n_ctx)
        };
        let is_shared = self.memory.is_shared;
        let most_on_gpu = |n| has_room(n).map(|[gpu, machine]| gpu && (machine || !is_shared));
        let n_layers = self.n_layers();
        // With the last layer the buffers of layers leave the CPU, which may be more than the layer takes.
        let most = match most_on_gpu(n_layers)? {
            true => n_layers,
            false => last(n_layers.saturating_sub(1), most_on_gpu)?,
        };
        let too_few = match is_shared {
            true => 0,
            false => last(most, |n| has_room(n).map(|[_, machine]| !machine))?,
        };
        Ok(too_few + 1..=most)
    }

    /// What was chosen, and what the next faster place would have needed.
    fn notice(
        &self,
        chosen: Candidate,
        faster: Option<Candidate>,
        n_ctx: usize,
    ) -> Result<String, RuntimeError> {
        let n_tokens = limits::cache_tokens(self.config, n_ctx);
        let needed = |room: &Room| room.needed(n_tokens, self.config.page);
        // What fits is rounded down and what does not up, so that no number says otherwise.
        let on_gpu = self.rooms(&self.place(chosen))?.gpu;
        let taken = on_gpu.as_ref().map_or(0, needed) >> 20;
        let free = self.memory.gpu >> 20;
        let mut notice = format!(
            "--gpu-layers auto: {} ({taken} of {free} MiB free there, with a context of {n_ctx})",
            self.words(chosen)
        );
        let Some(faster) = faster else {
            return Ok(notice);
        };
        let Rooms { gpu, machine } = self.rooms(&self.place(faster))?;
        let too_large = |room: Option<Room>| {
            let room = room.filter(|room| !room.has_room(n_tokens, self.config.page))?;
            Some(needed(&room).div_ceil(1 << 20))
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

/// The last of `1..=n` for which `holds`, which does so up to some number; 0 if it never does.
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
