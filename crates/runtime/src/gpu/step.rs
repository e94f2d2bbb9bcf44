//! What the device knows of a step: words at fixed places of one buffer. The host writes them to memory that the device
//! reads; the first kernel of a step takes them over, the last one writes back what was chosen.

use rocmforge_gpu::ops::{
    N_LIST_WORDS, N_PAGES, STEP_NUMBER, SampleEntry, SampleRow, SampleStep, StepWords,
};
use rocmforge_gpu::{Buffer, Gpu, GpuError, Pinned, SeqRows, Slice, Step};
use zerocopy::IntoBytes as _;

use super::choices::{Choices, Chooser, MAX_ENTRIES};
use rocmforge_plan::Batch;

/// A row that only fills up a step, as kernels know it; or a token that is known.
const NO_ROW: u32 = u32::MAX;
/// Arrays begin at multiples of this many words.
const ALIGN: usize = 64;
/// Words of [`SeqRows`].
const SEQ_WORDS: usize = size_of::<SeqRows>() / size_of::<u32>();
/// Words of [`SampleRow`] and of all [`SampleEntry`]s.
const SAMPLE_WORDS: usize = size_of::<SampleRow>() / size_of::<u32>();
const LIST_WORDS: usize = MAX_ENTRIES * size_of::<SampleEntry>() / size_of::<u32>();
/// Steps that may be in flight.
pub(crate) const N_SLOTS: usize = 2;

/// The largest step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepSizes {
    pub(crate) max_rows: usize,
    pub(crate) max_logits: usize,
    pub(crate) max_seqs: usize,
    /// Pages of one sequence.
    pub(crate) max_pages: usize,
}

/// How many of everything a step has, rows that only fill it up included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    pub(crate) n_rows: usize,
    pub(crate) n_logits: usize,
    pub(crate) n_seqs: usize,
    pub(crate) max_rows_of_seq: usize,
    pub(crate) chooser: Chooser,
}

impl StepShape {
    /// That of `batch` as it is.
    pub(crate) fn of(batch: &Batch, chooser: Chooser) -> StepShape {
        StepShape {
            n_rows: batch.tokens.len(),
            n_logits: batch.logits.len(),
            n_seqs: batch.seqs.len(),
            max_rows_of_seq: batch.seqs.iter().map(|seq| seq.n_rows).max().unwrap_or(0),
            chooser,
        }
    }

    /// A step of generation for `n` sequences: each has one row, and its logits are wanted.
    pub(crate) fn decode(n: usize, chooser: Chooser) -> StepShape {
        StepShape {
            n_rows: n,
            n_logits: n,
            n_seqs: n,
            max_rows_of_seq: 1,
            chooser,
        }
    }
}

/// A token of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepToken {
    Id(u32),
    /// What this output row of the step before sampled, which only the device knows so far.
    FromRow(usize),
}

/// Where each array begins, in words. The first ones are the step's number, and the pages and the list in use.
struct Layout {
    tokens: usize,
    from_row: usize,
    positions: usize,
    slots: usize,
    seq_of_row: usize,
    logits_rows: usize,
    seqs: usize,
    sample_rows: usize,
    block_tables: usize,
    lists: usize,
    end: usize,
}

/// The words of a step on the device and on the host.
pub(crate) struct StepMemory {
    sizes: StepSizes,
    layout: Layout,
    device: Buffer,
    /// Steps so far, as the device counts them.
    n_steps: Buffer,
    /// What the last step sampled, `[max_logits]`.
    sampled: Buffer,
    /// `[N_SLOTS, layout.end]`.
    host: Pinned<u32>,
    /// `[N_SLOTS, 1 + max_logits]`: number and ids of a step.
    results: Pinned<u32>,
    /// As the host counts them.
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
        let layout = Layout {
            tokens: place(sizes.max_rows),
            from_row: place(sizes.max_rows),
            positions: place(sizes.max_rows),
            slots: place(sizes.max_rows),
            seq_of_row: place(sizes.max_rows),
            logits_rows: place(sizes.max_logits),
            seqs: place(sizes.max_seqs * SEQ_WORDS),
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
            host: Pinned::new(gpu, N_SLOTS * layout.end)?,
            results: Pinned::new(gpu, N_SLOTS * (1 + sizes.max_logits))?,
            n_written: 0,
            words: vec![0; layout.end],
            layout,
        })
    }

    /// Writes `batch` as a step of `shape`, with these tokens and choices, for the step that begins next; its slot.
    ///
    /// # Panics
    /// If the batch is larger than the shape, or the shape than the memory.
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
        let list = choices.entries.as_bytes();
        words[N_LIST_WORDS] = (list.len() / size_of::<u32>()) as u32;
        if shape.chooser == Chooser::Sample {
            // A row of zeros only fills up a step.
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

    /// Counts steps anew, on both sides: what the host began may not have run.
    pub(crate) fn restart(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.synchronize()?;
        self.n_written = 0;
        gpu.write(self.n_steps.as_slice(), &[0u32])
    }

    /// What the first and the last kernel of a step of `shape` take.
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
                Chooser::Sample => LIST_WORDS,
            },
        }
    }

    /// How the rows of a step of `shape` are sampled.
    pub(crate) fn choices(&self, shape: &StepShape) -> SampleStep<'_> {
        let n_words = shape.n_logits * SAMPLE_WORDS;
        SampleStep {
            rows: self.words(self.layout.sample_rows, n_words).cast(),
            entries: self.words(self.layout.lists, LIST_WORDS).cast(),
            tokens: self.tokens(shape),
        }
    }

    /// Where a step of `shape` leaves what it sampled, `[n_logits]`.
    pub(crate) fn sampled(&self, shape: &StepShape) -> Slice<'_, u32> {
        self.sampled.as_slice().part(0..shape.n_logits)
    }

    /// Where the last kernel of a step writes.
    pub(crate) fn results(&self) -> Slice<'_, u32> {
        self.results.device()
    }

    /// The first `n` ids that the step in `slot` sampled, if it was that of `batch`. It is over.
    pub(crate) fn ids(&self, slot: usize, step: u64, n: usize) -> Result<Vec<u32>, u32> {
        let first = slot * (1 + self.sizes.max_logits);
        let found = self.results.get(first);
        if found != step_number(step) {
            return Err(found);
        }
        Ok((1..=n).map(|i| self.results.get(first + i)).collect())
    }

    /// Ids of the input, `[n_rows]`.
    pub(crate) fn tokens(&self, shape: &StepShape) -> Slice<'_, u32> {
        self.words(self.layout.tokens, shape.n_rows)
    }

    /// The rows whose logits are wanted, `[n_logits]`.
    pub(crate) fn logits_rows(&self, shape: &StepShape) -> Slice<'_, u32> {
        self.words(self.layout.logits_rows, shape.n_logits)
    }

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
        }
    }

    fn words(&self, first: usize, len: usize) -> Slice<'_, u32> {
        self.device.as_slice().part(first..first + len)
    }
}

/// What stands for a step's number on the device; it tells neighbours apart, and is not what memory begins with.
fn step_number(step: u64) -> u32 {
    ((step & u64::from(u32::MAX)) as u32).wrapping_add(1)
}
