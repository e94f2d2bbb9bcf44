//! The first and last kernels of a step over several steps, as launches and as a graph, against plain loops.

use crate::common;
use crate::common::any_order;
use rocmforge_gpu::ops::{self, N_LIST_WORDS, N_PAGES, STEP_NUMBER, StepWords};
use rocmforge_gpu::{Buffer, Gpu, Pinned};

const N_SLOTS: usize = 2;
const N_ROWS: usize = 300;
const N_SEQS: usize = 3;
const MAX_PAGES: usize = 5;
const TOKENS: usize = 64;
const FROM_ROW: usize = 384;
const TABLES: usize = 704;
const LISTS: usize = TABLES + N_SEQS * MAX_PAGES + 7;
const LIST_WORDS: usize = 600;
const SLOT_WORDS: usize = LISTS + LIST_WORDS + 5;
const N_IDS: usize = 270;
/// Marks a token that the host knows.
const KNOWN: u32 = u32::MAX;
/// Fills device memory before the first step.
const BEFORE: u32 = 9;

/// The words of step `n` on the host.
fn words(n: u32) -> Vec<u32> {
    let mut words: Vec<u32> = (0..SLOT_WORDS as u32).map(|i| 1000 * (n + 1) + i).collect();
    words[STEP_NUMBER] = 70 + n;
    words[N_PAGES] = 1 + n % MAX_PAGES as u32;
    words[N_LIST_WORDS] = [0, 1, 300, LIST_WORDS as u32, 7][n as usize % 5];
    for row in 0..N_ROWS {
        let is_known = (row + n as usize).is_multiple_of(3);
        words[FROM_ROW + row] = if is_known {
            KNOWN
        } else {
            (row * 7 % N_IDS) as u32
        };
    }
    words
}

/// The ids that the step before step `n` sampled.
fn sampled(n: u32) -> Vec<u32> {
    (0..N_IDS as u32).map(|i| 500_000 + 1000 * n + i).collect()
}

struct Steps {
    host: Pinned<u32>,
    results: Pinned<u32>,
    device: Buffer,
    n_steps: Buffer,
    ids: Buffer,
}

impl Steps {
    fn new(gpu: &Gpu) -> Steps {
        Steps {
            host: Pinned::new(gpu, N_SLOTS * SLOT_WORDS).unwrap(),
            results: Pinned::new(gpu, N_SLOTS * (N_IDS + 1)).unwrap(),
            device: gpu.upload(&[BEFORE; SLOT_WORDS]).unwrap(),
            n_steps: gpu.upload(&[0u32]).unwrap(),
            ids: gpu.alloc::<u32>(N_IDS).unwrap(),
        }
    }

    fn launch(&self, gpu: &Gpu) {
        let step = StepWords {
            host: self.host.device(),
            n_slots: N_SLOTS,
            words: self.device.as_slice(),
            n_steps: self.n_steps.as_slice(),
            sampled: self.ids.as_slice(),
            n_words: TABLES,
            tokens: TOKENS,
            from_row: FROM_ROW,
            n_rows: N_ROWS,
            block_tables: TABLES,
            n_seqs: N_SEQS,
            max_pages: MAX_PAGES,
            lists: LISTS,
            max_list_words: LIST_WORDS,
        };
        ops::begin_step(gpu, &step).unwrap();
        ops::end_step(gpu, &step, self.ids.as_slice(), self.results.device()).unwrap();
    }
}

#[test]
fn copies_step_words_and_token_ids() {
    for gpu in common::gpus() {
        for replayed in [false, true] {
            any_order(|| {
                let mut steps = Steps::new(&gpu);
                let graph = replayed.then(|| {
                    let recorded = gpu.capture(|| {
                        steps.launch(&gpu);
                        Ok(())
                    });
                    recorded.unwrap()
                });
                let mut wanted = vec![BEFORE; SLOT_WORDS];
                for n in 0..5 {
                    let (slot, given) = (n as usize % N_SLOTS, words(n));
                    steps.host.write_at(slot * SLOT_WORDS, &given);
                    gpu.write(steps.ids.as_slice(), &sampled(n)).unwrap();
                    match &graph {
                        Some(graph) => graph.launch().unwrap(),
                        None => steps.launch(&gpu),
                    }
                    wanted[..TABLES].copy_from_slice(&given[..TABLES]);
                    for row in 0..N_ROWS {
                        let from = given[FROM_ROW + row];
                        if from != KNOWN {
                            wanted[TOKENS + row] = sampled(n)[from as usize];
                        }
                    }
                    for at in TABLES..TABLES + N_SEQS * MAX_PAGES {
                        if (at - TABLES) % MAX_PAGES < given[N_PAGES] as usize {
                            wanted[at] = given[at];
                        }
                    }
                    let list = LISTS..LISTS + given[N_LIST_WORDS] as usize;
                    wanted[list.clone()].copy_from_slice(&given[list]);
                    assert_eq!(gpu.read(steps.device.as_slice::<u32>()).unwrap(), wanted);
                    let first = slot * (N_IDS + 1);
                    let results = (first..=first + N_IDS).map(|i| steps.results.get(i));
                    let expected: Vec<u32> = [70 + n].into_iter().chain(sampled(n)).collect();
                    assert_eq!(results.collect::<Vec<u32>>(), expected, "step {n}");
                    assert_eq!(gpu.read(steps.n_steps.as_slice::<u32>()).unwrap(), [n + 1]);
                }
                gpu.read(steps.device.as_slice::<u32>()).unwrap()
            });
        }
    }
}
