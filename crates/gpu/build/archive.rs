//! The file of all images of a build, compressed, and the Rust table that says where each is. A release embeds the
//! file; a development build reads it from where the build left it, so that its many test programs stay small.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    /// Parts by their content: equal images are stored once.
    parts: HashMap<Vec<u8>, Part>,
}

/// Where an image is in the archive.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    start: usize,
    len: usize,
    hash: u64,
}

impl Part {
    /// The expression of type `Part` in `src/image.rs`.
    pub(crate) fn source(&self) -> String {
        let Part { start, len, hash } = self;
        format!("Part {{ start: {start}, len: {len}, hash: {hash:#x} }}")
    }
}

impl Archive {
    pub(crate) fn add(&mut self, image: Vec<u8>) -> Part {
        if let Some(part) = self.parts.get(&image) {
            return *part;
        }
        let part = Part {
            start: self.bytes.len(),
            len: image.len(),
            hash: hash(&image),
        };
        self.bytes.extend(&image);
        self.parts.insert(image, part);
        part
    }

    /// Writes the archive to `out` and returns the items of `src/image.rs` that refer to it.
    pub(crate) fn write(&self, out: &Path) -> io::Result<String> {
        // Named by its content: a program never reads the archive of a later build.
        let path = out.join(format!("kernels-{:016x}.bin", hash(&self.bytes)));
        for older in archives(out) {
            if older != path {
                fs::remove_file(older)?;
            }
        }
        if !path.exists() {
            let part = path.with_extension("part");
            fs::write(&part, &self.bytes)?;
            fs::rename(&part, &path)?;
        }
        let embedded = match embeds() {
            true => format!("Some(include_bytes!({path:?}))"),
            false => "None".into(),
        };
        Ok(format!(
            "static EMBEDDED: Option<&[u8]> = {embedded};\nstatic ARCHIVE: &str = {path:?};\n"
        ))
    }
}

/// Whether the program has the images in it: in release builds, or where `ROCMFORGE_EMBED_KERNELS` is 1.
fn embeds() -> bool {
    let asked = env::var("ROCMFORGE_EMBED_KERNELS").unwrap_or_default();
    asked == "1" || env::var("PROFILE").as_deref() == Ok("release")
}

fn archives(out: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(out).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("kernels-") && name.ends_with(".bin")
    })
}

/// `src/image.rs` computes the same.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    hash.write(bytes);
    hash.finish()
}
