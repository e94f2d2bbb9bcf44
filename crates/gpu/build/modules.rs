//! What to compile: the modules that the kernel sources make.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{Hash as _, Hasher};
use std::path::{Path, PathBuf};

include!("../../gguf/src/computed.rs");
include!("../src/kv_types.rs");

macro_rules! names {
    ($($name:ident $lower:ident),*) => { &[$(stringify!($name)),*] };
}

/// Formats that `kernels/format/*.hip` are compiled for, one module each.
const FORMATS: &[&str] = computed_formats!(names);

/// The one of them whose weights do not become f16 numbers. `kernels/hopper/format/*.hip` are compiled for the others.
const FULL: &str = "F32";

/// Those that are not quantized. `kernels/hopper/quantized/*.hip` are compiled for the others.
const FLOATS: [&str; 3] = [FULL, "F16", "BF16"];

macro_rules! types {
    ($($name:ident: $keys:ident $values:ident),*) => {
        &[$([stringify!($name), stringify!($keys), stringify!($values)]),*]
    };
}

/// Types of the cache that `kernels/kv/*.hip` and `kernels/hopper/kv/*.hip` are compiled for, one module each: the name, those
/// of keys and of values.
const KV_TYPES: &[[&str; 3]] = kv_types!(types);

/// A source file, the module made of it, and what is defined for it.
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) name: String,
    pub(crate) defines: Vec<String>,
    /// The targets that it is for; `None` for all.
    pub(crate) only: Option<&'static [&'static str]>,
}

/// The targets of `kernels/hopper`: Hopper, and the emulated GPU with NVIDIA's units.
const HOPPER: &[&str] = &["sm_90a", "host-nv"];

impl Module {
    pub(crate) fn is_for(&self, target: &str) -> bool {
        self.only.is_none_or(|only| only.contains(&target))
    }

    /// Adds the text of the source and of the headers that it includes from the folder `kernels`.
    pub(crate) fn hash(&self, kernels: &Path, hash: &mut impl Hasher) {
        hash_sources(&self.file, kernels, &mut BTreeSet::new(), hash);
    }
}

fn hash_sources(file: &Path, kernels: &Path, seen: &mut BTreeSet<PathBuf>, hash: &mut impl Hasher) {
    if !seen.insert(file.to_path_buf()) {
        return;
    }
    // What cannot be read, the compiler will name.
    let text = fs::read_to_string(file).unwrap_or_default();
    text.hash(hash);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("#include \"") {
            let name = name.trim_end_matches('"');
            hash_sources(&kernels.join(name), kernels, seen, hash);
        }
    }
}

/// The modules of the folder `kernels`.
pub(crate) fn all(kernels: &Path) -> Vec<Module> {
    let stem = |file: &Path| {
        file.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let plain = hip_files(kernels).into_iter().map(|file| Module {
        name: stem(&file),
        defines: Vec::new(),
        file,
        only: None,
    });
    let mut all: Vec<Module> = plain.collect();
    let hopper = hip_files(&kernels.join("hopper")).into_iter();
    all.extend(hopper.map(|file| Module {
        name: stem(&file),
        defines: Vec::new(),
        file,
        only: Some(HOPPER),
    }));
    for (folder, without, only) in [
        ("format", [].as_slice(), None),
        ("hopper/format", &[FULL], Some(HOPPER)),
        ("hopper/quantized", &FLOATS, Some(HOPPER)),
    ] {
        let formats = || FORMATS.iter().filter(|&format| !without.contains(format));
        for file in hip_files(&kernels.join(folder)) {
            all.extend(formats().map(|format| Module {
                name: format!("{}.{format}", stem(&file)),
                defines: vec![format!("-DFORMAT={format}")],
                file: file.clone(),
                only,
            }));
        }
    }
    for (folder, only) in [("kv", None), ("hopper/kv", Some(HOPPER))] {
        for file in hip_files(&kernels.join(folder)) {
            all.extend(KV_TYPES.iter().map(|[name, keys, values]| Module {
                name: format!("{}.{name}", stem(&file)),
                defines: vec![
                    format!("-DKEY_TYPE={keys}"),
                    format!("-DVALUE_TYPE={values}"),
                ],
                file: file.clone(),
                only,
            }));
        }
    }
    all
}

fn hip_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "hip"))
        .collect();
    files.sort();
    files
}
