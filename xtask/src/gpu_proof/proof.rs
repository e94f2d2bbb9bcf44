//! The context that parts run in: the device, the folders, and the commands that test the device.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use super::RunArgs;
use super::pack::{self, ARCHIVE};
use super::parts::Part;

pub(super) struct Proof {
    pub(super) args: RunArgs,
    /// The unpacked archive.
    pub(super) pack: PathBuf,
    /// For models and logs.
    pub(super) work: PathBuf,
    /// For measurements, below `work`.
    pub(super) results: PathBuf,
    /// Whether a step of the current part failed.
    has_failed: bool,
}

impl Proof {
    /// Makes the work folder, and unpacks the archive beside this program into it.
    pub(super) fn new(args: RunArgs) -> Result<Proof> {
        let here = std::env::current_exe()?;
        let archive = here.with_file_name(ARCHIVE);
        ensure!(
            archive.is_file(),
            "there is no {}; `cargo xtask gpu-proof pack FOLDER` writes it, and FOLDER/gpu-proof runs it",
            archive.display()
        );
        let work = args.work.clone().unwrap_or_else(|| {
            std::env::temp_dir().join(format!("gpu-proof-{}", std::process::id()))
        });
        let work = std::path::absolute(work)?;
        let proof = Proof {
            pack: work.join("pack"),
            results: work.join("results"),
            work,
            args,
            has_failed: false,
        };
        fs::create_dir_all(&proof.results)
            .with_context(|| format!("creating {}", proof.results.display()))?;
        println!("work folder: {}", proof.work.display());
        if !proof.pack.exists() {
            pack::unpack(&archive, &proof.pack)?;
        }
        Ok(proof)
    }

    /// Runs a part and prints its verdict; returns whether it passed.
    pub(super) fn run(&mut self, part: &Part) -> bool {
        let image = self.args.image.as_ref();
        let image = image.map_or(String::new(), |image| format!(" ({image})"));
        println!("\n==> {}{image}, up to {} s", part.name, part.limit_s);
        self.has_failed = false;
        let started = Instant::now();
        let result = (part.run)(self);
        self.check(result);
        let seconds = started.elapsed().as_secs();
        let late = match seconds > part.limit_s {
            true => format!(", longer than {} s", part.limit_s),
            false => String::new(),
        };
        let verdict = if self.has_failed { "FAILED" } else { "passed" };
        println!("    {}: {verdict}{late} ({seconds} s)", part.name);
        !self.has_failed
    }

    /// Prints an error, which fails the current part; the part goes on.
    pub(super) fn check<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                println!("error: {error:#}");
                self.has_failed = true;
                None
            }
        }
    }

    /// Runs a command, whose failure fails the current part; the part goes on.
    pub(super) fn step(&mut self, command: &mut Command) {
        self.check(run(command));
    }

    /// A packed program.
    pub(super) fn program(&self, name: &str) -> Command {
        Command::new(self.pack.join(name))
    }

    /// `rocmforge SUBCOMMAND` on the device; the subcommand may have one itself, after a space.
    pub(super) fn rocmforge(&self, subcommand: &str) -> Command {
        let mut command = self.program("rocmforge");
        command.args(subcommand.split(' '));
        command.args(["--device", &self.args.device]);
        if let Some(image) = &self.args.image {
            command.args(["--gpu-image", image]);
        }
        command
    }

    /// `xtask compare-devices` on the device.
    pub(super) fn compare(&self) -> Command {
        let mut command = self.program("xtask");
        command.args(["compare-devices", "--device", &self.args.device]);
        self.with_image(command)
    }

    /// The command with the kernel image to load.
    pub(super) fn with_image(&self, mut command: Command) -> Command {
        if let Some(image) = &self.args.image {
            command.env("ROCMFORGE_GPU_IMAGE", image);
        }
        command
    }

    /// A file of this shape with random weights, `layers` of its layers or all. Made once: parts share it.
    pub(super) fn synthetic(
        &self,
        shape: &str,
        ty: &str,
        layers: Option<usize>,
    ) -> Result<PathBuf> {
        let suffix = layers.map_or(String::new(), |n| format!("-{n}"));
        let file = self.work.join(format!("{shape}-{ty}{suffix}.gguf"));
        if !file.exists() {
            let part = file.with_extension("part");
            let mut command = self.program("xtask");
            command.args(["gen-synthetic", shape, ty]).arg(&part);
            if let Some(n) = layers {
                command.args(["--layers", &n.to_string()]);
            }
            run(&mut command)?;
            fs::rename(&part, &file)?;
        }
        Ok(file)
    }
}

pub(super) trait Words {
    /// Adds the words of `words` as arguments.
    fn words(&mut self, words: &str) -> &mut Self;
}

impl Words for Command {
    fn words(&mut self, words: &str) -> &mut Command {
        self.args(words.split_whitespace())
    }
}

/// Runs a command.
///
/// # Errors
/// If it cannot be started, or fails.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| name(command))?;
    ensure!(status.success(), "{} failed: {status}", name(command));
    Ok(())
}

/// Runs a command and returns its standard output.
///
/// # Errors
/// If it cannot be started, fails, or prints no UTF-8.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| name(command))?;
    if !output.status.success() {
        bail!("{} failed: {}", name(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| name(command))
}

/// Sends a command's standard output and error to a file.
pub(super) fn log<'a>(command: &'a mut Command, path: &Path) -> Result<&'a mut Command> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    Ok(command.stdout(file.try_clone()?).stderr(file))
}

/// The program and its arguments, for messages.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}
