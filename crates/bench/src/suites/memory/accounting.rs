//! KV-cache accounting, which always runs on the CPU: pages allocated as a sequence grows, and pages allocated and
//! freed by many sequences of different lengths.

use rocmforge_engine::kv_cache::{BlockPool, BlockTable};

use super::PAGES;
use crate::case::{Case, On, Prepared, Work, time_cpu};
use crate::error::BenchError;
use crate::values::Random;

/// Tokens a sequence grows by at a time: one in decode, more with prompt chunks.
const CHUNKS: [usize; 4] = [1, 16, 64, 256];
/// Final length of the growing sequence.
const N_TOKENS: usize = 4096;
/// Sequences at a time.
const N_SEQS: usize = 64;
/// Number of times a sequence ends and another begins.
const N_CHANGES: usize = 1024;

/// Ranges of sequence lengths.
const LENGTHS: [(&str, [usize; 2]); 3] = [
    ("short", [1, 128]),
    ("mixed", [1, 2048]),
    ("long", [2048, 8192]),
];

pub(super) fn cases() -> Vec<Case> {
    let growing = CHUNKS
        .into_iter()
        .flat_map(|chunk| PAGES.map(|page| growing(page, chunk)));
    let changing = LENGTHS
        .into_iter()
        .flat_map(|lengths| PAGES.map(|page| changing(page, lengths)));
    growing.chain(changing).collect()
}

/// Grows a sequence from nothing to [`N_TOKENS`], `chunk` tokens at a time, as the scheduler does: pages are reserved,
/// and full ones are entered into the prefix cache.
fn growing(page: usize, chunk: usize) -> Case {
    let n_tokens = N_TOKENS;
    let name = format!("allocation/{chunk}-tokens/page-{page}");
    let shape = format!("{n_tokens} tokens by {chunk}");
    let case = Case::new(name, None, shape, move |_| {
        let mut pool = BlockPool::new(n_tokens.div_ceil(page), page);
        let mut tokens: Vec<u32> = (0..n_tokens as u32).collect();
        let work = Work {
            tokens: n_tokens as u64,
            ..Work::default()
        };
        let prepared = Prepared::new(work, move |n| {
            time_cpu(n, || {
                // Different tokens each time: a known prefix would be found instead of entered.
                tokens[0] = tokens[0].wrapping_add(1);
                let mut table = BlockTable::default();
                for end in (chunk..=n_tokens).step_by(chunk) {
                    let has_room = table.reserve(&mut pool, end);
                    assert!(has_room, "the pool has the pages of the sequence");
                    table.index_full_blocks(&mut pool, &tokens[..end]);
                }
                table.release(&mut pool);
            })
        });
        Ok(prepared
            .metric("allocations", n_tokens.div_ceil(chunk.max(page)) as f64)
            .metric("calls", (n_tokens / chunk) as f64)
            .metric("pages", n_tokens.div_ceil(page) as f64))
    });
    on_cpu_only(case)
}

/// Sequences that end and begin, and the unused share of their pages.
fn changing(page: usize, (kind, lengths): (&'static str, [usize; 2])) -> Case {
    let name = format!("fragmentation/{kind}/page-{page}");
    let [least, most] = lengths;
    let shape = format!("{N_SEQS} sequences of {least} to {most} tokens");
    let case = Case::new(name, None, shape, move |_| {
        let mut all = Sequences::new(page, lengths);
        // Enough changes to replace all initial sequences.
        let mut unused = 0.0;
        for _ in 0..N_CHANGES {
            all.change();
            unused += all.unused() / N_CHANGES as f64;
        }
        all.check()?;
        let work = Work {
            elements: N_CHANGES as u64,
            ..Work::default()
        };
        let prepared = Prepared::new(work, move |n| {
            time_cpu(n, || (0..N_CHANGES).for_each(|_| all.change()))
        });
        Ok(prepared.metric("fragmentation", unused))
    });
    on_cpu_only(case)
}

fn on_cpu_only(case: Case) -> Case {
    Case {
        on: On::Cpu,
        ..case
    }
}

/// Sequences that share a page pool.
struct Sequences {
    pool: BlockPool,
    tables: Vec<(BlockTable, usize)>,
    lengths: [usize; 2],
    random: Random,
}

impl Sequences {
    fn new(page: usize, lengths: [usize; 2]) -> Sequences {
        let n_blocks = N_SEQS * lengths[1].div_ceil(page);
        let mut all = Sequences {
            pool: BlockPool::new(n_blocks, page),
            tables: Vec::new(),
            lengths,
            random: Random(5),
        };
        for _ in 0..N_SEQS {
            let begun = all.begin();
            all.tables.push(begun);
        }
        all
    }

    fn begin(&mut self) -> (BlockTable, usize) {
        let [least, most] = self.lengths;
        let n_tokens = least + self.random.below(most - least + 1);
        let mut table = BlockTable::default();
        let has_room = table.reserve(&mut self.pool, n_tokens);
        assert!(has_room, "the pool has the pages of the longest sequences");
        (table, n_tokens)
    }

    /// Ends one sequence and begins another.
    fn change(&mut self) {
        let at = self.random.below(N_SEQS);
        self.tables[at].0.release(&mut self.pool);
        self.tables[at] = self.begin();
    }

    /// Returns the share of slots in used pages that hold no token.
    fn unused(&self) -> f64 {
        let places: usize = self.tables.iter().map(|(t, _)| t.blocks().len()).sum();
        let places = places * self.pool.page();
        let tokens: usize = self.tables.iter().map(|(_, n)| n).sum();
        (places - tokens) as f64 / places as f64
    }

    fn check(&self) -> Result<(), BenchError> {
        let held = self.tables.iter().flat_map(|(table, _)| table.blocks());
        let checked = self.pool.check_integrity(held);
        checked.map_err(|problem| {
            BenchError::Unsupported(format!("KV-cache accounting is inconsistent: {problem}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last page of a sequence is filled to a random slot, so half a page is unused on average.
    #[test]
    fn half_a_page_per_sequence_is_unused() {
        for page in PAGES {
            let lengths = [2048, 8192];
            let mut all = Sequences::new(page, lengths);
            let mut mean = 0.0;
            for _ in 0..2000 {
                all.change();
                mean += all.unused() / 2000.0;
            }
            all.check().unwrap();
            let half = (page as f64 - 1.0) / 2.0;
            let expected = half / (half + 5120.0);
            assert!(
                (mean / expected - 1.0).abs() < 0.1,
                "{page}: {mean} {expected}"
            );
        }
    }
}
