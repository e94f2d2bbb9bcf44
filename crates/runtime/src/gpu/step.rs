//! The inputs of a step on the device: 32-bit words at fixed offsets of one buffer. The host writes them to pinned
//! memory, the first kernel of a step copies them to the device, and the last one writes the sampled ids back.

use rocmforge_gpu::ops::{
    LOGPROB_WORDS, LogprobRows, N_LIST_WORDS, N_PAGES, SCRATCH_WORDS, STEP_NUMBER, SampleEntry,
    SampleRow, SampleStep, StepWords,
};
use rocmforge_gpu::{
    Buffer, Gpu, GpuError, KeptState, Pinned, SeqRows, SeqState, Slice, States, Step,
};
use zerocopy::IntoBytes as _;

use super::choices::{Choices, Chooser, Choosing, MAX_ENTRIES};
use rocmforge_plan::{Batch, StateStart, StepRows, TokenLogprob};

/// Marks a padding row for the kernels, and in `from_row` a token whose id is known.
const NO_ROW: u32 = u32::MAX;
/// Alignment of arrays, in words.
const ALIGN: usize = 64;
/// Words of a [`SeqRows`].
const SEQ_WORDS: usize = size_of::<SeqRows>() / size_of::<u32>();
/// Words of a [`SeqState`].
const STATE_WORDS: usize = size_of::<SeqState>() / size_of::<u32>();
/// Words of a [`KeptState`].
const KEPT_WORDS: usize = size_of::<KeptState>() / size_of::<u32>();
/// Words of a [`SampleRow`].
const SAMPLE_WORDS: usize = size_of::<SampleRow>() / size_of::<u32>();
/// Words of all [`SampleEntry`]s of a step.
const LIST_WORDS: usize = MAX_ENTRIES * size_of::<SampleEntry>() / size_of::<u32>();
/// Returns the size of the sampler's memory for steps of `max_sampled` rows that are sampled on the GPU.
pub(crate) fn sampler_bytes(max_sampled: usize) -> u64 {
    (max_sampled * SCRATCH_WORDS * size_of::<u64>()) as u64
}

/// Maximum steps in flight.
pub(crate) const N_SLOTS: usize = 2;

/// Sizes of the largest step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepSizes {
    pub(crate) max_rows: usize,
    pub(crate) max_logits: usize,
    /// How many of these rows may be sampled.
    pub(crate) max_sampled: usize,
    pub(crate) max_seqs: usize,
    /// Maximum KV-cache blocks of one sequence.
    pub(crate) max_pages: usize,
    /// Slots for states of sequences; 0 if no layer keeps one.
    pub(crate) n_slots: usize,
}

/// Sizes of a step, including padding rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    pub(crate) rows: StepRows,
    pub(crate) n_rows: usize,
    pub(crate) n_logits: usize,
    pub(crate) n_seqs: usize,
    pub(crate) max_rows_of_seq: usize,
    /// Positions of the longest sequence after the step; `usize::MAX` if the shape is for any.
    pub(crate) longest: usize,
    pub(crate) chooser: Chooser,
    pub(crate) choosing: Choosing,
    /// Positions of the only sequence, if latent attention is that to keys and values of heads; else 0.
    pub(crate) n_to_heads: usize,
}

impl StepShape {
    /// Returns the shape of `batch` without padding, whose tokens are chosen within the step.
    pub(crate) fn of(batch: &Batch, chooser: Chooser) -> StepShape {
        StepShape {
            rows: batch.rows,
            n_rows: batch.tokens.len(),
            n_logits: batch.logits.len(),
            n_seqs: batch.seqs.len(),
            max_rows_of_seq: batch.seqs.iter().map(|seq| seq.n_rows).max().unwrap_or(0),
            longest: { batch.seqs.iter() }
                .map(|seq| seq.first_pos + seq.n_rows)
                .max()
                .unwrap_or(0),
            chooser,
            choosing: Choosing::InStep,
            n_to_heads: 0,
        }
    }

    /// Returns the shape of a decode step of `n` sequences: each has one row with logits, and its token is chosen within
    /// the step.
    pub(crate) fn decode(rows: StepRows, n: usize, chooser: Chooser) -> StepShape {
        StepShape {
            rows,
            n_rows: n,
            n_logits: n,
            n_seqs: n,
            max_rows_of_seq: 1,
            longest: usize::MAX,
            chooser,
            choosing: Choosing::InStep,
            n_to_heads: 0,
        }
    }
}

/// An input token of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepToken {
    Id(u32),
    /// The token sampled in this output row of the previous step, which only the device knows so far.
    FromRow(usize),
}

/// The offset of each array, in words. Before the first array are the step number, the number of blocks in use and the
/// number of list words in use.
struct Layout {
    tokens: usize,
    from_row: usize,
    positions: usize,
    slots: usize,
    seq_of_row: usize,
    logits_rows: usize,
    seqs: usize,
    states: usize,
    kept: usize,
    sample_rows: usize,
    block_tables: usize,
    lists: usize,
    end: usize,
}

/// The inputs and results of steps, on the device and on the host.
pub(crate) struct StepMemory {
    sizes: StepSizes,
    layout: Layout,
    device: Buffer,
    /// Steps run so far, counted by the device.
    n_steps: Buffer,
    /// Ids sampled by the last step, `[max_logits]`.
    sampled: Buffer,
    /// Memory of the sampler, `[max_sampled, SCRATCH_WORDS]`.
    sampler: Buffer,
    /// `[N_SLOTS, layout.end]`.
    host: Pinned<u32>,
    /// `[N_SLOTS, 1 + max_logits]`: number and sampled ids of a step.
    results: Pinned<u32>,
    /// `[N_SLOTS, max_logits, LOGPROB_WORDS]`.
    logprobs: Pinned<u32>,
    /// Masks of the step in each slot, `[n_masked, mask_words]` and unused words; allocated when rows first have masks.
    masks: [Option<Pinned<u32>>; N_SLOTS],
    /// Steps written so far, counted by the host.
    n_written: usize,
    words: Vec<u32>,
}

impl StepMemory {
    pub(crate) fn new(gpu: &Gpu, sizes: StepSizes) -> Result<StepMemory, GpuError> {
        let mut end = 0;
        let mut place = |n_words: usize| {
            let at = end;
            end += n_words.next_multiple_of(ALIGN);
            at
        };
        place(N_LIST_WORDS + 1);
        let max_states = match sizes.n_slots {
            0 => 0,
            _ => sizes.max_seqs,
        };
        let layout = Layout {
            tokens: place(sizes.max_rows),
            from_row: place(sizes.max_rows),
            positions: place(sizes.max_rows),
            slots: place(sizes.max_rows),
            seq_of_row: place(sizes.max_rows),
            logits_rows: place(sizes.max_logits),
            seqs: place(sizes.max_seqs * SEQ_WORDS),
            states: place(max_states * STATE_WORDS),
            // Each copy has a slot of its own.
            kept: place(sizes.n_slots * KEPT_WORDS),
            sample_rows: place(sizes.max_logits * SAMPLE_WORDS),
            block_tables: place(sizes.max_seqs * sizes.max_pages),
            lists: place(LIST_WORDS),
            end: place(0),
        };
        Ok(StepMemory {
            sizes,
            device: gpu.alloc::<u32>(layout.end)?,
            n_steps: gpu.upload(&[0u32])?,
            sampled: gpu.upload(&vec![0u32; sizes.max_logits])?,
            sampler: gpu.alloc::<u64>(sizes.max_sampled * SCRATCH_WORDS)?,
            host: Pinned::new(gpu, N_SLOTS * layout.end)?,
            results: Pinned::new(gpu, N_SLOTS * (1 + sizes.max_logits))?,
            logprobs: Pinned::new(gpu, N_SLOTS * sizes.max_logits * LOGPROB_WORDS)?,
            masks: [const { None }; N_SLOTS],
            n_written: 0,
            words: vec![0; layout.end],
            layout,
        })
    }

    pub(crate) fn sizes(&self) -> &StepSizes {
        &self.sizes
    }

    /// Writes `batch` as the next step, padded to `shape`; returns its slot.
    ///
    /// # Panics
    /// If the batch exceeds the shape, or the shape exceeds the memory.
    pub(crate) fn write(
        &mut self,
        batch: &Batch,
        tokens: &[StepToken],
        choices: &Choices,
        shape: &StepShape,
    ) -> usize {
        assert!(
            shape.n_rows <= self.sizes.max_rows
                && shape.n_logits <= self.sizes.max_logits
                && shape.n_seqs <= self.sizes.max_seqs,
            "{shape:?} is within {:?}",
            self.sizes
        );
        let (layout, max_pages) = (&self.layout, self.sizes.max_pages);
        let words = &mut self.words;
        words[STEP_NUMBER] = step_number(batch.step);
        let n_pages = batch.seqs.iter().map(|seq| seq.block_table.len()).max();
        words[N_PAGES] = n_pages.unwrap_or(0) as u32;
        let mut rows = |at: usize, values: &mut dyn Iterator<Item = u32>, len: usize, rest: u32| {
            let values = values.chain(std::iter::repeat(rest));
            words[at..][..len]
                .iter_mut()
                .zip(values)
                .for_each(|(word, value)| *word = value);
        };
        let n_rows = shape.n_rows;
        let ids = tokens.iter().map(|token| match token {
            StepToken::Id(id) => *id,
            StepToken::FromRow(_) => 0,
        });
        rows(layout.tokens, &mut { ids }, n_rows, 0);
        let from_row = tokens.iter().map(|token| match token {
            StepToken::Id(_) => NO_ROW,
            StepToken::FromRow(row) => *row as u32,
        });
        rows(layout.from_row, &mut { from_row }, n_rows, NO_ROW);
        rows(
            layout.positions,
            &mut batch.positions.iter().copied(),
            n_rows,
            0,
        );
        rows(
            layout.slots,
            &mut batch.slots.iter().copied(),
            n_rows,
            NO_ROW,
        );
        let seqs = batch.seqs.iter().enumerate();
        let seq_of_row = seqs.flat_map(|(i, seq)| std::iter::repeat_n(i as u32, seq.n_rows));
        rows(layout.seq_of_row, &mut { seq_of_row }, n_rows, NO_ROW);
        let wanted = batch.logits.iter().map(|wanted| wanted.row as u32);
        rows(layout.logits_rows, &mut { wanted }, shape.n_logits, 0);
        let mut seqs = vec![SeqRows::default(); shape.n_seqs];
        for (rows, seq) in seqs.iter_mut().zip(&batch.seqs) {
            rows.first_row = seq.first_row as u32;
            rows.n_rows = seq.n_rows as u32;
            rows.first_pos = seq.first_pos as u32;
        }
        words[layout.seqs..][..shape.n_seqs * SEQ_WORDS]
            .as_mut_bytes()
            .copy_from_slice(seqs.as_bytes());
        if self.sizes.n_slots > 0 {
            let (seqs, kept) = states_of(batch, shape.n_seqs);
            words[layout.states..][..shape.n_seqs * STATE_WORDS]
                .as_mut_bytes()
                .copy_from_slice(seqs.as_bytes());
            words[layout.kept..][..kept.len() * KEPT_WORDS]
                .as_mut_bytes()
                .copy_from_slice(kept.as_bytes());
        }
        let list = choices.entries.as_bytes();
        words[N_LIST_WORDS] = (list.len() / size_of::<u32>()) as u32;
        if shape.chooser != Chooser::Best {
            // Padding rows are zeros.
            let rows = words[layout.sample_rows..][..shape.n_logits * SAMPLE_WORDS].as_mut_bytes();
            let given = choices.rows.as_bytes();
            rows[..given.len()].copy_from_slice(given);
            rows[given.len()..].fill(0);
            words[layout.lists..].as_mut_bytes()[..list.len()].copy_from_slice(list);
        }
        let tables = words[layout.block_tables..].chunks_exact_mut(max_pages);
        for (table, seq) in tables.zip(&batch.seqs) {
            table[..seq.block_table.len()].copy_from_slice(&seq.block_table);
        }
        let slot = self.n_written % N_SLOTS;
        self.n_written += 1;
        let n_words = layout.block_tables + shape.n_seqs * max_pages;
        self.host.write_at(slot * layout.end, &words[..n_words]);
        let list = &words[layout.lists..][..words[N_LIST_WORDS] as usize];
        self.host.write_at(slot * layout.end + layout.lists, list);
        slot
    }

    /// Writes `masks` [n_masked, mask_words] of the step in `slot`.
    pub(crate) fn write_masks(
        &mut self,
        gpu: &Gpu,
        slot: usize,
        masks: &[u32],
    ) -> Result<(), GpuError> {
        let memory = &mut self.masks[slot];
        if memory
            .as_ref()
            .is_none_or(|memory| memory.len() < masks.len())
        {
            *memory = Some(Pinned::new(gpu, masks.len().next_power_of_two())?);
        }
        memory.as_mut().expect("it was allocated").write(masks);
        Ok(())
    }

    /// Returns the first `n` words of the masks of the step in `slot`.
    pub(crate) fn masks(&self, slot: usize, n: usize) -> Slice<'_, u32> {
        let memory = self.masks[slot].as_ref();
        memory.expect("masks were written").device().part(0..n)
    }

    /// Resets the step counters of host and device; they differ after a step that the device did not run.
    pub(crate) fn restart(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.synchronize()?;
        self.n_written = 0;
        gpu.write(self.n_steps.as_slice(), &[0u32])
    }

    /// Whether the device has run the first kernel of a step, which copies its words. Waits for all work.
    pub(crate) fn has_begun(&self, gpu: &Gpu, step: u64) -> Result<bool, GpuError> {
        Ok(gpu.read(self.words(STEP_NUMBER, 1))? == [step_number(step)])
    }

    /// Returns the operands of the first and the last kernel of a step of `shape`.
    pub(crate) fn io(&self, shape: &StepShape) -> StepWords<'_> {
        StepWords {
            host: self.host.device(),
            n_slots: N_SLOTS,
            words: self.device.as_slice(),
            n_steps: self.n_steps.as_slice(),
            sampled: self.sampled.as_slice(),
            n_words: self.layout.block_tables,
            tokens: self.layout.tokens,
            from_row: self.layout.from_row,
            n_rows: shape.n_rows,
            block_tables: self.layout.block_tables,
            n_seqs: shape.n_seqs,
            max_pages: self.sizes.max_pages,
            lists: self.layout.lists,
            max_list_words: match shape.chooser {
                Chooser::Best => 0,
                Chooser::Sample { .. } => LIST_WORDS,
            },
        }
    }

    /// Returns the operands of the sampler for a step of `shape`.
    pub(crate) fn choices(&self, shape: &StepShape) -> SampleStep<'_> {
        let n_words = shape.n_logits * SAMPLE_WORDS;
        SampleStep {
            rows: self.words(self.layout.sample_rows, n_words).cast(),
            entries: self.words(self.layout.lists, LIST_WORDS).cast(),
            tokens: self.tokens(shape),
            scratch: self.sampler.as_slice(),
        }
    }

    /// Returns the ids that a step of `shape` samples, `[n_logits]`.
    pub(crate) fn sampled(&self, shape: &StepShape) -> Slice<'_, u32> {
        self.sampled.as_slice().part(0..shape.n_logits)
    }

    /// Returns the host memory that the last kernel of a step writes.
    pub(crate) fn results(&self) -> Slice<'_, u32> {
        self.results.device()
    }

    /// Returns the first `n` ids that the completed step in `slot` sampled.
    ///
    /// # Errors
    /// The number found in the slot, if it is not that of `step`.
    pub(crate) fn ids(&self, slot: usize, step: u64, n: usize) -> Result<Vec<u32>, u32> {
        let first = slot * (1 + self.sizes.max_logits);
        let found = self.results.get(first);
        if found != step_number(step) {
            return Err(found);
        }
        Ok((1..=n).map(|i| self.results.get(first + i)).collect())
    }

    /// Returns where the device writes what log-probabilities need.
    pub(crate) fn logprob_rows(&self) -> LogprobRows<'_> {
        LogprobRows {
            host: self.logprobs.device(),
            n_slots: N_SLOTS,
            n_steps: self.n_steps.as_slice(),
        }
    }

    /// Returns the log-probability of the token of an output row of the completed step in `slot`, and the best tokens.
    pub(crate) fn row_logprobs(&self, slot: usize, row: usize) -> (f32, Vec<TokenLogprob>) {
        let first = (slot * self.sizes.max_logits + row) * LOGPROB_WORDS;
        let words = self.logprobs.read(first..first + LOGPROB_WORDS);
        let sum = f64::from_bits(u64::from(words[1]) << 32 | u64::from(words[0]));
        let log_sum_exp = f64::from(f32::from_bits(words[2])) + sum.ln();
        let logprob = |word: u32| (f64::from(f32::from_bits(word)) - log_sum_exp) as f32;
        let best = words[4..].chunks_exact(2);
        let best = best.take_while(|pair| pair[0] != u32::MAX);
        let best = best.map(|pair| TokenLogprob {
            id: pair[0],
            logprob: logprob(pair[1]),
        });
        (logprob(words[3]), best.collect())
    }

    /// Returns the input token ids, `[n_rows]`.
    pub(crate) fn tokens(&self, shape: &StepShape) -> Slice<'_, u32> {
        self.words(self.layout.tokens, shape.n_rows)
    }

    /// Returns the rows whose logits are computed, `[n_logits]`.
    pub(crate) fn logits_rows(&self, shape: &StepShape) -> Slice<'_, u32> {
        self.words(self.layout.logits_rows, shape.n_logits)
    }

    /// Returns the positions, slots, sequences and block tables of a step of `shape`.
    pub(crate) fn step(&self, shape: &StepShape) -> Step<'_> {
        let layout = &self.layout;
        Step {
            positions: self.words(layout.positions, shape.n_rows),
            slots: self.words(layout.slots, shape.n_rows),
            seq_of_row: self.words(layout.seq_of_row, shape.n_rows),
            seqs: self.words(layout.seqs, shape.n_seqs * SEQ_WORDS).cast(),
            block_tables: self.words(layout.block_tables, shape.n_seqs * self.sizes.max_pages),
            max_pages: self.sizes.max_pages,
            max_rows_of_seq: shape.max_rows_of_seq,
            longest: shape.longest,
        }
    }

    /// Returns where the states of a step of `shape` are.
    ///
    /// # Panics
    /// If the memory has no slots.
    pub(crate) fn states(&self, shape: &StepShape) -> States<'_> {
        assert!(self.sizes.n_slots > 0, "there are slots for states");
        let (layout, n_slots) = (&self.layout, self.sizes.n_slots);
        States {
            seqs: self.words(layout.states, shape.n_seqs * STATE_WORDS).cast(),
            kept: self.words(layout.kept, n_slots * KEPT_WORDS).cast(),
        }
    }

    fn words(&self, first: usize, len: usize) -> Slice<'_, u32> {
        self.device.as_slice().part(first..first + len)
    }
}

/// Returns where the state of each of `n_seqs` sequences is, and the copies of all of them.
///
/// # Panics
/// If a sequence of `batch` has no state.
fn states_of(batch: &Batch, n_seqs: usize) -> (Vec<SeqState>, Vec<KeptState>) {
    let mut seqs = vec![SeqState::UNUSED; n_seqs];
    let mut kept = Vec::new();
    for (entry, seq) in seqs.iter_mut().zip(&batch.seqs) {
        let state = seq.state.as_ref().expect("each sequence has a state");
        *entry = SeqState {
            slot: state.slot,
            start: match state.start {
                StateStart::Empty => SeqState::EMPTY,
                StateStart::Slot(slot) => slot,
            },
            first_kept: kept.len() as u32,
            n_kept: state.kept.len() as u32,
        };
        kept.extend(state.kept.iter().map(|kept| KeptState {
            n_rows: kept.n_rows as u32,
            slot: kept.slot,
        }));
    }
    (seqs, kept)
}

/// Returns the 32-bit number of a step on the device. It differs between successive steps, and is not zero (the initial
/// content of memory) for the first 2^32 - 1 steps.
fn step_number(step: u64) -> u32 {
    ((step & u64::from(u32::MAX)) as u32).wrapping_add(1)
}
