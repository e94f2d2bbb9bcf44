//! NVIDIA's assembler, where this machine has one: machine code beside the PTX, so that a program's first start need not
//! wait for the driver to compile it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

#[derive(Clone)]
pub(crate) struct Ptxas {
    path: PathBuf,
    /// Such as `ptxas release 13.0, V13.0.48`.
    pub(crate) version: String,
    /// Stands for its version in names of files.
    pub(crate) tag: String,
}

impl Ptxas {
    /// `ROCMFORGE_PTXAS`, or the first of the usual places that runs.
    pub(crate) fn find() -> Option<Ptxas> {
        if let Some(path) = env::var_os("ROCMFORGE_PTXAS") {
            let found = Ptxas::at(path.as_ref());
            if found.is_none() {
                println!("cargo::warning=ROCMFORGE_PTXAS does not run: {path:?}");
            }
            return found;
        }
        let usual = ["ptxas", "/usr/local/cuda/bin/ptxas", "/opt/cuda/bin/ptxas"];
        usual.iter().find_map(|path| Ptxas::at(path.as_ref()))
    }

    fn at(path: &Path) -> Option<Ptxas> {
        let output = Command::new(path).arg("--version").output().ok()?;
        if !output.status.success() {
            return None;
        }
        let mut hash = DefaultHasher::new();
        output.stdout.hash(&mut hash);
        let text = String::from_utf8_lossy(&output.stdout);
        let release = text
            .lines()
            .find_map(|line| line.find("release").map(|at| &line[at..]));
        Some(Ptxas {
            path: path.to_path_buf(),
            version: format!("ptxas {}", release.unwrap_or("of an unknown release")),
            tag: format!("{:08x}", hash.finish() as u32),
        })
    }

    /// Machine code of the PTX in the file `ptx` for `target`.
    pub(crate) fn assemble(&self, target: &str, ptx: &Path) -> Result<Vec<u8>, String> {
        let to = ptx.with_extension("cubin.o");
        let mut ptxas = Command::new(&self.path);
        ptxas.arg(format!("-arch={target}")).arg("-O3");
        let output = ptxas.arg(ptx).arg("-o").arg(&to).output();
        let output = output.map_err(|error| format!("{}: {error}", self.path.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let code = fs::read(&to).map_err(|error| error.to_string())?;
        fs::remove_file(&to).map_err(|error| error.to_string())?;
        Ok(code)
    }
}
