//! The books of the cache, which the CPU keeps whatever computes: pages taken as a sequence grows, and pages taken and
//! given back by many sequences of different lengths.

use rocmforge_engine::kv_cache::{BlockPool, BlockTable};

use super::PAGES;
use crate::BenchError;
use crate::case::{Case, On, Prepared, Work, time_cpu};
use crate::values::Random;

/// Tokens that a sequence grows by at a time: one when it generates, the others when a prompt comes in chunks.
const CHUNKS: [usize; 4] = [1, 16, 64, 256];
/// Length of the sequence that grows.
const N_TOKENS: usize = 4096;
/// Sequences at once.
const N_SEQS: usize = 64;
/// Ends of a sequence, each followed by the beginning of another.
const N_CHANGES: usize = 1024;

/// Lengths of sequences, from and to.
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

/// A sequence from nothing to [`N_TOKENS`], `chunk` tokens at a time, as the scheduler does it: the pages are reserved,
/// those that are full can be found by others.
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
                // Another text each time: a known one is found instead of being entered.
                tokens[0] = tokens[0].wrapping_add(1);
                let mut table = BlockTable::default();
                for end in (chunk..=n_tokens).step_by(chunk) {
                    let has_room = table.reserve(&mut pool, end);
                    assert!(has_room, "the pool has the pages of the sequence");
                    table.index_full_pages(&mut pool, &tokens[..end]);
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

/// Sequences that end and begin, and what of their pages holds no token.
fn changing(page: usize, (kind, lengths): (&'static str, [usize; 2])) -> Case {
    let name = format!("fragmentation/{kind}/page-{page}");
    let [least, most] = lengths;
    let shape = format!("{N_SEQS} sequences of {least} to {most} tokens");
    let case = Case::new(name, None, shape, move |_| {
        let mut all = Sequences::new(page, lengths);
        // Enough changes that nothing of the beginning is left.
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

/// Sequences that share a pool.
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

    /// One ends, another begins.
    fn change(&mut self) {
        let at = self.random.below(N_SEQS);
        self.tables[at].0.release(&mut self.pool);
        self.tables[at] = self.begin();
    }

    /// Places of taken pages that hold no token, of all places of taken pages.
    fn unused(&self) -> f64 {
        let places: usize = self.tables.iter().map(|(t, _)| t.blocks().len()).sum();
        let places = places * self.pool.page();
        let tokens: usize = self.tables.iter().map(|(_, n)| n).sum();
        (places - tokens) as f64 / places as f64
    }

    fn check(&self) -> Result<(), BenchError> {
        let tables = self.tables.iter().map(|(table, _)| table.blocks());
        let checked = self.pool.check_integrity(tables);
        checked
            .map_err(|problem| BenchError::Unsupported(format!("the books are wrong: {problem}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last page of a sequence is filled to a random place: half a page is unused on the average.
    #[test]
    fn half_a_page_of_each_sequence_is_unused() {
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
