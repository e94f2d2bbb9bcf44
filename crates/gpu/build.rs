//! Compiles the kernels ahead of time with clang, one image per target and module, and embeds them. `ROCMFORGE_GPU_TARGETS`
//! says for what: `native` (the GPUs of this machine, the default), `ci`, `all`, `host`, or a list of targets. Images are
//! kept by the content of their sources; what cannot be built here is left out, and said.

#[path = "build/clang.rs"]
mod clang;
#[path = "build/inspect.rs"]
mod inspect;
#[path = "build/modules.rs"]
mod modules;
#[path = "build/ptxas.rs"]
mod ptxas;
#[path = "build/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs};

use clang::Clang;
use modules::Module;
use ptxas::Ptxas;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=src/driver/kfd.rs");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_GPU_TARGETS");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_CLANG");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_PTXAS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let wanted = env::var("ROCMFORGE_GPU_TARGETS").unwrap_or_else(|_| "native".into());
    let targets = targets::expand(&wanted).unwrap_or_else(|error| fail(&[error]));
    let cache = out.join("cache");
    fs::create_dir_all(&cache).expect("the build may write to OUT_DIR");

    let clangs = if targets.is_empty() {
        Vec::new()
    } else {
        clang::find()
    };
    empty_if_of_others(&cache, &clangs);
    let mut left_out: Vec<(String, String)> = Vec::new();
    let mut jobs: Vec<Job> = Vec::new();
    let modules = modules::all("kernels".as_ref());
    for target in &targets {
        match clang::choose(&clangs, target, ".".as_ref(), &out) {
            Ok(clang) => jobs.extend(modules.iter().map(|m| Job::new(m, target, clang, &cache))),
            Err(reason) => {
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
    if let Some(ptxas) = Ptxas::find() {
        for job in &mut jobs {
            job.assemble(&ptxas, &cache);
        }
    }
    let errors = run(&jobs);
    if !errors.is_empty() {
        fail(&errors);
    }
    remove_older(&cache, &jobs);
    fs::write(out.join("images.rs"), table(&jobs, &left_out))
        .expect("the build may write to OUT_DIR");
}

fn fail(errors: &[String]) -> ! {
    for error in errors {
        eprintln!("error: {error}\n");
    }
    exit(1)
}

/// The source that `src/image.rs` includes.
fn table(jobs: &[Job], left_out: &[(String, String)]) -> String {
    let mut table = String::from("static IMAGES: &[Image] = &[\n");
    for job in jobs {
        let (target, module, packed) = (&job.target, &job.module, &job.packed);
        let assembled = job.assembled.as_ref().map_or("None".into(), |(_, path)| {
            format!("Some(include_bytes!({path:?}).as_slice())")
        });
        table += &format!(
            "Image {{ target: {target:?}, module: {module:?}, packed: include_bytes!({packed:?}), assembled: {assembled} }},\n"
        );
    }
    table + &format!("];\nstatic LEFT_OUT: &[(&str, &str)] = &{left_out:?};\n")
}

/// One image to compile.
struct Job<'a> {
    module: String,
    target: String,
    clang: &'a Clang,
    args: Vec<String>,
    /// The compressed image, named by all that it depends on but the compiler.
    packed: PathBuf,
    /// The assembler of PTX, and the compressed machine code that it shall make.
    assembled: Option<(Ptxas, PathBuf)>,
}

impl<'a> Job<'a> {
    fn new(of: &Module, target: &str, clang: &'a Clang, cache: &Path) -> Job<'a> {
        let mut args = targets::arguments(target);
        args.extend(of.defines.iter().cloned());
        args.push(of.file.display().to_string());
        let mut hash = DefaultHasher::new();
        args.hash(&mut hash);
        of.hash("kernels".as_ref(), &mut hash);
        let packed = cache.join(format!("{}.{target}.{:016x}.lz4", of.name, hash.finish()));
        Job {
            module: of.name.clone(),
            target: target.into(),
            clang,
            args,
            packed,
            assembled: None,
        }
    }

    /// Asks for machine code besides PTX, where a target is one processor.
    fn assemble(&mut self, ptxas: &Ptxas, cache: &Path) {
        if !self.target.ends_with('a') || !self.target.starts_with("sm_") {
            return;
        }
        let name = self.packed.file_stem().expect("it has a name");
        let name = format!("{}.{}.cubin", name.to_string_lossy(), ptxas.tag);
        self.assembled = Some((ptxas.clone(), cache.join(name)));
    }

    fn compile(&self) -> Result<(), String> {
        let is_assembled = self
            .assembled
            .as_ref()
            .is_none_or(|(_, path)| path.exists());
        if self.packed.exists() && is_assembled {
            return Ok(());
        }
        let object = self.packed.with_extension("o");
        let mut clang = Command::new(&self.clang.path);
        clang.args(&self.args).arg("-o").arg(&object);
        let failed = |what: &str| {
            let Job {
                module,
                target,
                args,
                clang,
                ..
            } = self;
            let path = clang.path.display();
            format!("{module} for {target}: {what}\n  {path} {}", args.join(" "))
        };
        let output = clang.output().map_err(|error| failed(&error.to_string()))?;
        if !output.status.success() {
            return Err(failed(&String::from_utf8_lossy(&output.stderr)));
        }
        let image = fs::read(&object).map_err(|error| failed(&error.to_string()))?;
        if let Some(fault) = inspect::fault(&self.module, &self.target, &image) {
            return Err(failed(&fault));
        }
        if let Some((ptxas, path)) = &self.assembled {
            let code = ptxas.assemble(&self.target, &object);
            let code = code.map_err(|error| failed(&error))?;
            keep(&code, path).map_err(|error| failed(&error.to_string()))?;
        }
        keep(&image, &self.packed)
            .and_then(|()| fs::remove_file(&object))
            .map_err(|error| failed(&error.to_string()))
    }
}

/// Writes `image` compressed to `path`, all of it or nothing.
fn keep(image: &[u8], path: &Path) -> std::io::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, lz4_flex::compress_prepend_size(image))?;
    fs::rename(&part, path)
}

/// Runs all jobs, as many at once as cargo allows. What failed.
fn run(jobs: &[Job]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let errors = Mutex::new(Vec::new());
    let n_jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok());
    let n_workers =
        n_jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        for _ in 0..n_workers {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = job.compile() {
                        errors.lock().expect("nothing panics in it").push(error);
                    }
                }
            });
        }
    });
    errors.into_inner().expect("nothing panics in it")
}

/// Images that other compilers made are of no use.
fn empty_if_of_others(cache: &Path, clangs: &[Clang]) {
    let versions: Vec<&str> = clangs.iter().map(|clang| clang.version.as_str()).collect();
    let (versions, file) = (versions.join("\n"), cache.join("compilers"));
    let known = fs::read_to_string(&file);
    if clangs.is_empty() || known.as_ref().is_ok_and(|known| *known == versions) {
        return;
    }
    if known.is_ok() {
        for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
            // What cannot be removed is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
    fs::write(&file, versions).expect("the build may write to OUT_DIR");
}

/// Removes images of modules and targets that were just built anew. Those of other targets stay for the next change of
/// the list.
fn remove_older(cache: &Path, jobs: &[Job]) {
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let assembled = jobs.iter().filter_map(|job| job.assembled.as_ref());
    let packed = jobs.iter().map(|job| &job.packed);
    let paths = packed.chain(assembled.map(|(_, path)| path));
    let current: BTreeSet<String> = paths.map(|path| name(path)).collect();
    let built: BTreeSet<String> = jobs
        .iter()
        .map(|job| format!("{}.{}", job.module, job.target))
        .collect();
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let file = name(&entry.path());
        // MODULE.TARGET.HASH.lz4, or MODULE.TARGET.HASH.PTXAS.cubin
        let of = match file.strip_suffix(".cubin") {
            Some(rest) => rest.rsplit_once('.').map(|(rest, _)| rest),
            None => file.strip_suffix(".lz4"),
        };
        let of = of.and_then(|rest| Some(rest.rsplit_once('.')?.0));
        if of.is_some_and(|of| built.contains(of)) && !current.contains(&file) {
            // What cannot be removed is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
}
