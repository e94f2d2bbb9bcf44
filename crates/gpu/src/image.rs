//! The kernel images in this program.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A compiled module for one target, compressed.
pub struct Image {
    /// e.g. `gfx1100`, `sm_90a`, `host-nv`.
    pub target: &'static str,
    /// e.g. `norm`, `matvec.Q4_K`.
    pub module: &'static str,
    packed: &'static [u8],
    /// The same as machine code.
    assembled: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// All images, by module and target.
pub fn images() -> &'static [Image] {
    IMAGES
}

/// Targets that this build was asked for and could not make, each with the reason.
pub fn left_out() -> &'static [(&'static str, &'static str)] {
    LEFT_OUT
}

/// A number that differs between builds whose kernels for `target` do.
pub fn fingerprint(target: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    for image in IMAGES.iter().filter(|image| image.target == target) {
        (image.module, image.packed, image.assembled).hash(&mut hash);
    }
    hash.finish()
}

impl Image {
    pub(crate) fn find(target: &str, module: &str) -> Option<&'static Image> {
        IMAGES
            .iter()
            .find(|image| image.target == target && image.module == module)
    }

    /// The image as the compiler wrote it.
    pub fn unpack(&self) -> Vec<u8> {
        unpack(self.packed)
    }

    /// The image as machine code, where the compiler's is not and the build had an assembler. Drivers older than that
    /// do not take it.
    pub fn unpack_assembled(&self) -> Option<Vec<u8>> {
        self.assembled.map(unpack)
    }
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    lz4_flex::decompress_size_prepended(packed).expect("the build compressed it")
}
