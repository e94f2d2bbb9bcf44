//! Compiles the kernels ahead of time with clang, one image per target and module. `ROCMFORGE_GPU_TARGETS` says for
//! what: `native` (the GPUs of this machine, the default), `ci`, `all`, `host`, or a list of targets. Images are cached
//! by their preprocessed source (`build/cache.rs`), so that targets with the same source share one. A release embeds
//! all images, a development build reads them from a file (`build/archive.rs`). Targets that cannot be built here are
//! left out with a warning; an emulated GPU only if this machine has no clang, or its tests would test nothing.

#[path = "build/archive.rs"]
mod archive;
#[path = "build/cache.rs"]
mod cache;
#[path = "build/clang.rs"]
mod clang;
#[path = "build/inspect.rs"]
mod inspect;
#[path = "build/modules.rs"]
mod modules;
#[path = "build/notice.rs"]
mod notice;
#[path = "build/ptxas.rs"]
mod ptxas;
#[path = "build/sample.rs"]
mod sample;
#[path = "build/targets.rs"]
mod targets;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::{env, fs};

use archive::Archive;
use cache::Cache;
use clang::{Clang, NoCompiler};
use lz4::block::CompressionMode;
use modules::Module;
use ptxas::Ptxas;
use targets::is_emulated;

/// Part of every image's key: a change of the rules that images are checked by compiles them anew.
const RULES: &str = include_str!("build/inspect.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=src/driver/kfd.rs");
    println!("cargo::rerun-if-changed=src/kv_types.rs");
    println!("cargo::rerun-if-changed=../gguf/src/computed.rs");
    println!("cargo::rerun-if-changed=../gguf/src/quant/grids");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_GPU_TARGETS");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_CLANG");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_PTXAS");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_KERNEL_CACHE");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_EMBED_KERNELS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let wanted = env::var("ROCMFORGE_GPU_TARGETS").unwrap_or_else(|_| "native".into());
    let targets = targets::expand(&wanted).unwrap_or_else(|error| fail(&[error]));
    let is_ci = wanted.trim() == "ci";
    if let Some(notice) = notice::no_kernels(&wanted, &targets) {
        println!("cargo::warning={notice}");
    }
    let objects = out.join("objects");
    fs::create_dir_all(&objects).expect("the build may write to OUT_DIR");

    let clangs = if targets.is_empty() {
        Vec::new()
    } else {
        clang::find()
    };
    let ptxas = Ptxas::find();
    let mut left_out: Vec<(String, String)> = Vec::new();
    let mut compilers = Compilers::default();
    let mut jobs: Vec<Job> = Vec::new();
    let modules = modules::all("kernels".as_ref());
    let runtime = Module {
        file: "kernels/host_runtime.cpp".into(),
        name: "host_runtime".into(),
        defines: Vec::new(),
        only: None,
    };
    let cache = (!targets.is_empty()).then(|| Cache::from_env(&out));
    let cache = cache.transpose().unwrap_or_else(|error| fail(&[error]));
    let compiler = cache.as_ref().map(|cache| Compiler::new(cache, &objects));
    for target in &targets {
        match clang::choose(&clangs, target, ".".as_ref(), &out) {
            Ok(clang) => {
                compilers.add(clang.name(), target);
                if let Some(ptxas) = ptxas.as_ref().filter(|_| target.starts_with("sm_")) {
                    compilers.add(&ptxas.version, target);
                }
                let job = |module, runtime| Job {
                    module,
                    target,
                    clang,
                    ptxas: ptxas.as_ref(),
                    runtime,
                };
                let runtime = compiler
                    .as_ref()
                    .filter(|_| is_emulated(target))
                    .map(|compiler| compiler.runtime(&job(&runtime, None)))
                    .transpose()
                    .unwrap_or_else(|error| fail(&[error]));
                let modules = modules.iter().filter(|module| {
                    module.is_for(target) && !(is_ci && sample::is_left_out(module, target))
                });
                jobs.extend(modules.map(|module| job(module, runtime.clone())));
            }
            Err(NoCompiler::Fault(reason)) => {
                fail(&[format!("no GPU kernels for {target}: {reason}")])
            }
            Err(NoCompiler::LeftOut(reason)) => {
                println!("cargo::warning=no GPU kernels for {target}: {reason}");
                left_out.push((target.clone(), reason));
            }
        }
    }
    if !left_out.is_empty() {
        // Looks again at the next build: a compiler may have been installed.
        println!(
            "cargo::rerun-if-changed={}",
            out.join("no such file").display()
        );
    }
    let mut archive = Archive::default();
    let mut table = String::from("static IMAGES: &[Image] = &[\n");
    if let Some(compiler) = compiler {
        let images = run(&jobs, &compiler).unwrap_or_else(|errors| fail(&errors));
        compiler.cache.prune();
        for (Job { module, target, .. }, image) in jobs.iter().zip(images) {
            let packed = archive.add(image.packed).source();
            let assembled = match image.assembled {
                Some(assembled) => format!("Some({})", archive.add(assembled).source()),
                None => "None".into(),
            };
            table += &format!(
                "Image {{ target: {target:?}, module: {:?}, packed: {packed}, assembled: {assembled} }},\n",
                module.name
            );
        }
    }
    table += &format!(
        "];\nstatic COMPILERS: &[(&str, &str)] = &{:?};\nstatic LEFT_OUT: &[(&str, &str)] = &{left_out:?};\n",
        compilers.0
    );
    table += &archive.write(&out).expect("the build may write to OUT_DIR");
    fs::write(out.join("images.rs"), table).expect("the build may write to OUT_DIR");
}

/// Versions of compilers, each with the targets that it makes images for.
#[derive(Default)]
struct Compilers(Vec<(String, String)>);

impl Compilers {
    fn add(&mut self, version: &str, target: &str) {
        match self.0.iter_mut().find(|(known, _)| known == version) {
            Some((_, targets)) => *targets += &format!(", {target}"),
            None => self.0.push((version.to_string(), target.to_string())),
        }
    }
}

fn fail(errors: &[String]) -> ! {
    for error in errors {
        eprintln!("error: {error}\n");
    }
    exit(1)
}

/// One image to make.
struct Job<'a> {
    module: &'a Module,
    target: &'a str,
    clang: &'a Clang,
    ptxas: Option<&'a Ptxas>,
    /// Linked to every module of the emulator.
    runtime: Option<Runtime>,
}

/// The compiled part of the emulator that all modules share (`kernels/host.h`).
#[derive(Clone)]
struct Runtime {
    object: PathBuf,
    key: u64,
}

/// A compressed image.
struct Image {
    packed: Vec<u8>,
    /// The same as machine code, where the compiler's is not and there is an assembler.
    assembled: Option<Vec<u8>>,
}

impl Job<'_> {
    /// The compiler's arguments without the output.
    fn arguments(&self) -> Vec<String> {
        let mut args = targets::arguments(self.target);
        args.extend(self.module.defines.iter().cloned());
        if self.is_runtime() {
            // Every memory access of every emulated kernel calls it.
            args.push("-O3".into());
        }
        args.push(self.module.file.display().to_string());
        args
    }

    fn clang(&self, more: &[&Path]) -> Command {
        let mut clang = Command::new(&self.clang.path);
        clang.args(self.arguments()).args(more);
        clang
    }

    /// The command that writes the image to `object`.
    fn compiler(&self, object: &Path) -> Command {
        let mut clang = self.clang(&["-o".as_ref(), object]);
        if let Some(runtime) = &self.runtime {
            clang.args(["-x", "none"]).arg(&runtime.object);
        }
        if self.is_runtime() {
            clang.args(["-c", "-Qunused-arguments"]);
        }
        clang
    }

    fn is_runtime(&self) -> bool {
        is_emulated(self.target) && self.runtime.is_none()
    }

    /// Runs `command` and returns its standard output.
    fn run(&self, mut command: Command) -> Result<Vec<u8>, String> {
        let output = command.output().map_err(|error| self.failed(error))?;
        if !output.status.success() {
            return Err(self.failed(String::from_utf8_lossy(&output.stderr)));
        }
        Ok(output.stdout)
    }

    fn failed(&self, reason: impl std::fmt::Display) -> String {
        let Job { module, target, .. } = self;
        format!(
            "{} for {target}: {reason}\n  {} {}",
            module.name,
            self.clang.path.display(),
            self.arguments().join(" ")
        )
    }

    fn runtime_key(&self) -> Option<u64> {
        self.runtime.as_ref().map(|runtime| runtime.key)
    }

    /// A hash of the sources before preprocessing.
    fn source_key(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (RULES, &self.clang.version, self.arguments()).hash(&mut hash);
        self.runtime_key().hash(&mut hash);
        self.module.hash("kernels".as_ref(), &mut hash);
        hash.finish()
    }

    /// A hash of the preprocessed source, which emulated GPUs may share. Other targets share nothing. Line numbers
    /// count for the emulator, which names lines in errors.
    fn text_key(&self) -> Result<u64, String> {
        let mut command = self.clang(&[]);
        command.args(["-E", "-Qunused-arguments", "-o", "-"]);
        if !is_emulated(self.target) {
            command.arg("-P");
        }
        let text = self.run(command)?;
        let mut hash = DefaultHasher::new();
        (RULES, &self.clang.version, self.runtime_key()).hash(&mut hash);
        for argument in self.arguments() {
            if !argument.starts_with(targets::PERSONA) {
                argument.hash(&mut hash);
            }
        }
        text.hash(&mut hash);
        Ok(hash.finish())
    }
}

/// Compiles what the cache does not have.
struct Compiler<'a> {
    cache: &'a Cache,
    /// The folder for objects.
    objects: &'a Path,
    /// Keys that a thread is compiling.
    busy: Mutex<HashSet<u64>>,
    done: Condvar,
}

impl<'a> Compiler<'a> {
    fn new(cache: &'a Cache, objects: &'a Path) -> Compiler<'a> {
        Compiler {
            cache,
            objects,
            busy: Mutex::default(),
            done: Condvar::new(),
        }
    }

    /// Compiles the runtime of the emulator; `job` is that of its source.
    fn runtime(&self, job: &Job) -> Result<Runtime, String> {
        let (key, image) = self.keyed_image(job)?;
        let object = self.objects.join(format!("host_runtime.{key:016x}.o"));
        let code = lz4_flex::decompress_size_prepended(&image.packed);
        let code = code.map_err(|error| job.failed(error))?;
        fs::write(&object, code).map_err(|error| job.failed(error))?;
        Ok(Runtime { object, key })
    }

    fn image(&self, job: &Job) -> Result<Image, String> {
        Ok(self.keyed_image(job)?.1)
    }

    fn keyed_image(&self, job: &Job) -> Result<(u64, Image), String> {
        // Preprocessing takes a tenth of the time of compiling: its result is kept as well.
        let alias = format!("{}.{:016x}.key", job.module.name, job.source_key());
        let known = self.cache.get(&alias).and_then(|key| {
            let key = std::str::from_utf8(&key).ok()?;
            u64::from_str_radix(key, 16).ok()
        });
        if let Some(key) = known
            && let Some(image) = self.cached(job, key)
        {
            return Ok((key, image));
        }
        let key = job.text_key()?;
        self.wait_for_turn(key);
        let image = match self.cached(job, key) {
            Some(image) => Ok(image),
            None => self.compile(job, key),
        };
        self.end_turn(key);
        let image = image?;
        self.cache
            .put(&alias, format!("{key:016x}").as_bytes())
            .map_err(|error| job.failed(error))?;
        Ok((key, image))
    }

    /// Waits until no other thread compiles this.
    fn wait_for_turn(&self, key: u64) {
        let mut busy = self.busy.lock().expect("nothing panics in it");
        while !busy.insert(key) {
            busy = self.done.wait(busy).expect("nothing panics in it");
        }
    }

    fn end_turn(&self, key: u64) {
        let mut busy = self.busy.lock().expect("nothing panics in it");
        busy.remove(&key);
        self.done.notify_all();
    }

    fn cached(&self, job: &Job, key: u64) -> Option<Image> {
        let (packed, assembled) = names(job, key);
        Some(Image {
            packed: self.cache.get(&packed)?,
            assembled: match assembled {
                Some(name) => Some(self.cache.get(&name)?),
                None => None,
            },
        })
    }

    fn compile(&self, job: &Job, key: u64) -> Result<Image, String> {
        let object = self
            .objects
            .join(format!("{}.{key:016x}.o", job.module.name));
        job.run(job.compiler(&object))?;
        let image = fs::read(&object).map_err(|error| job.failed(error))?;
        if let Some(fault) = inspect::fault(&job.module.name, job.target, &image) {
            return Err(job.failed(fault));
        }
        let (packed, assembled) = names(job, key);
        let keep = |name: &str, image: &[u8]| {
            let mode = CompressionMode::HIGHCOMPRESSION(COMPRESSION);
            let packed = lz4::block::compress(image, Some(mode), true);
            let kept = packed.and_then(|packed| self.cache.put(name, &packed).map(|()| packed));
            kept.map_err(|error| job.failed(error))
        };
        let image = Image {
            packed: keep(&packed, &image)?,
            assembled: match (assembled, job.ptxas) {
                (Some(name), Some(ptxas)) => {
                    let code = ptxas.assemble(job.target, &object);
                    Some(keep(&name, &code.map_err(|error| job.failed(error))?)?)
                }
                _ => None,
            },
        };
        fs::remove_file(&object).map_err(|error| job.failed(error))?;
        Ok(image)
    }
}

/// The level of the compression of images: the highest, which takes little beside compiling them.
const COMPRESSION: i32 = 12;

/// The names in the cache of an image and of its machine code. Machine code is made where a target is one processor.
fn names(job: &Job, key: u64) -> (String, Option<String>) {
    let name = format!("{}.{key:016x}", job.module.name);
    let is_processor = job.target.starts_with("sm_") && job.target.ends_with('a');
    let ptxas = job.ptxas.filter(|_| is_processor);
    let assembled = ptxas.map(|ptxas| format!("{name}.{}.cubin", ptxas.tag));
    (format!("{name}.lz4"), assembled)
}

/// Runs all jobs, as many at once as cargo allows. Returns the images in the order of the jobs, or all errors.
fn run(jobs: &[Job], compiler: &Compiler) -> Result<Vec<Image>, Vec<String>> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Image, String>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let n_jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok());
    let n_workers =
        n_jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..n_workers {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(n) else { break };
                    let result = compiler.image(job);
                    *results[n].lock().expect("nothing panics in it") = Some(result);
                }
            });
        }
    });
    let mut images = Vec::new();
    let mut errors = Vec::new();
    for result in results {
        let result = result.into_inner().expect("nothing panics in it");
        match result.expect("all jobs were run") {
            Ok(image) => images.push(image),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        Ok(images)
    } else {
        Err(errors)
    }
}
