//! Checks that the graph of a step computes the same as its separate launches, and measures which of them is faster.
//! Drivers record and replay graphs differently.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocmforge_gpu::DeviceId;

use super::choices::Choices;
use super::{GpuBackend, Graphs, Observation};
use crate::error::{DeviceError, RuntimeError};
use rocmforge_plan::{
    Batch, BatchSeq, InputToken, LogitsRow, RowOutput, SeqState, StateStart, Want,
};

/// Compared steps: 64 replays, and the first step, which is not recorded.
const N_STEPS: usize = 65;
/// Number of the first compared step, far from the numbers of served steps.
const FIRST_STEP: u64 = 1 << 31;

/// Steps that are timed together, and how often.
const N_TIMED: usize = 8;
const N_ROUNDS: usize = 4;
/// Launches must take less than this share of the graphs' time.
const MUCH_LESS: f64 = 0.97;

/// Times of a decode step of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepTimes {
    pub graph: Duration,
    /// Each kernel launched by itself.
    pub launches: Duration,
}

impl StepTimes {
    /// Whether steps of one sequence are launched, since that is faster.
    pub fn are_launched(&self) -> bool {
        self.launches.as_secs_f64() < MUCH_LESS * self.graph.as_secs_f64()
    }
}

/// What comparing graphs of steps with separate launches found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GraphCheck {
    Same(StepTimes),
    /// Graphs do not work: a sentence says why.
    Fails(String),
}

impl GpuBackend {
    /// Compares decode steps with and without graphs. Returns what this backend then uses, `None` if graphs do not work.
    ///
    /// Generates for one sequence, first launch by launch, then with the graph that will serve it. Compares the bits of
    /// all logits, or of the buffers exported to the other device. If they differ or the driver rejects the graph,
    /// turns graphs off and adds a notice. Overwrites the KV cache and the states.
    ///
    /// # Errors
    /// Errors of steps without graphs, and a lost device.
    pub(crate) fn check_graphs(&mut self) -> Result<Option<Graphs>, RuntimeError> {
        if self.options.graphs == Graphs::Off {
            return Ok(Some(Graphs::Off));
        }
        match self.graphs_agree()? {
            true => self.choose_faster().map(Some),
            false => Ok(None),
        }
    }

    /// As [`GpuBackend::check_graphs`], but times both even where that decides nothing.
    ///
    /// # Errors
    /// As of [`GpuBackend::check_graphs`].
    pub(crate) fn compare_graphs(&mut self) -> Result<GraphCheck, RuntimeError> {
        match self.graphs_agree()? {
            true => Ok(GraphCheck::Same(self.both_times()?)),
            false => Ok(GraphCheck::Fails(
                self.notices
                    .pop()
                    .expect("a notice says why graphs are off"),
            )),
        }
    }

    /// Whether steps compute the same with and without graphs. If not, turns graphs off and adds a notice.
    fn graphs_agree(&mut self) -> Result<bool, RuntimeError> {
        self.options.graphs = Graphs::Off;
        let expected = self.hash_steps()?;
        self.options.graphs = Graphs::On;
        let problem = match self.hash_steps() {
            // Without graphs, since recording or launching one has failed.
            Ok(_) if self.options.graphs == Graphs::Off => return Ok(false),
            Ok(got) if got == expected => return Ok(true),
            Ok(_) => "gives different results from separate launches".to_string(),
            Err(RuntimeError::Device(DeviceError::Gpu(error))) if error.is_fatal() => {
                return Err(error.into());
            }
            Err(error) => format!("fails ({error})"),
        };
        self.graphs.clear();
        self.memory.step.restart(&self.gpu)?;
        self.stop_graphs(&problem);
        Ok(false)
    }

    /// Leaves one sequence to launches if they are faster, with a notice, and returns what is used.
    fn choose_faster(&mut self) -> Result<Graphs, RuntimeError> {
        // A part of a plan waits for the other device, and the times of an emulated GPU say nothing.
        let is_emulated = matches!(self.gpu.id(), DeviceId::Host(_));
        if is_emulated || !self.has_output || self.segments.len() > 1 {
            return Ok(Graphs::On);
        }
        let times = self.both_times()?;
        if times.are_launched() {
            self.options.graphs = Graphs::OfSeveral;
            let [graph, launches] =
                [times.graph, times.launches].map(|time| 1e3 * time.as_secs_f64());
            self.notices.push(format!(
                "on {} a step of one sequence takes {launches:.2} ms in separate launches and {graph:.2} ms as a graph, \
                 so it is launched",
                self.name
            ));
        }
        Ok(self.options.graphs)
    }

    /// Times steps of one sequence both ways, and leaves graphs on.
    fn both_times(&mut self) -> Result<StepTimes, RuntimeError> {
        let mut least = [Duration::MAX; 2];
        let ways = [Graphs::On, Graphs::Off];
        for round in 0..N_ROUNDS {
            // Neither is always the first, while the clock may still rise.
            for way in [round % 2, 1 - round % 2] {
                self.options.graphs = ways[way];
                least[way] = self.time_steps()?.min(least[way]);
            }
        }
        self.options.graphs = Graphs::On;
        let n_steps = N_TIMED.min(self.options.n_ctx) as u32;
        let [graph, launches] = least.map(|time| time / n_steps);
        Ok(StepTimes { graph, launches })
    }

    /// Runs a few decode steps as a generation does, of which two are in flight; returns their time.
    pub(super) fn time_steps(&mut self) -> Result<Duration, RuntimeError> {
        let started = Instant::now();
        let mut before = None;
        for position in 0..N_TIMED.min(self.options.n_ctx) {
            let batch = self.compared_step(position, 0);
            let (queued, _) = self.queue_step(&batch, &Choices::of(&batch))?;
            if let Some(slot) = before.replace(queued.slot) {
                self.ends[slot].wait()?;
            }
        }
        self.gpu.synchronize()?;
        Ok(started.elapsed())
    }

    /// Turns graphs off because of a problem, and says so. Recorded graphs may be in use, and stay.
    pub(super) fn stop_graphs(&mut self, problem: &str) {
        self.options.graphs = Graphs::Off;
        let text = format!(
            "the graph of a step {problem} on {}; steps run without graphs, which is slower",
            self.name
        );
        match self.notice {
            Some(tell) => tell(&text),
            None => self.notices.push(text),
        }
    }

    /// Runs the compared steps; returns a hash of each step's logits and exports.
    fn hash_steps(&mut self) -> Result<Vec<u64>, RuntimeError> {
        // Otherwise values of an earlier run could hide missing writes of this one.
        for layer in 0..self.memory.own_cache().len() {
            let layer = self.memory.layer(layer);
            // Layers on the other device have no cache here.
            if !layer.k.is_empty() {
                self.gpu.fill_bytes(layer.k, 0)?;
                self.gpu.fill_bytes(layer.v, 0)?;
            }
        }
        self.memory.clear_states(&self.gpu)?;
        // A part without the logits does not know the vocabulary size; it uses token 0.
        let n_vocab = self.plan.buffers[self.plan.logits.0 as usize].width.max(1);
        let n_steps = N_STEPS.min(self.options.n_ctx);
        (0..n_steps).map(|i| self.hash_step(i, n_vocab)).collect()
    }

    /// Decodes one token at `position` of one sequence.
    fn compared_step(&self, position: usize, token: usize) -> Batch {
        let last_page = (position / self.options.page) as u32;
        let [_, rows] = self.usual_rows();
        Batch {
            rows,
            step: FIRST_STEP + position as u64,
            shifts: Vec::new(),
            tokens: vec![InputToken::Id(token as u32)],
            positions: vec![position as u32],
            slots: vec![position as u32],
            seqs: vec![BatchSeq {
                first_row: 0,
                n_rows: 1,
                first_pos: position,
                block_table: Arc::new((0..=last_page).collect()),
                state: Some(SeqState {
                    slot: 0,
                    start: match position {
                        0 => StateStart::Empty,
                        _ => StateStart::Slot(0),
                    },
                    kept: Vec::new(),
                }),
            }],
            logits: vec![LogitsRow {
                row: 0,
                want: Want::Logits,
            }],
            imports: Vec::new(),
            exports: false,
        }
    }

    /// Runs the step at `position`; returns a hash of its logits and exports.
    fn hash_step(&mut self, position: usize, n_vocab: usize) -> Result<u64, RuntimeError> {
        let batch = self.compared_step(position, (position + 1) * 97 % n_vocab);
        let choices = match self.has_output {
            true => Choices::of(&batch),
            false => Choices::default(),
        };
        let queued = self.write_step(&batch, &choices)?;
        self.import_batch(&batch, &queued)?;
        let [imports, exports] = [self.transfers.imports(), self.transfers.exports()];
        let (imports, exports) = (imports.to_vec(), exports.to_vec());
        let mut hash = DefaultHasher::new();
        for segment in 0..self.segments.len() {
            for id in &imports {
                let width = self.plan.buffers[id.0 as usize].width;
                self.import(*id, &numbers(position + segment, width), &queued)?;
            }
            self.queue_segment(segment, &queued, &batch, Observation::Unobserved)?;
            self.queue_export(&exports, &queued)?;
            self.gpu.synchronize()?;
            for id in &exports {
                let mut values = vec![0.0; self.plan.buffers[id.0 as usize].width];
                self.read_export(*id, &mut values);
                values.iter().for_each(|x| x.to_bits().hash(&mut hash));
            }
        }
        self.record_end(&queued)?;
        for row in &self.output(&batch, &queued, &choices.host_rows)? {
            match row {
                RowOutput::Logits(logits) => {
                    logits.iter().for_each(|x| x.to_bits().hash(&mut hash))
                }
                _ => 0.hash(&mut hash),
            }
        }
        Ok(hash.finish())
    }
}

/// Returns `n` pseudorandom values between -1 and 1, in place of another device's output.
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    let number = |i: usize| (i * 7919 + seed * 104_729) % 2003;
    (0..n).map(|i| number(i) as f32 / 1001.0 - 1.0).collect()
}
