//! Whether the graph of a step computes what its launches do: drivers differ in what they make of a recording.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::choices::Choices;
use super::{GpuBackend, Graphs, Observation};
use crate::error::{DeviceError, RuntimeError};
use rocmforge_plan::{Batch, BatchSeq, InputToken, LogitsRow, RowOutput, Want};

/// Steps that are compared: 64 replays, and the first, which is not recorded.
const N_STEPS: usize = 65;
/// Numbers of the compared steps begin here, far from those of steps that serve.
const FIRST_STEP: u64 = 1 << 31;

impl GpuBackend {
    /// Generates for one sequence, launch by launch and then with the graph that will serve it, and compares the bits of
    /// all logits, or of what goes to the other device. Where they differ, or the driver takes no graph, steps run without from here on, and a notice says
    /// so. What is in the cache is lost.
    ///
    /// # Errors
    /// Those of steps without graphs, and a lost device.
    pub(crate) fn check_graphs(&mut self) -> Result<bool, RuntimeError> {
        if self.options.graphs == Graphs::Off {
            return Ok(true);
        }
        self.options.graphs = Graphs::Off;
        let expected = self.generate()?;
        self.options.graphs = Graphs::On;
        let problem = match self.generate() {
            Ok(got) if got == expected => return Ok(true),
            Ok(_) => "gives other results than its kernels one by one".to_string(),
            Err(RuntimeError::Device(DeviceError::Gpu(error))) if error.is_fatal() => {
                return Err(error.into());
            }
            Err(error) => format!("fails ({error})"),
        };
        self.graphs.clear();
        self.memory.step.restart(&self.gpu)?;
        self.options.graphs = Graphs::Off;
        self.notices.push(format!(
            "the graph of a step {problem} on {}; steps run without graphs, which is slower (--no-graphs does so at once)",
            self.name
        ));
        Ok(false)
    }

    /// A number for the bits of the logits of each step.
    fn generate(&mut self) -> Result<Vec<u64>, RuntimeError> {
        // What an earlier run left must not stand in for what this one does not write.
        for layer in 0..self.plan.kv.len() {
            let layer = self.memory.layer(layer);
            // Layers of another device have no cache here.
            if !layer.k.is_empty() {
                self.gpu.fill_bytes(layer.k, 0)?;
                self.gpu.fill_bytes(layer.v, 0)?;
            }
        }
        // Where the logits are made elsewhere, so are tokens looked up.
        let n_vocab = self.plan.buffers[self.plan.logits.0 as usize].width.max(1);
        let n_steps = N_STEPS.min(self.options.n_ctx);
        (0..n_steps).map(|i| self.generated(i, n_vocab)).collect()
    }

    fn generated(&mut self, position: usize, n_vocab: usize) -> Result<u64, RuntimeError> {
        let last_page = (position / self.options.page) as u32;
        let batch = Batch {
            step: FIRST_STEP + position as u64,
            shifts: Vec::new(),
            tokens: vec![InputToken::Id(((position + 1) * 97 % n_vocab) as u32)],
            positions: vec![position as u32],
            slots: vec![position as u32],
            seqs: vec![BatchSeq {
                first_row: 0,
                n_rows: 1,
                first_pos: position,
                block_table: (0..=last_page).collect(),
            }],
            logits: vec![LogitsRow {
                row: 0,
                want: Want::Logits,
            }],
        };
        let choices = match self.has_output {
            true => Choices::of(&batch),
            false => Choices::default(),
        };
        let queued = self.write_step(&batch, &choices)?;
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
        self.end_queue(&queued)?;
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

/// What the other device might give: values between -1 and 1 without a pattern.
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    let number = |i: usize| (i * 7919 + seed * 104_729) % 2003;
    (0..n).map(|i| number(i) as f32 / 1001.0 - 1.0).collect()
}
