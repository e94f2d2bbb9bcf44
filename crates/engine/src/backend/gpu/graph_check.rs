//! Whether the graph of a step computes what its launches do: drivers differ in what they make of a recording.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::mpsc;

use super::{GpuBackend, Graphs};
use crate::backend::{Backend as _, Wait};
use crate::batch::{Batch, BatchSeq, InputToken, LogitsRow, RowOutput, Want};
use crate::error::EngineError;

/// Steps that are compared: 64 replays, and the first, which is not recorded.
const N_STEPS: usize = 65;
/// Numbers of the compared steps begin here, far from those of steps that serve.
const FIRST_STEP: u64 = 1 << 31;

impl GpuBackend {
    /// Generates for one sequence, launch by launch and then with the graph that will serve it, and compares the bits of
    /// all logits. Where they differ, or the driver takes no graph, steps run without from here on, and a notice says
    /// so. What is in the cache is lost.
    ///
    /// # Errors
    /// Those of steps without graphs, and a lost device.
    pub(crate) fn check_graphs(&mut self) -> Result<bool, EngineError> {
        if self.options.graphs == Graphs::Off {
            return Ok(true);
        }
        self.options.graphs = Graphs::Off;
        let expected = self.generate()?;
        self.options.graphs = Graphs::On;
        let problem = match self.generate() {
            Ok(got) if got == expected => return Ok(true),
            Ok(_) => "gives other results than its kernels one by one".to_string(),
            Err(EngineError::Gpu(error)) if error.is_fatal() => return Err(error.into()),
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
    fn generate(&mut self) -> Result<Vec<u64>, EngineError> {
        // What an earlier run left must not stand in for what this one does not write.
        for layer in 0..self.plan.kv.len() {
            let layer = self.memory.layer(layer);
            self.gpu.fill_bytes(layer.k, 0)?;
            self.gpu.fill_bytes(layer.v, 0)?;
        }
        let n_vocab = self.plan.buffers[self.plan.logits.0 as usize].width;
        let n_steps = N_STEPS.min(self.options.n_ctx);
        (0..n_steps).map(|i| self.generated(i, n_vocab)).collect()
    }

    fn generated(&mut self, position: usize, n_vocab: usize) -> Result<u64, EngineError> {
        let last_page = (position / self.options.page) as u32;
        let (reply, result) = mpsc::channel();
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
        self.submit(batch, Box::new(move |output| drop(reply.send(output))));
        self.finish(Wait::All);
        let output = result.recv().expect("a finished step has its reply")?;
        let mut hash = DefaultHasher::new();
        for row in &output.rows {
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
