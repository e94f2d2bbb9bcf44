//! The kernel images embedded in this program.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A compiled kernel module for one target, compressed.
pub struct Image {
    /// e.g. `gfx1100`, `sm_90a`, `host-nv`.
    pub target: &'static str,
    /// e.g. `norm`, `matvec.Q4_K`.
    pub module: &'static str,
    packed: &'static [u8],
    /// Machine code of the same module, if the build had an assembler.
    assembled: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// Returns all images, by module and target.
pub fn images() -> &'static [Image] {
    IMAGES
}

/// Returns the targets that were requested but could not be built, each with the reason.
pub fn left_out() -> &'static [(&'static str, &'static str)] {
    LEFT_OUT
}

/// Returns a hash of the kernels for `target`, to tell builds apart.
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

    /// Returns the decompressed image as the compiler wrote it.
    pub fn unpack(&self) -> Vec<u8> {
        unpack(self.packed)
    }

    /// Returns the image as machine code, if the compiler emitted something else and the build had an assembler.
    /// Drivers older than the assembler reject it.
    pub fn unpack_assembled(&self) -> Option<Vec<u8>> {
        self.assembled.map(unpack)
    }
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    lz4_flex::decompress_size_prepended(packed).expect("the build script compressed the image")
}
