//! Computes a profile from runs: times with the operations' costs, and facts about machine, model and memory.

use std::fs;
use std::time::Duration;

use rocmforge_bench::load;
use rocmforge_cpu::default_threads;
use rocmforge_engine::{Device, EngineConfig};
use rocmforge_plan::{KvSpec, Plan, PlanCost, Side};
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_profile::advisor;
use rocmforge_profile::advisor::{Facts, MoreThreads, SmallerKv, View};
use rocmforge_profile::clock;
use rocmforge_profile::launches::{LaunchOverheadTracker, Unprofiled};
use rocmforge_profile::ops::PlanOps;
use rocmforge_profile::phases::{PhaseTimes, Walls};
use rocmforge_profile::schema::{
    Ceilings, Launches, Machine, Memory, ModelFacts, OpRow, Overhead, Phase, Profile, SCHEMA,
    SlowOp, Span, Ttft, Workload,
};
use rocmforge_profile::telemetry::BackendExecutionSummary;
use rocmforge_profile::timeline::Timeline;
use rocmforge_profile::timer::Collector;
use rocmforge_profile::ttft::{Component, TtftProfiler};
use rocmforge_runtime::gpu;
use rocmforge_runtime::times::{StepPart, StepTimes};

use super::runs::{Run, Runs, backend_name};
use crate::args::ProfileArgs;
use crate::bench::report::file_type;
use crate::session::Session;
use crate::{devices, inspect};

/// Most spans in the timeline: some hundred megabytes of trace.
const MAX_SPANS: usize = 1_000_000;
/// Difference of the peaks before and after the runs from which on they are called unsteady.
const UNSTEADY: f64 = 0.1;

/// Facts besides the runs.
pub struct Found<'a> {
    pub args: &'a ProfileArgs,
    pub session: &'a Session,
    /// Peaks before and after the runs, where they can be measured again.
    pub ceilings: Vec<Ceilings>,
    /// Share of the cores that other programs used during the runs.
    pub other_load: Option<f64>,
    /// Peak memory of the process for the model and its runs, if the system reports it.
    pub peak_bytes: Option<u64>,
    pub load: Duration,
    /// `None` without a text.
    pub tokenize: Option<Duration>,
    pub n_prompt: usize,
    pub scopes: &'a Collector,
}

impl Found<'_> {
    fn config(&self) -> &EngineConfig {
        &self.session.config
    }

    /// Returns `None` if a kind of run is missing.
    pub fn profile(&self, runs: &Runs) -> Option<Profile> {
        let plan = self.session.engine.running_plan(&self.session.model);
        let ops = PlanOps::new(PlanCost {
            plan: &plan,
            weights: &self.session.model.weights,
            kv_types: self.config().kv_types,
        });
        let ceilings = self.ceilings.iter().copied().reduce(Ceilings::best_of);
        let phases = self.phases((&runs.profiled, &runs.unprofiled), &ops, ceilings.as_ref())?;
        let telemetry = self.telemetry(runs, &ops);
        let total = |run: &Run| run.prefill + run.decode;
        let mut profile = Profile {
            schema: SCHEMA,
            version: crate::version::VERSION.to_string(),
            created: clock::rfc_3339(clock::unix_now()),
            command: command(),
            machine: self.machine(),
            model: self.model(),
            workload: Workload {
                n_prompt: self.n_prompt,
                n_gen: self.args.max_tokens as usize,
                n_seqs: 1,
                n_profiled: runs.profiled.len(),
                n_unprofiled: runs.unprofiled.len(),
            },
            ceilings,
            ttft: self.ttft(runs, &ops),
            launches: self.launches(runs, &phases),
            phases,
            time_by_backend: telemetry
                .time_by_backend
                .iter()
                .map(|(backend, time)| (backend.clone(), ms(*time)))
                .collect(),
            ops_by_backend: telemetry.operations_by_backend,
            ops_by_type: telemetry.operations_by_type,
            slow_ops: self.slow_ops(),
            memory: self.memory(runs, &plan),
            utilization: runs
                .utilization
                .as_ref()
                .and_then(|found| found.as_ref().ok().cloned()),
            overhead: Overhead {
                profiled_ms: mean(runs.profiled.iter().map(|(run, _)| total(run))),
                unprofiled_ms: mean(runs.unprofiled.iter().map(total)),
                scope_ns: Collector::scope_ns(),
            },
            advice: Vec::new(),
            timeline: Vec::new(),
            notes: self.notes(runs),
        };
        let (timeline, note) = self.timeline(runs, &ops);
        profile.timeline = timeline;
        profile.notes.extend(note);
        profile.notes.extend(above_peaks(&profile.phases));
        let views = self.views(runs, &ops);
        profile.advice = advisor::advise(&profile, &views, &self.facts());
        Some(profile)
    }

    /// The steps of a run, and whether they have tokens of the prompt. Positions do not say so: they fall where a context
    /// shifts.
    fn steps<'r>(&self, steps: &'r [StepTimes]) -> impl Iterator<Item = (bool, &'r StepTimes)> {
        let (mut n_before, n_prompt) = (0, self.n_prompt);
        steps.iter().map(move |step| {
            let is_prefill = n_before < n_prompt;
            n_before += step.shape.seqs.iter().map(|seq| seq.n_rows).sum::<usize>();
            (is_prefill, step)
        })
    }

    /// Returns each single run with each measurement of the peaks.
    fn views(&self, runs: &Runs, ops: &PlanOps<'_>) -> Vec<View> {
        let peaks: Vec<Option<Ceilings>> = match self.ceilings.is_empty() {
            true => vec![None],
            false => self.ceilings.iter().copied().map(Some).collect(),
        };
        let mut views = Vec::new();
        for (profiled, unprofiled) in runs.profiled.chunks(1).zip(runs.unprofiled.chunks(1)) {
            for ceilings in &peaks {
                let phases = self.phases((profiled, unprofiled), ops, ceilings.as_ref());
                views.extend(phases.map(|phases| View {
                    phases,
                    ceilings: *ceilings,
                }));
            }
        }
        views
    }

    /// Returns the averages of these runs.
    fn phases(
        &self,
        (profiled, unprofiled): (&[(Run, Vec<StepTimes>)], &[Run]),
        ops: &PlanOps<'_>,
        ceilings: Option<&Ceilings>,
    ) -> Option<Vec<Phase>> {
        let mut times = [PhaseTimes::default(), PhaseTimes::default()];
        let steps = profiled.iter().flat_map(|(_, steps)| self.steps(steps));
        for (is_prefill, step) in steps {
            let [prefill, decode] = &mut times;
            match is_prefill {
                true => prefill.add_step(ops, step, ceilings),
                false => decode.add_step(ops, step, ceilings),
            }
        }
        let walls = |of: fn(&Run) -> Duration| Walls {
            profiled: profiled.iter().map(|(run, _)| ms(of(run))).collect(),
            unprofiled: unprofiled.iter().map(|run| ms(of(run))).collect(),
        };
        let [prefill, decode] = times;
        let of_prompt = walls(|run| run.prefill);
        let mut phases = vec![prefill.phase("prefill", self.n_prompt, &of_prompt, ceilings)?];
        // The first token belongs to prefill.
        let n_decode = self.args.max_tokens as usize - 1;
        if n_decode > 0 {
            phases.push(decode.phase("decode", n_decode, &walls(|run| run.decode), ceilings)?);
        }
        Some(phases)
    }

    /// Averages over the profiled runs.
    fn ttft(&self, runs: &Runs, ops: &PlanOps<'_>) -> Ttft {
        let n = runs.profiled.len() as u32;
        let on_gpu = matches!(self.config().device, Device::Gpu(_));
        let mut sums = [Duration::ZERO; 4];
        let [embedding, first_token, h2d, d2h] = &mut sums;
        let steps = runs
            .profiled
            .iter()
            .flat_map(|(_, steps)| self.steps(steps));
        for (_, step) in steps.filter(|(is_prefill, _)| *is_prefill) {
            for part in &step.parts {
                let sum = match part.part {
                    _ if ops.is_embedding(&part.part) => &mut *embedding,
                    _ if ops.is_for_logits(&part.part) => &mut *first_token,
                    StepPart::Begin | StepPart::Copy if part.side == Side::Gpu => &mut *h2d,
                    StepPart::End | StepPart::Copy => &mut *d2h,
                    _ => continue,
                };
                *sum += part.duration;
            }
        }
        let [embedding, first_token, h2d, d2h] = sums.map(|sum| sum / n);
        let wall = runs.profiled.iter().map(|(run, _)| run.prefill);
        let wall = wall.sum::<Duration>() / n;
        let mut ttft = TtftProfiler::with_target(self.args.ttft_target);
        ttft.add(Component::ModelLoading, self.load);
        match self.tokenize {
            Some(time) => ttft.add(Component::Tokenization, time),
            None => ttft.note("the prompt is random tokens, not tokenized text"),
        }
        ttft.add(Component::Embedding, embedding);
        ttft.add(Component::FirstToken, first_token);
        if on_gpu {
            ttft.add(Component::H2d, h2d);
            ttft.add(Component::D2h, d2h);
            ttft.note(
                "h2d and d2h are the first and the last kernel of a step, which read and write the host's memory, and \
                 copies where the CPU computes a part of the model; the weights went to the device in model_load",
            );
        } else {
            ttft.note("no copies to or from a device");
        }
        let others = embedding + first_token + h2d + d2h;
        ttft.add(Component::Prefill, wall.saturating_sub(others));
        let unprofiled = mean(runs.unprofiled.iter().map(|run| run.prefill));
        ttft.note(format!(
            "means of {n} profiled runs; prefill is the rest of the time from the request to the first \
             token, which is {:.3} ms with profiling and {unprofiled:.3} ms without",
            ms(wall)
        ));
        ttft.finish_with(self.tokenize.unwrap_or_default() + wall)
    }

    fn launches(&self, runs: &Runs, phases: &[Phase]) -> Option<Launches> {
        let decode = phases.iter().find(|phase| phase.name == "decode")?;
        let mut tracker = LaunchOverheadTracker::new();
        let steps = runs
            .profiled
            .iter()
            .flat_map(|(_, steps)| self.steps(steps));
        for (_, step) in steps.filter(|(is_prefill, _)| !is_prefill) {
            for launch in &step.launches {
                tracker.add_launch(launch.submit);
            }
            tracker.add_token(step.duration());
        }
        tracker.report(Unprofiled {
            graphs: self.decodes_by_graphs(),
            token_us: decode.unprofiled.mean * 1e3 / decode.n_tokens as f64,
        })
    }

    /// Whether the runs, of one sequence each, decode by graphs.
    fn decodes_by_graphs(&self) -> bool {
        self.session.engine.backend_info().graphs == gpu::Graphs::On
    }

    fn backend(&self) -> String {
        backend_name(self.config())
    }

    /// Of one run.
    fn telemetry(&self, runs: &Runs, ops: &PlanOps<'_>) -> BackendExecutionSummary {
        let mut summary = BackendExecutionSummary::default();
        let gpu = self.backend();
        for step in runs.profiled.iter().take(1).flat_map(|(_, steps)| steps) {
            summary.add_step(step, ops, &gpu);
        }
        summary
    }

    /// Returns the spans of one run, and a note if they are not all.
    fn timeline(&self, runs: &Runs, ops: &PlanOps<'_>) -> (Vec<Span>, Option<String>) {
        let mut timeline = Timeline::new(self.scopes.origin());
        let (scopes, _) = self.scopes.take();
        timeline.add_scopes(&scopes);
        let steps = runs.profiled.first().map_or(&[][..], |(_, steps)| steps);
        let n_shown = steps
            .iter()
            .take_while(|step| timeline.add_step_within(ops, step, MAX_SPANS))
            .count();
        let note = (n_shown < steps.len()).then(|| {
            format!(
                "the timeline shows the first {n_shown} of {} steps, {MAX_SPANS} spans at most; generate fewer tokens to \
                 see all",
                steps.len()
            )
        });
        (timeline.finish(), note)
    }

    fn machine(&self) -> Machine {
        let driver = match &self.config().device {
            Device::Cpu => None,
            Device::Gpu(gpu) => {
                let found = gpu::survey(&gpu.open).devices;
                let own = found.into_iter().find(|device| Some(device.id) == gpu.id);
                own.map(|device| device.driver_version)
            }
        };
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            device: self.session.engine.backend_info().device.clone(),
            backend: self.backend(),
            cpu: devices::cpu_name().unwrap_or_default(),
            isa: self.config().isa.name().to_string(),
            n_threads: self.n_threads(),
            os: format!("{} {}", std::env::consts::OS, release.trim())
                .trim()
                .to_string(),
            driver,
        }
    }

    /// Returns whether the model is split between a GPU and the CPU.
    fn is_shared(&self) -> bool {
        !self.session.engine.backend_info().parts.is_empty()
    }

    fn n_threads(&self) -> usize {
        self.config().n_threads.unwrap_or_else(default_threads)
    }

    fn model(&self) -> ModelFacts {
        let file = &self.session.file;
        ModelFacts {
            name: file.label.clone(),
            arch: self.session.model.config.arch_name.clone(),
            format: file_type(&file.gguf).unwrap_or("unknown").to_string(),
            n_params: inspect::n_parameters(&file.gguf),
            weight_bytes: inspect::weight_bytes(&file.gguf),
        }
    }

    fn slow_ops(&self) -> Vec<SlowOp> {
        let slow = self.session.engine.backend_info().slow_ops.iter();
        slow.map(|(reason, count)| SlowOp {
            reason: reason.clone(),
            count: *count,
        })
        .collect()
    }

    fn memory(&self, runs: &Runs, plan: &Plan) -> Memory {
        let info = self.session.engine.backend_info();
        let n_rows = self.n_prompt.min(self.session.config.max_batch_tokens);
        let usage = runs.kv_usage;
        Memory {
            weights: inspect::weight_bytes(&self.session.file.gguf),
            kv_pool: info.kv_bytes,
            kv_per_token: self
                .session
                .model
                .kv_bytes_per_token(self.config().kv_types),
            scratch: Some(match info.device_memory {
                Some(memory) => memory.scratch,
                None => plan.buffer_bytes(n_rows, 1),
            }),
            peak: match info.device_memory {
                Some(memory) => Some(memory.total),
                None => self.peak_bytes,
            },
            fragmentation: usage.fragmentation(),
        }
    }

    fn facts(&self) -> Facts {
        let on_cpu = matches!(self.config().device, Device::Cpu);
        let n_cores = default_threads();
        let more_threads = (on_cpu && self.n_threads() < n_cores).then(|| MoreThreads {
            n_cores,
            ceilings: Ceilings::of_cpu(self.config().isa, n_cores),
        });
        let model = &self.session.model;
        let bytes = |types: KvTypes| model.kv_bytes_per_token(types) as f64;
        let is_blocks = |dim: usize| dim.is_multiple_of(KvType::Q8_0.block_len(dim));
        let has_blocks = |kv: &KvSpec| is_blocks(kv.k_dim) && is_blocks(kv.v_dim);
        let smaller = match model.plan.kv.iter().all(has_blocks) {
            true => KvType::Q8_0,
            false => KvType::F8E4M3,
        };
        let bytes_share = bytes(smaller.into()) / bytes(self.config().kv_types);
        let smaller_kv = (bytes_share < 1.0).then(|| SmallerKv {
            name: smaller.name().to_string(),
            bytes_share,
        });
        Facts {
            more_threads,
            smaller_kv,
        }
    }

    fn notes(&self, runs: &Runs) -> Vec<String> {
        let mut notes = Vec::new();
        match &self.config().device {
            Device::Cpu => notes.push(
                "operations are timed by the device's thread, which reads the clock once between two of them".to_string(),
            ),
            Device::Gpu(_) => {
                notes.push(
                    "kernels are timed by device events between launches; time that the device waits for the next launch \
                     counts for the kernel"
                        .to_string(),
                );
                if self.decodes_by_graphs() {
                    notes.push(
                        "decode steps run as graphs without profiling and as separate launches with it: compare the two \
                         totals of decode"
                            .to_string(),
                    );
                }
                let n_tuned = self.session.engine.backend_info().n_tuned;
                if n_tuned > 0 {
                    notes.push(format!(
                        "the GPU uses autotuned launches (rocmforge tune): {n_tuned} are known, of all models"
                    ));
                }
                notes.push(match self.is_shared() {
                    false => {
                        "the device starts a token before the host has the last one: its operations may take slightly \
                         longer than the wall-clock time of decode"
                    }
                    true => {
                        "the CPU computes a part of each step; with profiling it waits for the device at each transition, and \
                         copies count for their destination"
                    }
                }.to_string());
                notes.push("time_by_backend counts the host's launch time as cpu, in addition to the device's time".to_string());
            }
        }
        if let Some(Err(error)) = &runs.utilization {
            notes.push(format!("device utilization is unknown: {error}"));
        }
        if let [before, after] = &self.ceilings[..]
            && before.difference(after) >= UNSTEADY
        {
            notes.push(format!(
                "the peaks measured before and after the runs differ by {:.0} %, so the machine was not equally fast all \
                 the time; the better ones are used, and advice must hold with both",
                100.0 * before.difference(after)
            ));
        }
        if let Some(share) = self.other_load.filter(|share| *share >= load::BUSY) {
            notes.push(format!(
                "the machine was busy: other programs used {:.0} % of its cores during the runs, so times are too long \
                 and shares too small",
                100.0 * share
            ));
        }
        if self.ceilings.is_empty() {
            notes.push(match self.is_shared() {
                false => "the peaks of this device are not measured".to_string(),
                true => "the model is split over two devices, for which there are no common peaks"
                    .to_string(),
            });
        }
        notes
    }
}

/// Returns notes on rows that exceed a peak.
fn above_peaks(phases: &[Phase]) -> Vec<String> {
    let rows = || {
        phases
            .iter()
            .flat_map(|of| of.ops.iter().chain(&of.kernels))
    };
    let mut notes = Vec::new();
    if rows().any(OpRow::is_above_bandwidth) {
        notes.push(
            "reads above 100 % (marked *) come from a cache, or memory was slower while its peak was measured; memory's \
             bandwidth does not limit these operations"
                .to_string(),
        );
    }
    if rows().any(OpRow::is_above_ops) {
        notes.push(
            "arithmetic above 100 % (marked *) means that the peak was measured at a slower moment than the operation"
                .to_string(),
        );
    }
    notes
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn mean(times: impl ExactSizeIterator<Item = Duration>) -> f64 {
    let n = times.len().max(1) as f64;
    times.map(ms).sum::<f64>() / n
}

/// Returns the command line.
fn command() -> String {
    let words = std::env::args_os().enumerate().map(|(i, word)| {
        let word = word.to_string_lossy().into_owned();
        match i {
            // Without the program's folder, which is private.
            0 => "rocmforge".to_string(),
            _ if word.is_empty() || word.contains([' ', '\'', '"', '\n', '\t']) => {
                format!("{word:?}")
            }
            _ => word,
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
