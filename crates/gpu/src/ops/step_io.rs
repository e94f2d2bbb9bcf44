//! The first and the last launch of a step (`kernels/step_io.hip`): they copy the step's parameters from the host and
//! its results to the host, through host memory that the device can access. So a step's graph needs no copies.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::memory::{Address, Slice};

/// Threads per block of both kernels.
const THREADS: u32 = 256;

/// Index of the step's number in the words of a step.
pub const STEP_NUMBER: usize = 0;
/// Index of the number of block table pages in use.
pub const N_PAGES: usize = 1;
/// Index of the number of list words in use.
pub const N_LIST_WORDS: usize = 2;

/// The parameter words of steps of one size.
#[derive(Clone, Copy)]
pub struct StepWords<'a> {
    /// Ring of slots in host memory, `[n_slots, slot_words]`. Step `n` uses slot `n % n_slots`.
    pub host: Slice<'a, u32>,
    pub n_slots: usize,
    /// Destination on the device, `[slot_words]`.
    pub words: Slice<'a, u32>,
    /// Number of steps so far, `[1]`.
    pub n_steps: Slice<'a, u32>,
    /// Tokens sampled by each output row of the previous step.
    pub sampled: Slice<'a, u32>,
    /// Number of words before the block tables.
    pub n_words: usize,
    /// Offsets of the tokens, and of the output rows that they come from (`u32::MAX` for known tokens).
    pub tokens: usize,
    pub from_row: usize,
    pub n_rows: usize,
    /// Offset of the block tables, `[n_seqs, max_pages]`.
    pub block_tables: usize,
    pub n_seqs: usize,
    pub max_pages: usize,
    /// Offset of the lists, and their maximum total length. A length of 0 copies no lists.
    pub lists: usize,
    pub max_list_words: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct BeginParams {
    host: Address,
    words: Address,
    sampled: Address,
    n_steps: Address,
    slot_words: u32,
    n_slots: u32,
    n_words: u32,
    tokens: u32,
    from_row: u32,
    n_rows: u32,
    block_tables: u32,
    max_pages: u32,
    n_seqs: u32,
    lists: u32,
    max_list_words: u32,
    pad: u32,
}

layout!(BeginParams {
    host,
    words,
    sampled,
    n_steps,
    slot_words,
    n_slots,
    n_words,
    tokens,
    from_row,
    n_rows,
    block_tables,
    max_pages,
    n_seqs,
    lists,
    max_list_words,
    pad
});

const _: () = assert!(size_of::<BeginParams>() == 80);

#[repr(C)]
#[derive(Clone, Copy)]
struct EndParams {
    ids: Address,
    words: Address,
    host: Address,
    n_steps: Address,
    slot_words: u32,
    n_slots: u32,
    n_ids: u32,
    pad: u32,
}

layout!(EndParams {
    ids,
    words,
    host,
    n_steps,
    slot_words,
    n_slots,
    n_ids,
    pad
});

const _: () = assert!(size_of::<EndParams>() == 48);

kernels! {
    struct StepIoKernels {
        begin_step: BeginParams,
        end_step: EndParams,
    }
}

/// Copies the words of the next step to the device.
///
/// # Panics
/// If arrays exceed their bounds.
pub fn begin_step(gpu: &Gpu, step: &StepWords<'_>) -> Result<(), GpuError> {
    let slot_words = step.words.len();
    assert_eq!(step.host.len(), step.n_slots * slot_words, "whole slots");
    let ends = [
        step.n_words,
        step.tokens + step.n_rows,
        step.from_row + step.n_rows,
        step.block_tables + step.n_seqs * step.max_pages,
        step.lists + step.max_list_words,
    ];
    assert!(
        ends.iter().all(|&end| end <= slot_words) && step.n_words <= step.block_tables,
        "offsets are within the words"
    );
    let n_threads = (step.n_words + step.n_seqs * step.max_pages + step.max_list_words) as u32;
    let params = BeginParams {
        host: step.host.address(),
        words: step.words.address(),
        sampled: step.sampled.address(),
        n_steps: step.n_steps.address(),
        slot_words: slot_words as u32,
        n_slots: step.n_slots as u32,
        n_words: step.n_words as u32,
        tokens: step.tokens as u32,
        from_row: step.from_row as u32,
        n_rows: step.n_rows as u32,
        block_tables: step.block_tables as u32,
        max_pages: step.max_pages as u32,
        n_seqs: step.n_seqs as u32,
        lists: step.lists as u32,
        max_list_words: step.max_list_words as u32,
        pad: 0,
    };
    let grid = [n_threads.div_ceil(THREADS), 1, 1];
    let kernel = &gpu.kernels().step_io.begin_step;
    gpu.launch(kernel, grid, THREADS, 0, &params)
}

/// Writes the step's number and `ids` to its slot of `host` `[n_slots, words]` in host memory, and advances to the next
/// step.
///
/// # Panics
/// If a slot is too small for them.
pub fn end_step(
    gpu: &Gpu,
    step: &StepWords<'_>,
    ids: Slice<'_, u32>,
    host: Slice<'_, u32>,
) -> Result<(), GpuError> {
    let slot_words = host.len() / step.n_slots;
    assert!(ids.len() < slot_words, "the slot is too small");
    let params = EndParams {
        ids: ids.address(),
        words: step.words.address(),
        host: host.address(),
        n_steps: step.n_steps.address(),
        slot_words: slot_words as u32,
        n_slots: step.n_slots as u32,
        n_ids: ids.len() as u32,
        pad: 0,
    };
    let kernel = &gpu.kernels().step_io.end_step;
    gpu.launch(kernel, [1; 3], THREADS, 0, &params)
}
