//! What to compile for: names of targets, those of this machine, and the compiler's arguments for each.

use std::path::Path;

#[path = "../src/driver/kfd.rs"]
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the build does not look for one device among several"
    )
)]
mod kfd;

/// A GPU of each kind that has kernels of its own: AMD's with waves of 32 and of 64 lanes, and NVIDIA's newest; and the CPU
/// emulator for tests: those of models find [`UNCHECKED`] first, those of kernels take all. It stands in for host-gfx10, and
/// host-gfx12 has the units of gfx1201. Products of AMD's older GPUs are left out: those of gfx906 and gfx103x without matrix
/// units, and of the units of gfx908 and gfx90a; and NVIDIA's common image.
const CI: &[&str] = &[
    "gfx1100",
    "gfx942",
    "sm_90a",
    UNCHECKED,
    "host-gfx11",
    "host-gfx12",
    "host-cdna",
    "host-nv",
];

/// Every GPU that there are kernels for, for releases.
const ALL: &[&str] = &[
    "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1031", "gfx1032", "gfx1034",
    "gfx1035", "gfx1036", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151",
    "gfx1152", "gfx1153", "gfx1200", "gfx1201", "sm_80", "sm_90a",
];

/// PTX that every supported NVIDIA GPU, and every Hopper, takes.
const NVIDIA: &[&str] = &["sm_80", "sm_90a"];

/// host-gfx10 without checks of memory accesses. Only `ci` has it: with `host`, tests of models find host-gfx10.
const UNCHECKED: &str = "host-quick";

const HOST: &[&str] = &[
    "host-gfx10",
    "host-gfx11",
    "host-gfx12",
    "host-cdna",
    "host-nv",
];

/// Whether a target is a GPU that the CPU emulates.
pub(crate) fn is_emulated(target: &str) -> bool {
    target.starts_with("host-")
}

/// Begins the argument that says which GPU the emulator is.
pub(crate) const PERSONA: &str = "-DGPU_PERSONA_";

/// The targets of a list such as `native,host`, each once. An error names what is no target.
pub(crate) fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut targets: Vec<String> = Vec::new();
    for name in list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        let names = match name {
            "native" => native(),
            "ci" => owned(CI),
            "all" => owned(ALL),
            other => owned(&[other]),
        };
        for name in names {
            let names = if name == "host" {
                owned(HOST)
            } else {
                vec![name]
            };
            for name in names {
                let is_known = [ALL, HOST, &[UNCHECKED]]
                    .iter()
                    .any(|names| names.contains(&name.as_str()));
                if !is_known {
                    return Err(format!(
                        "ROCMFORGE_GPU_TARGETS has {name}, which is none of native, ci, all, host, {}, {UNCHECKED}, {}",
                        HOST.join(", "),
                        ALL.join(", ")
                    ));
                }
                if !targets.contains(&name) {
                    targets.push(name);
                }
            }
        }
    }
    Ok(targets)
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// Targets of the GPUs of this machine. Some that nothing is built for are not among them.
fn native() -> Vec<String> {
    let nodes = kfd::nodes(kfd::TOPOLOGY.as_ref());
    let known = |name: &String| ALL.contains(&name.as_str());
    let mut targets: Vec<String> = nodes
        .into_iter()
        .map(|node| node.architecture)
        .filter(known)
        .collect();
    if Path::new("/proc/driver/nvidia/version").exists()
        || Path::new("/usr/lib/wsl/lib/libcuda.so.1").exists()
    {
        targets.extend(owned(NVIDIA));
    }
    targets
}

/// Returns clang's arguments for a target; sources and output follow them.
pub(crate) fn arguments(target: &str) -> Vec<String> {
    let common = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Ikernels"];
    let mut args = owned(&common);
    let mut add = |more: &[&str]| args.extend(owned(more));
    if let Some(persona) = target.strip_prefix("host-") {
        let persona = match target {
            UNCHECKED => "gfx10",
            _ => persona,
        };
        add(&[
            "-x",
            "c++",
            "-DGPU_HOST",
            "-O1",
            "-march=x86-64-v3",
            "-fno-math-errno",
            "-fPIC",
            "-shared",
            "-lm",
        ]);
        if target != UNCHECKED {
            // What the compiler puts before each load and store for its thread sanitizer is answered by host_memory.h. It
            // knows no access of more than 16 bytes.
            add(&["-fsanitize=thread", "-mprefer-vector-width=128"]);
            add(&["-mllvm", "-tsan-instrument-func-entry-exit=0"]);
            add(&["-mllvm", "-tsan-instrument-atomics=0"]);
        }
        // Unrolling serves registers, of which emulated kernels have none; without it they compile in half the time.
        add(&["-mllvm", "-pragma-unroll-threshold=100"]);
        if target != UNCHECKED {
            // For the lines of faults. It takes an eighth of the time of compiling.
            add(&["-gline-tables-only"]);
        }
        add(&[
            // Calls within a loop may keep the compiler from unrolling it as a kernel asks.
            "-Wno-pass-failed",
            "-Wno-unused-function",
            // Whether loops are unrolled is of no matter here.
            "-Wno-pass-failed",
            &format!("{PERSONA}{}", persona.to_uppercase()),
        ]);
    } else if target.starts_with("sm_") {
        // The lowest versions that serve, so that older drivers take them.
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
        // Version 6, the default of newer compilers, does not load in older HIP runtimes.
        add(&["-mcode-object-version=5"]);
        // clang 19 sinks permlane and WMMA below branches, where lanes are missing: silently wrong results. clang 22 no
        // longer sinks permlane; of WMMA it is not known.
        add(&["--no-gpu-bundle-output", "-mllvm", "-disable-machine-sink"]);
        add(&[&format!("--offload-arch={target}")]);
    }
    args
}
