//! `cargo xtask dist`: what a release offers for download, a tarball and a Debian package with the kernels of every GPU.

mod notices;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{isa_report, root};

/// The largest program to offer.
const MAX_BYTES: u64 = 150_000_000;

/// The newest C library that the program may need: that of Ubuntu 22.04.
const GLIBC: (u32, u32) = (2, 35);

/// Files of the repository that come along, under the same names, so that their links lead somewhere.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "STYLE.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "docs/AMD.md",
    "docs/MODELS.md",
    "docs/PERFORMANCE.md",
    "docs/PROFILING_GUIDE.md",
    "docs/SERVING.md",
    "docs/cli.md",
    "docs/grafana.json",
    "packaging/Containerfile",
    "packaging/Containerfile.rocm",
    "packaging/rocmforge.service",
    "packaging/serve.toml",
];

/// Shells, and the names of their scripts.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "rocmforge"),
    ("zsh", "_rocmforge"),
    ("fish", "rocmforge.fish"),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// GPUs to include kernels for, as in ROCMFORGE_GPU_TARGETS
    #[arg(long, default_value = "all", value_name = "LIST")]
    targets: String,
    /// Make the tarball only, which needs no cargo-deb
    #[arg(long)]
    no_deb: bool,
}

/// Builds the program, examines its kernels for AMD, and packs it into `target/dist`.
///
/// # Errors
/// If a tool is missing or fails, the program lacks kernels, a kernel has a fault, or the program is larger than what
/// should be downloaded.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut amd = isa_report::expand(&options.targets)?;
    amd.retain(|target| isa_report::is_amd(target));
    if !amd.is_empty() {
        isa_report::find_tools()?;
    }
    let metadata = notices::metadata()?;
    let out = root().join("target/dist");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("emptying {}", out.display()))?;
    }
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("rocmforge-{version}-linux-{}", std::env::consts::ARCH);
    // Also in the manifest of the command, for its Debian package.
    let folder = out.join("files");
    let program = build(&metadata, &options.targets)?;
    if !amd.is_empty() {
        examine(&amd, &options.targets)?;
    }
    stage(&folder, &program)?;
    write(
        &folder.join("LICENSES-OF-LIBRARIES"),
        notices::all(&metadata)?,
    )?;

    let tarball = format!("{name}.tar.xz");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=root:0", "--group=root:0"]);
    tar.arg(format!("--transform=s,^files,{name},"));
    done(tar.args(["-cJf", &tarball, "files"]).current_dir(&out))?;
    let mut files = vec![tarball];
    if !options.no_deb {
        let deb = format!("rocmforge-{version}-linux-{}.deb", std::env::consts::ARCH);
        let mut cargo = Command::new("cargo");
        cargo.args([
            "deb",
            "-p",
            "rocmforge-cli",
            "--no-build",
            "--no-strip",
            "--locked",
        ]);
        done(cargo.arg("-o").arg(out.join(&deb)).current_dir(root()))
            .context("cargo-deb makes the Debian package: cargo install cargo-deb --locked")?;
        files.push(deb);
    }
    let mut sums = Command::new("sha256sum");
    let sums = output(sums.args(&files).current_dir(&out))?;
    write(&out.join("SHA256SUMS"), sums)?;
    for file in files {
        let path = out.join(file);
        println!("{} ({} bytes)", path.display(), fs::metadata(&path)?.len());
    }
    Ok(())
}

/// Builds the program with the kernels of `targets`, and returns its path.
fn build(metadata: &Value, targets: &str) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--locked", "-p", "rocmforge-cli"]);
    done(
        cargo
            .current_dir(root())
            .env("ROCMFORGE_GPU_TARGETS", targets),
    )?;
    let folder = metadata["target_directory"].as_str();
    let folder = Path::new(folder.context("cargo metadata names no target folder")?);
    let program = folder.join("release/rocmforge");
    let devices = output(Command::new(&program).args(["devices", "--json"]))?;
    let devices: Value = serde_json::from_slice(&devices).context("reading devices --json")?;
    let images = devices["images"]
        .as_array()
        .context("no images in devices --json")?;
    // A compiler that cannot build for a target leaves it out with a warning.
    let left_out: Vec<String> = isa_report::expand(targets)?
        .into_iter()
        .filter(|target| !images.iter().any(|image| image == target))
        .collect();
    ensure!(
        left_out.is_empty(),
        "no kernels for {}; the build says why",
        left_out.join(", ")
    );
    Ok(program)
}

/// Examines the machine code of the kernels for `amd`, by an `isa-report` that is built with the kernels of `targets` as
/// the program is.
fn examine(amd: &[String], targets: &str) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--release", "--locked", "-p", "xtask", "--"]);
    cargo.args(["isa-report", "--faults-only", "--targets", &amd.join(",")]);
    done(
        cargo
            .current_dir(root())
            .env("ROCMFORGE_GPU_TARGETS", targets),
    )
}

/// Collects in `folder` what packages contain.
fn stage(folder: &Path, built: &Path) -> Result<()> {
    let completions = folder.join("completions");
    fs::create_dir_all(&completions)?;
    let program = folder.join("rocmforge");
    done(Command::new("strip").arg("-o").arg(&program).arg(built))?;
    let n_bytes = fs::metadata(&program)?.len();
    let (major, minor) = glibc(&program)?;
    println!("rocmforge: {n_bytes} bytes, for glibc {major}.{minor} or newer");
    ensure!(
        n_bytes <= MAX_BYTES,
        "more than {MAX_BYTES} bytes are too many for a download"
    );
    ensure!(
        (major, minor) <= GLIBC,
        "glibc {}.{} must do; build on an older system",
        GLIBC.0,
        GLIBC.1
    );

    done(Command::new(&program).args([
        "man".as_ref(),
        "--dir".as_ref(),
        folder.join("man").as_os_str(),
    ]))?;
    for (shell, file) in COMPLETIONS {
        let script = output(Command::new(&program).args(["completions", shell]))?;
        write(&completions.join(file), script)?;
    }
    for document in DOCUMENTS {
        copy(&root().join(document), &folder.join(document))?;
    }
    // Of Rust's standard library.
    let rust = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let rust = PathBuf::from(String::from_utf8(rust)?.trim());
    copy(
        &rust.join("share/doc/rust/COPYRIGHT-library.html"),
        &folder.join("LICENSES-OF-RUST.html"),
    )
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

/// The version of the C library that a program needs: major and minor number.
fn glibc(program: &Path) -> Result<(u32, u32)> {
    let symbols = output(Command::new("objdump").arg("-T").arg(program))?;
    let symbols = String::from_utf8_lossy(&symbols);
    let versions = symbols.split("(GLIBC_").skip(1);
    let numbers = |version: &str| -> Option<(u32, u32)> {
        let mut numbers = version.split(')').next()?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let newest = versions.filter_map(numbers).max();
    newest.context("objdump lists no symbols of glibc")
}

/// Runs a command to its end.
fn done(command: &mut Command) -> Result<()> {
    let name = name(command);
    let status = command
        .status()
        .with_context(|| format!("starting {name}"))?;
    ensure!(status.success(), "{name} failed");
    Ok(())
}

/// Runs a command and returns what it prints.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let name = name(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("starting {name}"))?;
    ensure!(output.status.success(), "{name} failed");
    Ok(output.stdout)
}

fn name(command: &Command) -> String {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, contents).with_context(|| format!("writing {}", path.display()))
}
