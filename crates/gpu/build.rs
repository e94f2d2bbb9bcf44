//! Compiles the kernels ahead of time with clang, one image per target and module, and embeds them.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs};

/// Formats that `kernels/format/*.hip` are compiled for, one module each.
const FORMATS: &[&str] = &[
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
];

const CI: &[&str] = &[
    "gfx1030", "gfx1100", "gfx1151", "gfx1201", "gfx90a", "gfx942", "sm_80", "sm_90a", "host",
];

const HOST: &[&str] = &[
    "host-gfx10",
    "host-gfx11",
    "host-gfx12",
    "host-cdna",
    "host-nv",
];

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=ROCMFORGE_GPU_TARGETS");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let wanted = env::var("ROCMFORGE_GPU_TARGETS").unwrap_or_else(|_| "native".into());
    let mut targets: Vec<String> = Vec::new();
    for name in wanted.split(',') {
        match name {
            "native" | "" => {}
            "ci" => targets.extend(CI.iter().map(|t| t.to_string())),
            other => targets.push(other.into()),
        }
    }
    if let Some(at) = targets.iter().position(|t| t == "host") {
        targets.remove(at);
        targets.extend(HOST.iter().map(|t| t.to_string()));
    }
    let cache = out.join("cache");
    fs::create_dir_all(&cache).expect("the build may write to OUT_DIR");
    let mut jobs: Vec<Job> = Vec::new();
    for (file, module, defines) in modules() {
        for target in &targets {
            jobs.push(Job::new(&file, &module, target, &defines, &cache));
        }
    }
    run(&jobs);
    let mut table = String::from("static IMAGES: &[Image] = &[\n");
    for job in &jobs {
        let Job {
            target,
            module,
            packed,
            ..
        } = job;
        table += &format!(
            "Image {{ target: {target:?}, module: {module:?}, packed: include_bytes!({packed:?}) }},\n"
        );
    }
    table += "];\n";
    fs::write(out.join("images.rs"), table).unwrap();
}

/// One image to compile.
struct Job {
    module: String,
    target: String,
    args: Vec<String>,
    /// The compressed image, named by all that it depends on.
    packed: PathBuf,
}

impl Job {
    fn new(file: &Path, module: &str, target: &str, defines: &[String], cache: &Path) -> Job {
        let mut args = arguments(target);
        args.extend(defines.iter().cloned());
        args.push(file.display().to_string());
        let mut hash = DefaultHasher::new();
        args.hash(&mut hash);
        let mut seen = BTreeSet::new();
        hash_sources(file, &mut seen, &mut hash);
        let packed = cache.join(format!("{module}.{target}.{:016x}.lz4", hash.finish()));
        Job {
            module: module.into(),
            target: target.into(),
            args,
            packed,
        }
    }

    fn compile(&self) {
        if self.packed.exists() {
            return;
        }
        let object = self.packed.with_extension("o");
        let mut clang = Command::new("clang-19");
        let status = clang.args(&self.args).arg("-o").arg(&object).status();
        assert!(
            status.is_ok_and(|s| s.success()),
            "{} for {}: clang-19 {}",
            self.module,
            self.target,
            self.args.join(" ")
        );
        let packed = lz4_flex::compress_prepend_size(&fs::read(&object).unwrap());
        let part = self.packed.with_extension("part");
        fs::write(&part, packed).unwrap();
        fs::rename(&part, &self.packed).unwrap();
        fs::remove_file(&object).unwrap();
    }
}

/// A source and the headers it includes.
fn hash_sources(file: &Path, seen: &mut BTreeSet<PathBuf>, hash: &mut DefaultHasher) {
    if !seen.insert(file.to_path_buf()) {
        return;
    }
    let text = fs::read_to_string(file).unwrap();
    text.hash(hash);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("#include \"") {
            let name = name.trim_end_matches('"');
            hash_sources(&Path::new("kernels").join(name), seen, hash);
        }
    }
}

fn run(jobs: &[Job]) {
    let next = AtomicUsize::new(0);
    let n_workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..n_workers {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    job.compile();
                }
            });
        }
    });
}

fn modules() -> Vec<(PathBuf, String, Vec<String>)> {
    let mut all = Vec::new();
    for file in hip_files(Path::new("kernels")) {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        all.push((file, stem, vec![]));
    }
    for file in hip_files(Path::new("kernels/format")) {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        for format in FORMATS {
            all.push((
                file.clone(),
                format!("{stem}.{format}"),
                vec![format!("-DFORMAT={format}")],
            ));
        }
    }
    all
}

fn hip_files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "hip"))
        .collect();
    files.sort();
    files
}

fn arguments(target: &str) -> Vec<String> {
    let common = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Ikernels"];
    let mut args: Vec<String> = common.map(String::from).to_vec();
    let mut add = |more: &[&str]| args.extend(more.iter().map(|arg| arg.to_string()));
    if let Some(persona) = target.strip_prefix("host-") {
        add(&[
            "-x",
            "c++",
            "-DGPU_HOST",
            "-O2",
            "-march=x86-64-v3",
            "-fPIC",
            "-shared",
        ]);
        add(&[
            "-Wno-unused-function",
            &format!("-DGPU_PERSONA_{}", persona.to_uppercase()),
        ]);
    } else if target.starts_with("sm_") {
        let ptx = if target == "sm_80" {
            "+ptx70"
        } else {
            "+ptx80"
        };
        add(&[
            "-x",
            "cuda",
            "--cuda-device-only",
            "-nocudainc",
            "-nocudalib",
            "-S",
            "-O3",
        ]);
        add(&[
            &format!("--cuda-gpu-arch={target}"),
            &format!("--cuda-feature={ptx}"),
        ]);
    } else {
        add(&[
            "-x",
            "hip",
            "--cuda-device-only",
            "-nogpuinc",
            "-nogpulib",
            "-O3",
        ]);
        add(&["--no-gpu-bundle-output", "-mllvm", "-disable-machine-sink"]);
        add(&[&format!("--offload-arch={target}")]);
    }
    args
}
