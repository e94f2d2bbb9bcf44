//! Target `split`: opens a split model of two parts by its first.
//!
//! Input: the length of the first part (u16, little-endian), the first part, the second part.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rocmforge_gguf::{Gguf, LoadMode};

use crate::gguf::{check_message, read_all};

pub(crate) fn run(data: &[u8]) {
    let Some((len, parts)) = data.split_first_chunk() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes(*len)).min(parts.len());
    let (first, second) = parts.split_at(len);
    let dir = Folder::new();
    let first_path = dir.0.join("m-00001-of-00002.gguf");
    fs::write(&first_path, first).expect("the temporary folder takes files");
    fs::write(dir.0.join("m-00002-of-00002.gguf"), second)
        .expect("the temporary folder takes files");
    match Gguf::open(&first_path, LoadMode::Read) {
        Ok(file) => read_all(&file),
        // Its only text from outside the file is the folder's name.
        Err(error) => check_message(error),
    }
}

/// A temporary folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "rocmforge-fuzz-{}-{}",
            std::process::id(),
            RUNS.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the system cleans its temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}
