//! Guesses a kernel's hottest loop from its code, the innermost one with the most dot products and loaded bytes, and
//! estimates its speed if only instruction issue limited it.

use std::collections::BTreeMap;

use super::blocks::{Block, Loop};
use super::code::Instruction;
use super::machine::Machine;
use super::paths::{self, Cycles};
use super::trips::trips;

/// Instruction counts of one turn of a loop, all its blocks, or of the whole kernel if no loop loads.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Bytes loaded per lane from global memory.
    pub(crate) loaded_bytes: u64,
    /// Those of them that are marked non-temporal: weights.
    pub(crate) streamed_bytes: u64,
    pub(crate) dots: u64,
    pub(crate) matrix: u64,
    pub(crate) vector: u64,
    pub(crate) scalar: u64,
    pub(crate) memory: u64,
    pub(crate) shared: u64,
    /// SIMD cycles of the instructions, and of those on the path through a turn with the least beside matrix instructions.
    cycles: Cycles,
    leanest: Option<Cycles>,
    /// Whether it contains a loop of which the code does not say how often it runs: it is counted once.
    pub(crate) has_inner: bool,
}

impl Counts {
    /// Dot and matrix instructions per byte that a lane loads from memory.
    pub(crate) fn dots_per_byte(&self) -> Option<f64> {
        let (bytes, dots) = (self.memory_bytes(), self.dots + self.matrix);
        (bytes > 0 && !self.has_inner).then(|| dots as f64 / bytes as f64)
    }

    /// Shares of the cycles of vector instructions that matrix instructions have: of all blocks, and on the path with the
    /// least beside them. `None` without any. Of the matrix units' peak, the loop reaches at most this where other vector
    /// instructions take the other cycles. CDNA can run those of other waves meanwhile.
    pub(crate) fn matrix_shares(&self) -> Option<[f64; 2]> {
        let share = |cycles: Cycles| cycles.matrix / cycles.vector;
        let leanest = self.leanest.unwrap_or(self.cycles);
        (self.matrix > 0).then(|| [share(self.cycles), share(leanest)])
    }

    /// Bytes that come from memory: weights if the loop loads any, else all.
    pub(crate) fn memory_bytes(&self) -> u64 {
        if self.streamed_bytes > 0 {
            self.streamed_bytes
        } else {
            self.loaded_bytes
        }
    }

    /// Upper bound of the GB/s of these bytes. Instructions of different kinds are issued in parallel, from different
    /// waves, so the most frequent kind decides. `None` without loads, or if an inner loop hides the number.
    pub(crate) fn issue_bandwidth(&self, machine: &Machine, wave_size: u64) -> Option<f64> {
        if self.loaded_bytes == 0 || self.has_inner {
            return None;
        }
        let most = self.scalar.max(self.memory).max(self.shared) as f64 * machine.other_cycles();
        let cycles = self.cycles.vector.max(most).max(1.0);
        let bytes = self.memory_bytes() * wave_size;
        Some(machine.issue_bandwidth(bytes as f64, cycles))
    }
}

/// Returns the counts of the hottest loop.
pub(crate) fn find(
    code: &[Instruction],
    blocks: &[Block],
    loops: &[Loop],
    machine: &Machine,
) -> Counts {
    // Blocks, and how often each runs.
    let count = |blocks_run: &mut dyn Iterator<Item = (usize, u64)>| {
        let mut counts = Counts::default();
        for (number, times) in blocks_run {
            let range = blocks[number].range.clone();
            code[range]
                .iter()
                .for_each(|i| counts.add(i, times, machine));
        }
        counts
    };
    let is_inside = |inner: &Loop, outer: &Loop| {
        inner.blocks.len() < outer.blocks.len() && inner.blocks.is_subset(&outer.blocks)
    };
    let turns: Vec<Option<u64>> = loops.iter().map(|l| trips(code, blocks, l)).collect();
    let all_of = |of: &Loop| {
        let inner = || {
            loops
                .iter()
                .zip(&turns)
                .filter(|(inner, _)| is_inside(inner, of))
        };
        let times = |block: usize| {
            let around = inner().filter(|(inner, _)| inner.blocks.contains(&block));
            around.filter_map(|(_, turns)| *turns).product()
        };
        let mut counts = count(&mut of.blocks.iter().map(|&block| (block, times(block))));
        counts.has_inner = inner().any(|(_, turns)| turns.is_none());
        let cycles = |block| count(&mut [(block, times(block))].into_iter()).cycles;
        counts.leanest = paths::leanest(blocks, of, &cycles);
        counts
    };
    // Scored by the work outside its inner loops: a dot product counts as the four bytes it reads, a matrix instruction
    // as those of a wave.
    let score = |of: &Loop| {
        let within = |block: &usize| {
            let inner = loops.iter().filter(|inner| is_inside(inner, of));
            inner.into_iter().any(|inner| inner.blocks.contains(block))
        };
        let own = { of.blocks.iter() }.filter(|block| !within(block));
        let own = count(&mut own.map(|&block| (block, 1)));
        own.dots * 4 + own.matrix * 64 + own.loaded_bytes
    };
    let hottest = loops
        .iter()
        .map(|l| (score(l), l))
        .filter(|(score, _)| *score > 0)
        .max_by_key(|(score, _)| *score);
    let Some((_, hottest)) = hottest else {
        let mut all = count(&mut (0..blocks.len()).map(|block| (block, 1)));
        all.has_inner = !loops.is_empty();
        return all;
    };
    // If its data come from shared memory, take the loop around it that fills it.
    let around = loops.iter().filter(|outer| is_inside(hottest, outer));
    let mut by_size: Vec<&Loop> = around.chain([hottest]).collect();
    by_size.sort_by_key(|l| l.blocks.len());
    let loading = by_size.into_iter().map(all_of).find(|c| c.loaded_bytes > 0);
    loading.unwrap_or_else(|| all_of(hottest))
}

impl Counts {
    fn add(&mut self, instruction: &Instruction, times: u64, machine: &Machine) {
        let name = instruction.mnemonic.as_str();
        let loaded = times * instruction.loaded_bytes().unwrap_or(0);
        self.loaded_bytes += loaded;
        self.streamed_bytes += u64::from(instruction.is_streamed()) * loaded;
        self.dots += times * u64::from(instruction.is_dot());
        self.matrix += times * u64::from(instruction.is_matrix());
        if name.starts_with("v_") {
            self.vector += times;
            let cycles = times as f64 * machine.vector_cycles(name);
            self.cycles.vector += cycles;
            if instruction.is_matrix() {
                self.cycles.matrix += cycles;
            }
        } else if name.starts_with("ds_") {
            self.shared += times;
        } else if ["global_", "flat_", "buffer_", "scratch_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            self.memory += times;
        } else if !["s_wait", "s_nop", "s_delay", "s_clause"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            self.scalar += times;
        }
    }
}

/// Counts a kernel's loads by width in bytes.
pub(crate) fn load_widths(code: &[Instruction], blocks: &[Block]) -> BTreeMap<u64, usize> {
    let mut widths = BTreeMap::new();
    for block in blocks {
        for bytes in code[block.range.clone()]
            .iter()
            .filter_map(Instruction::loaded_bytes)
        {
            *widths.entry(bytes).or_default() += 1;
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa_report::{blocks, code, machine};

    /// A matrix instruction of 8 cycles beside 8 of one cycle each, and other kinds, which are issued beside them.
    #[test]
    fn other_vector_instructions_limit_the_matrix_units() {
        let line = |name: &str| format!("\t{name} v0, v1 // 000000001600: 00000000\n");
        let others = line("v_fma_f32").repeat(8) + &line("ds_load_b128");
        let text = "0000000000001600 <kernel>:\n".to_string() + &others;
        let with_matrix = text.clone() + &line("v_wmma_i32_16x16x16_iu8");
        let counts = |text: &str| {
            let mut counts = Counts::default();
            for instruction in &code::parse(text)[0].instructions {
                counts.add(instruction, 1, machine::of("gfx1201").unwrap());
            }
            counts
        };
        assert_eq!(counts(&with_matrix).matrix_shares(), Some([0.5; 2]));
        assert_eq!(counts(&text).matrix_shares(), None);
    }

    #[test]
    fn inner_loops_count_as_often_as_they_run() {
        let counts = |step: &str| {
            let code = code::code_of(&[
                "s_mov_b32 s0, 0",
                "global_load_b128 v[0:3], v[4:5], off",
                "s_mov_b32 s1, 0",
                "v_wmma_i32_16x16x16_iu8 v[8:15], v[0:1], v[2:3], 0",
                step,
                "s_cmp_lg_u32 s1, 4",
                "s_cbranch_scc1 @3",
                "s_cmp_lg_u32 s0, s2",
                "s_cbranch_scc1 @1",
                "s_endpgm",
            ]);
            let blocks = blocks::blocks(&code).unwrap();
            let machine = machine::of("gfx1201").unwrap();
            find(&code, &blocks, &blocks::loops(&blocks), machine)
        };
        let known = counts("s_add_co_i32 s1, s1, 1");
        assert_eq!(
            (known.matrix, known.loaded_bytes, known.has_inner),
            (4, 16, false)
        );
        let unknown = counts("s_add_co_i32 s1, s1, s3");
        assert_eq!(
            (unknown.matrix, unknown.loaded_bytes, unknown.has_inner),
            (1, 16, true)
        );
    }
}
