//! Random mutations of known inputs, as the havoc stage of AFL, without coverage feedback. The same seed gives the same
//! inputs.

/// Boundary values of integers.
const EDGES: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 60,
    u64::MAX,
];

/// Generates inputs by mutating known ones.
pub struct Mutator {
    state: u64,
    max_bytes: usize,
}

impl Mutator {
    /// Returns a generator of inputs of at most `max_bytes`.
    pub fn new(seed: u64, max_bytes: usize) -> Mutator {
        Mutator {
            // xorshift never leaves the state 0.
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            max_bytes,
        }
    }

    /// Returns a mutated copy of one of `corpus`.
    ///
    /// # Panics
    /// If `corpus` is empty.
    pub fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut data = corpus[self.below(corpus.len())].clone();
        for _ in 0..1 << self.below(5) {
            self.edit(&mut data, corpus);
        }
        data.truncate(self.max_bytes);
        data
    }

    fn edit(&mut self, data: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        if data.is_empty() {
            data.push(self.next() as u8);
        }
        let at = self.below(data.len());
        let len = 1 + self.below(16.min(data.len() - at));
        match self.below(8) {
            0 => data[at] ^= 1 << self.below(8),
            1 => data[at] = self.next() as u8,
            2 => {
                let width = 1 << self.below(4);
                let value = EDGES[self.below(EDGES.len())].to_le_bytes();
                let end = data.len().min(at + width);
                data[at..end].copy_from_slice(&value[..end - at]);
            }
            3 => data[at] = data[at].wrapping_add(self.below(33) as u8).wrapping_sub(16),
            4 => drop(data.drain(at..at + len)),
            5 => {
                let copy = data[at..at + len].to_vec();
                let to = self.below(data.len());
                data.splice(to..to, copy);
            }
            6 => {
                let bytes: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
                data.splice(at..at, bytes);
            }
            _ => {
                let other = &corpus[self.below(corpus.len())];
                if !other.is_empty() {
                    let from = self.below(other.len());
                    let to = (from + 1 + self.below(64)).min(other.len());
                    data.splice(at..at, other[from..to].iter().copied());
                }
            }
        }
    }

    /// Returns a number below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Marsaglia's xorshift64.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}
