//! The kernel images to examine: those embedded in this program, which the engine loads too; or, for other targets,
//! images compiled by the same compiler with the same arguments.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};
use std::{env, fs};

use anyhow::{Context as _, Error, Result, bail};

use crate::root;

#[path = "../../../crates/gpu/build/clang.rs"]
mod clang;
#[path = "../../../crates/gpu/build/modules.rs"]
mod modules;
#[path = "../../../crates/gpu/build/targets.rs"]
mod targets;

/// The object file of one module for one target.
pub(crate) struct Image {
    pub(crate) module: String,
    pub(crate) target: String,
    source: Source,
}

enum Source {
    Embedded(&'static rocmforge_gpu::Image),
    Compile(modules::Module),
}

/// Returns the images of all modules whose name contains `filter`.
pub(crate) fn all(target: &str, filter: &str) -> Vec<Image> {
    let embedded: Vec<Image> = embedded(target).collect();
    let all = if embedded.is_empty() {
        let mut modules = modules::all(&folder().join("kernels"));
        modules.retain(|module| module.is_for(target));
        let image = |module: modules::Module| Image {
            module: module.name.clone(),
            target: target.into(),
            source: Source::Compile(module),
        };
        modules.into_iter().map(image).collect()
    } else {
        embedded
    };
    let wanted = all
        .into_iter()
        .filter(|image| image.module.contains(filter));
    wanted.collect()
}

/// Returns the images embedded in this program.
pub(crate) fn embedded(target: &str) -> impl Iterator<Item = Image> {
    let images = rocmforge_gpu::images().iter();
    images
        .filter(move |image| image.target == target)
        .map(|image| Image {
            module: image.module.into(),
            target: image.target.into(),
            source: Source::Embedded(image),
        })
}

pub(crate) fn is_amd(target: &str) -> bool {
    target.starts_with("gfx")
}

impl Image {
    /// Returns the object file, unpacked or compiled.
    pub(crate) fn object(&self) -> Result<Vec<u8>> {
        match &self.source {
            Source::Embedded(image) => Ok(image.unpack()?),
            Source::Compile(module) => cached(module, &self.target),
        }
    }
}

/// The folder that the compiler's arguments are relative to.
fn folder() -> PathBuf {
    root().join("crates/gpu")
}

/// Returns the folder for compiled images, creating it.
pub(crate) fn cache() -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    // The compiler runs in another folder.
    let cache = std::path::absolute(target.join("isa-report"))?;
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    Ok(cache)
}

/// Returns the object file from the cache, compiled if its inputs changed.
fn cached(module: &modules::Module, target: &str) -> Result<Vec<u8>> {
    let compiler = compiler(target)?;
    let mut hash = DefaultHasher::new();
    (
        &compiler.version,
        targets::arguments(target),
        &module.defines,
    )
        .hash(&mut hash);
    module.hash(&folder().join("kernels"), &mut hash);
    let prefix = format!("{}.{target}.", module.name);
    let object = cache()?.join(format!("{prefix}{:016x}.o", hash.finish()));
    if !object.exists() {
        for older in fs::read_dir(cache()?)?.flatten() {
            let name = older.file_name();
            if name.to_string_lossy().starts_with(&prefix) {
                fs::remove_file(older.path())?;
            }
        }
        let part = object.with_extension("part");
        compile(compiler, &module.file, &module.defines, target, &part)?;
        fs::rename(&part, &object)?;
    }
    Ok(fs::read(object)?)
}

/// Returns the compiler that the build chooses for a target.
pub(crate) fn compiler(target: &str) -> Result<&'static clang::Clang> {
    static FOUND: LazyLock<Vec<clang::Clang>> = LazyLock::new(clang::find);
    static CHOSEN: Mutex<BTreeMap<String, &clang::Clang>> = Mutex::new(BTreeMap::new());
    let mut chosen = CHOSEN.lock().expect("nothing panics in it");
    if let Some(compiler) = chosen.get(target) {
        return Ok(compiler);
    }
    let compiler = clang::choose(&FOUND, target, &folder(), &cache()?)
        .map_err(|none| Error::msg(none.to_string()))?;
    chosen.insert(target.into(), compiler);
    Ok(compiler)
}

/// Compiles with the build's arguments.
pub(crate) fn compile(
    compiler: &clang::Clang,
    file: &Path,
    defines: &[String],
    target: &str,
    object: &Path,
) -> Result<()> {
    let output = Command::new(&compiler.path)
        .current_dir(folder())
        .args(targets::arguments(target))
        .args(defines)
        .arg(file)
        .arg("-o")
        .arg(object)
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} for {target}: {said}", file.display());
    }
    Ok(())
}

/// Expands a list of targets such as `ci`.
///
/// # Errors
/// If a name is no target.
pub(crate) fn expand(list: &str) -> Result<Vec<String>> {
    targets::expand(list).map_err(Error::msg)
}
