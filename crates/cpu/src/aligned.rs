//! f32 buffers aligned to cache lines, so that no vector load crosses a line.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// f32 values per cache line.
const LINE: usize = 16;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// A growable f32 slice of whole cache lines.
#[derive(Clone, Debug)]
pub(crate) struct Floats(Vec<Line>);

impl Floats {
    pub(crate) const fn new() -> Floats {
        Floats(Vec::new())
    }

    /// Resizes to `len` values, rounded up to whole lines; new values are 0.
    pub(crate) fn resize(&mut self, len: usize) {
        let n_lines = len.div_ceil(LINE);
        self.0.resize(n_lines, Line([0.0; LINE]));
    }
}

impl Deref for Floats {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        <[f32]>::ref_from_bytes(self.0.as_bytes()).expect("lines are whole f32")
    }
}

impl DerefMut for Floats {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        <[f32]>::mut_from_bytes(self.0.as_mut_bytes()).expect("lines are whole f32")
    }
}
