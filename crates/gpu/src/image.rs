//! The kernel images of this build.

use std::borrow::Cow;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use crate::error::GpuError;

/// A compiled kernel module for one target.
pub struct Image {
    /// e.g. `gfx1100`, `sm_90a`, `host-nv`.
    pub target: &'static str,
    /// e.g. `norm`, `matvec.Q4_K`.
    pub module: &'static str,
    packed: Part,
    /// Machine code of the same module, if the build had an assembler.
    assembled: Option<Part>,
}

/// A compressed image in the archive.
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    len: usize,
    /// Hash of the compressed bytes.
    hash: u64,
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// Returns all images, by module and target.
pub fn images() -> &'static [Image] {
    IMAGES
}

/// Returns the versions of the compilers that made the images, each with the targets: clang, and ptxas where a target's
/// images were assembled.
pub fn compilers() -> &'static [(&'static str, &'static str)] {
    COMPILERS
}

/// Returns the targets that were requested but could not be built, each with the reason.
pub fn left_out() -> &'static [(&'static str, &'static str)] {
    LEFT_OUT
}

/// The file that kernels are read from in a development build. `None`: they are embedded in the program, as in every
/// release build and where `ROCMFORGE_EMBED_KERNELS=1` was set.
pub fn kernel_archive() -> Option<&'static str> {
    EMBEDDED.is_none().then_some(ARCHIVE)
}

/// Returns a hash of the kernels for `target`, to tell builds apart.
pub fn fingerprint(target: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    for image in IMAGES.iter().filter(|image| image.target == target) {
        let assembled = image.assembled.as_ref().map(|part| part.hash);
        (image.module, image.packed.hash, assembled).hash(&mut hash);
    }
    hash.finish()
}

impl Image {
    pub(crate) fn find(target: &str, module: &str) -> Option<&'static Image> {
        IMAGES
            .iter()
            .find(|image| image.target == target && image.module == module)
    }

    /// Whether two images have the same bytes. Emulated GPUs share images whose preprocessed source is equal.
    pub fn is_same(&self, other: &Image) -> bool {
        let key = |part: &Part| (part.start, part.len);
        key(&self.packed) == key(&other.packed)
            && self.assembled.as_ref().map(key) == other.assembled.as_ref().map(key)
    }

    /// Returns the decompressed image as the compiler wrote it.
    ///
    /// # Errors
    /// [`GpuError::DamagedImage`].
    pub fn unpack(&self) -> Result<Vec<u8>, GpuError> {
        self.unpacked(&self.packed)
    }

    /// Checks that the image, and its machine code if there is one, are as they were built.
    ///
    /// # Errors
    /// [`GpuError::DamagedImage`].
    pub fn verify(&self) -> Result<(), GpuError> {
        self.unpack()?;
        self.unpack_assembled()?;
        Ok(())
    }

    /// Returns the image as machine code, if the compiler emitted something else and the build had an assembler.
    /// Drivers older than the assembler reject it.
    ///
    /// # Errors
    /// [`GpuError::DamagedImage`].
    pub fn unpack_assembled(&self) -> Result<Option<Vec<u8>>, GpuError> {
        let part = self.assembled.as_ref();
        part.map(|part| self.unpacked(part)).transpose()
    }

    fn unpacked(&self, part: &Part) -> Result<Vec<u8>, GpuError> {
        let unpacked = part.packed().and_then(|packed| part.unpack(&packed));
        unpacked.map_err(|reason| GpuError::DamagedImage {
            target: self.target,
            module: self.module,
            reason,
        })
    }
}

impl Part {
    /// Returns the compressed bytes.
    fn packed(&self) -> Result<Cow<'static, [u8]>, String> {
        match EMBEDDED {
            Some(archive) => Ok(Cow::Borrowed(&archive[self.start..self.start + self.len])),
            None => self.read().map(Cow::Owned),
        }
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        // Stays open while the program runs, since a later build removes the file.
        static FILE: OnceLock<Result<File, String>> = OnceLock::new();
        let open = || File::open(ARCHIVE).map_err(|error| format!("{ARCHIVE}: {error}"));
        let file = FILE.get_or_init(open).as_ref().map_err(String::clone)?;
        let mut packed = vec![0; self.len];
        file.read_exact_at(&mut packed, self.start as u64)
            .map_err(|error| format!("{ARCHIVE}: {error}"))?;
        Ok(packed)
    }

    /// Decompresses these bytes if they are those of the build.
    fn unpack(&self, packed: &[u8]) -> Result<Vec<u8>, String> {
        let mut hash = DefaultHasher::new();
        hash.write(packed);
        if hash.finish() != self.hash {
            return Err("their content has changed".into());
        }
        lz4_flex::decompress_size_prepended(packed).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte of any image may change, or one of its machine code.
    #[test]
    fn every_damaged_image_is_noticed() {
        if images().is_empty() {
            return println!("skipped: built without images");
        }
        for image in images() {
            assert_eq!(image.verify(), Ok(()));
            for part in [Some(image.packed), image.assembled].into_iter().flatten() {
                let mut packed = part.packed().unwrap().into_owned();
                for at in [0, part.len / 2, part.len - 1] {
                    packed[at] ^= 1;
                    let error = part.unpack(&packed).unwrap_err();
                    assert_eq!(error, "their content has changed");
                    packed[at] ^= 1;
                }
            }
        }
    }

    #[test]
    fn the_error_names_the_image() {
        let Some(image) = images().first() else {
            return println!("skipped: built without images");
        };
        let damaged = Image {
            packed: Part {
                hash: image.packed.hash ^ 1,
                ..image.packed
            },
            ..*image
        };
        let error = damaged.verify().unwrap_err().to_string();
        let named = format!("{} for {} are damaged", image.module, image.target);
        assert!(error.contains(&named), "{error}");
    }
}
