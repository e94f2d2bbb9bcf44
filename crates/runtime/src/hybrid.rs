//! The hybrid backend: runs the segments of one plan alternately on a GPU and on the CPU.
//!
//! Each side has a backend with its operations, its weights, and the KV cache and states of its layers. Buffers that cross between
//! segments are copied through pinned host memory. One side works at a time, and a step has completed when `submit`
//! returns: it takes the sum of both sides' work and of the copies, and there is never more than one in flight. Tokens
//! are sampled on the side that computes the logits.

mod stepwise;

use std::sync::Arc;
use std::time::Duration;

use rocmforge_gpu::{Gpu, GpuError};

use self::stepwise::Residency;
use super::cpu::{CpuBackend, CpuOptions, CpuStep, Observers};
use super::gpu::{
    Choices, Choosing, Experts, GpuBackend, GpuLayers, GpuOptions, Observation, Offload, QueuedStep,
};
use super::times::{StepPart, StepTimes, Stopwatch};
use super::tuning::{TuneProgress, TuningStore};
use super::{Backend, BackendInfo, BackendPart, IdleWork, OpObserver, Reply, StepObserver};
use crate::error::RuntimeError;
use crate::gpu_config::Graphs;
use crate::shared_cache::SharedCache;
use rocmforge_plan::Weights;
use rocmforge_plan::{Batch, RowOutput, StepOutput};
use rocmforge_plan::{BatchShape, Placement, Plan, Segment, Side};

/// Runs a plan that a GPU and the CPU share.
pub struct HybridBackend {
    plan: Plan,
    placement: Placement,
    cpu: CpuBackend,
    gpu: GpuBackend,
    /// Whether a step failed before the GPU ran all of it, so that the step counters of GPU and host may differ.
    needs_restart: bool,
    residency: Residency,
    observer: Option<Box<dyn OpObserver>>,
    step_observer: Option<Box<dyn StepObserver>>,
}

/// Settings of each side.
#[derive(Debug, Clone, Copy)]
pub struct HybridOptions {
    pub cpu: CpuOptions,
    pub gpu: GpuOptions,
}

/// The times of a running step.
struct Timing {
    watch: Stopwatch,
    times: StepTimes,
}

impl Timing {
    /// Excludes the time since the last part.
    fn skip(&mut self) {
        self.watch.skip();
    }

    /// Records the time since the last part as a copy to `side`.
    fn lap_copy(&mut self, side: Side) {
        self.watch.lap_on(side, StepPart::Copy);
        self.flush();
    }

    /// Moves the host's parts to `times`, before the GPU's parts that follow.
    fn flush(&mut self) {
        self.times.parts.append(&mut self.watch.take());
    }
}

impl HybridBackend {
    /// Allocates the memory of both sides and uploads the GPU's weights. The RoPE tables of `plan` must be settled for
    /// the context.
    ///
    /// # Errors
    /// Errors of the GPU.
    pub fn new(
        gpu: Gpu,
        plan: Plan,
        placement: Placement,
        weights: &Arc<Weights>,
        options: HybridOptions,
    ) -> Result<HybridBackend, RuntimeError> {
        let of_gpu = placement.part(&plan, Side::Gpu);
        let of_cpu = placement.part(&plan, Side::Cpu);
        Ok(HybridBackend {
            residency: Residency::new(&of_cpu.plan, &of_gpu.plan),
            gpu: GpuBackend::new(gpu, of_gpu, weights, options.gpu)?,
            cpu: CpuBackend::new(of_cpu, Arc::clone(weights), options.cpu),
            plan,
            placement,
            needs_restart: false,
            observer: None,
            step_observer: None,
        })
    }

    /// Returns where the cache is, for a drafter that reads it.
    pub(crate) fn shared_cache(&self) -> SharedCache {
        SharedCache::on_both(self.cpu.shared_cache(), self.gpu.shared_cache())
    }

    /// Returns what runs on the GPU. After the GPU's first operation the CPU runs at most experts.
    fn offload(&self) -> Offload {
        let ops = self.placement.sides().iter().zip(&self.plan.ops);
        let mut from_first = ops.skip_while(|(side, _)| **side == Side::Cpu);
        let experts = match from_first.any(|(side, _)| *side == Side::Cpu) {
            true => Experts::OnCpu,
            false => Experts::WithTheirLayer,
        };
        let n_layers = self.plan.layers.len();
        let layers = match self.placement.n_layers(&self.plan, Side::Gpu) {
            n if n == n_layers && experts == Experts::OnCpu => GpuLayers::All,
            n => GpuLayers::Count(n),
        };
        Offload { layers, experts }
    }

    /// Like [`GpuBackend::check_graphs`], for the GPU's segments.
    ///
    /// # Errors
    /// Errors of steps without graphs, and a lost device.
    pub(crate) fn check_graphs(&mut self) -> Result<Option<Graphs>, RuntimeError> {
        self.gpu.check_graphs()
    }

    /// Like [`GpuBackend::load_kernels`], for the GPU's segments.
    pub(crate) fn load_kernels(&self) -> Result<(), GpuError> {
        self.gpu.load_kernels()
    }

    /// Like [`GpuBackend::enable_idle_tuning`], for the GPU's operations.
    pub(crate) fn enable_idle_tuning(&mut self, store: Arc<dyn TuningStore>) {
        self.gpu.enable_idle_tuning(store);
    }

    /// Like [`GpuBackend::tell_notices`].
    pub(crate) fn tell_notices(&mut self, notice: fn(&str)) {
        self.gpu.tell_notices(notice);
    }

    fn run(&mut self, batch: &Batch) -> Result<StepOutput, RuntimeError> {
        if self.needs_restart {
            self.gpu.restart()?;
        }
        self.needs_restart = true;
        let mut timing = self.step_observer.as_ref().map(|_| {
            let watch = Stopwatch::start();
            let times = watch.clone().finish(batch.step, BatchShape::of(batch));
            Timing { watch, times }
        });
        let mut observer = self.observer.take();
        let rows = self.run_segments(batch, &mut observer, &mut timing);
        self.observer = observer;
        let (rows, exports) = rows?;
        self.needs_restart = false;
        if let (Some(mut timing), Some(observer)) = (timing, &mut self.step_observer) {
            timing.flush();
            observer.step(timing.times);
        }
        Ok(StepOutput {
            step: batch.step,
            rows,
            exports,
        })
    }

    fn run_segments(
        &mut self,
        batch: &Batch,
        observer: &mut Option<Box<dyn OpObserver>>,
        timing: &mut Option<Timing>,
    ) -> Result<(Vec<RowOutput>, Vec<f32>), RuntimeError> {
        let sampling_side = self.placement.output();
        let choices = match sampling_side {
            Side::Gpu => Choices::of(batch),
            Side::Cpu => Choices::default(),
        };
        let queued = self.gpu.write_step(batch, &choices)?;
        self.gpu.import_batch(batch, &queued)?;
        let step = self.cpu.begin(batch);
        if let Some(timing) = timing {
            timing.watch.lap(StepPart::Begin);
        }
        let segments = self.placement.segments().to_vec();
        let mut gpu_index = 0;
        for segment in &segments {
            match segment.side {
                Side::Cpu => {
                    self.copy_to_cpu(segment, &queued, timing)?;
                    self.run_on_cpu(segment, batch, &step, (&mut *observer, &mut *timing));
                }
                Side::Gpu => {
                    self.copy_to_gpu(segment, &queued, timing)?;
                    let watched = (&mut *observer, &mut *timing);
                    self.queue_on_gpu((gpu_index, segment), batch, &queued, watched)?;
                    gpu_index += 1;
                }
            }
        }
        self.gpu.queue_batch_export(batch, &queued)?;
        if choices.choosing() == Choosing::AfterMasks {
            let rows = &choices.masked_rows;
            self.gpu.queue_choice(&queued, batch, rows)?;
        }
        self.gpu.record_end(&queued)?;
        let rows = self.gpu.output(batch, &queued, &choices.host_rows)?;
        // One of them has any.
        let exports = [
            self.gpu.batch_export(batch, &queued),
            self.cpu.exports(batch),
        ];
        let exports = exports.concat();
        if sampling_side == Side::Gpu {
            self.cpu.set_last_sampled(&rows);
            return Ok((rows, exports));
        }
        if let Some(timing) = timing {
            timing.skip();
        }
        let rows = self.cpu.choose(batch);
        if let Some(timing) = timing {
            timing.watch.lap(StepPart::Choose);
        }
        self.gpu.set_last_sampled(&rows);
        Ok((rows, exports))
    }

    /// Copies the GPU buffers that the segment reads to the CPU, and waits for them.
    fn copy_to_cpu(
        &mut self,
        segment: &Segment,
        queued: &QueuedStep,
        timing: &mut Option<Timing>,
    ) -> Result<(), GpuError> {
        if segment.imports.is_empty() {
            return Ok(());
        }
        self.gpu.queue_export(&segment.imports, queued)?;
        self.gpu.synchronize()?;
        for id in &segment.imports {
            self.gpu.read_export(*id, self.cpu.buffer_mut(*id));
        }
        if let Some(timing) = timing {
            timing.lap_copy(Side::Cpu);
        }
        Ok(())
    }

    /// Queues the copies of the CPU buffers that the segment reads.
    fn copy_to_gpu(
        &mut self,
        segment: &Segment,
        queued: &QueuedStep,
        timing: &mut Option<Timing>,
    ) -> Result<(), GpuError> {
        for id in &segment.imports {
            self.gpu.import(*id, self.cpu.buffer(*id), queued)?;
        }
        if let Some(timing) = timing
            && !segment.imports.is_empty()
        {
            self.gpu.synchronize()?;
            timing.lap_copy(Side::Gpu);
        }
        Ok(())
    }

    fn run_on_cpu(
        &mut self,
        segment: &Segment,
        batch: &Batch,
        step: &CpuStep,
        (observer, timing): (&mut Option<Box<dyn OpObserver>>, &mut Option<Timing>),
    ) {
        let mut observers = Observers {
            observer: observer.as_mut().map(|observer| observer.as_mut() as _),
            watch: timing.as_mut().map(|timing| &mut timing.watch),
            shift: segment.ops.start - segment.own_ops.start,
        };
        let ops = segment.own_ops.clone();
        self.cpu.run_ops(ops, batch, step, &mut observers);
    }

    /// Queues a segment; `number` counts the GPU's segments. Waits for it if the step is timed.
    fn queue_on_gpu(
        &mut self,
        (number, segment): (usize, &Segment),
        batch: &Batch,
        queued: &QueuedStep,
        (observer, timing): (&mut Option<Box<dyn OpObserver>>, &mut Option<Timing>),
    ) -> Result<(), GpuError> {
        let shift = segment.ops.start - segment.own_ops.start;
        let observation = match (observer, &timing) {
            (Some(observer), _) => Observation::Values(observer.as_mut(), shift),
            (None, Some(_)) => Observation::Times,
            (None, None) => Observation::Unobserved,
        };
        let timed = self.gpu.queue_segment(number, queued, batch, observation)?;
        if let (Some(timed), Some(timing)) = (timed, timing) {
            self.gpu.synchronize()?;
            timing.flush();
            self.gpu.add_times(timed, shift, &mut timing.times)?;
            timing.skip();
        }
        Ok(())
    }
}

impl Backend for HybridBackend {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        reply(self.run(&batch));
    }

    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        self.observer = observer;
    }

    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.step_observer = observer;
    }

    fn tune(&mut self, budget: Duration) -> Result<Option<TuneProgress>, RuntimeError> {
        self.gpu.tune(budget)
    }

    fn idle(&mut self, budget: Duration) -> IdleWork {
        self.gpu.idle(budget)
    }

    fn info(&self) -> BackendInfo {
        let (cpu, gpu) = (self.cpu.info(), self.gpu.info());
        let part = |side, info: &BackendInfo| BackendPart {
            side,
            device: info.device.clone(),
            n_layers: self.placement.n_layers(&self.plan, side),
            n_ops: self
                .placement
                .sides()
                .iter()
                .filter(|s| **s == side)
                .count(),
            kv_bytes: info.kv_bytes,
        };
        let parts = vec![part(Side::Gpu, &gpu), part(Side::Cpu, &cpu)];
        let n_layers = self.plan.layers.len();
        let rest = match n_layers - parts[0].n_layers {
            0 => "the rest".to_string(),
            rest => rest.to_string(),
        };
        BackendInfo {
            device: format!(
                "{} of {n_layers} layers on {}, {rest} on {}",
                parts[0].n_layers, gpu.device, cpu.device
            ),
            slow_ops: [gpu.slow_ops, cpu.slow_ops].concat(),
            kv_bytes: gpu.kv_bytes + cpu.kv_bytes,
            state_bytes: gpu.state_bytes + cpu.state_bytes,
            notices: [gpu.notices, cpu.notices].concat(),
            offload: self.offload(),
            parts,
            ..gpu
        }
    }
}

#[cfg(test)]
mod tests;
