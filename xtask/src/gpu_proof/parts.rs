//! The table of parts.

use anyhow::Result;

use super::proof::Proof;
use super::{archs, kv, models, programs, tune};

/// Something to prove, by name.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// How long it may take on an H200 with 16 CPU cores, in seconds.
    pub(super) limit_s: u64,
    /// What it runs, in a line.
    pub(super) about: &'static str,
    /// What it needs beside `rocmforge`, which is always packed.
    pub(super) needs: &'static [Item],
    pub(super) run: fn(&mut Proof) -> Result<()>,
}

/// Something to pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    Xtask,
    /// The test programs of the GPU crate.
    GpuTests,
    /// The test program of the engine that has this module.
    EngineTest(&'static str),
    /// An example of the GPU crate.
    Example(&'static str),
    /// The model that the repository has.
    ForgeMini,
    /// llama.cpp's golden results, and other files of forge-mini.
    Golden,
    /// Texts, and the model stories260K.
    Texts,
}

use Item::{EngineTest, Example, ForgeMini, Golden, GpuTests, Texts, Xtask};

impl Part {
    /// The part of this name.
    ///
    /// # Errors
    /// If there is none; the error lists all parts.
    pub(super) fn find(name: &str) -> Result<&'static Part, String> {
        PARTS.iter().find(|part| part.name == name).ok_or_else(|| {
            let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
            format!("the parts are {}", names.join(", "))
        })
    }
}

macro_rules! parts {
    ($($name:literal $limit_s:literal [$($need:expr),*] $run:path, $about:literal;)*) => {
        &[$(Part { name: $name, limit_s: $limit_s, about: $about, needs: &[$($need),*], run: $run }),*]
    };
}

/// Every part, quick ones and basic ones first.
pub(super) static PARTS: &[Part] = parts! {
    "devices" 10 [] models::devices,
        "rocmforge devices";
    "ops" 180 [GpuTests] programs::ops,
        "every kernel against its oracle, forced variants included";
    "repeat" 900 [GpuTests] programs::repeat,
        "the same 100 times, which must give the same bits under load of the other tests";
    "sanitize" 1200 [GpuTests] programs::sanitize,
        "the same under compute-sanitizer (memcheck, racecheck)";
    "golden" 120 [Xtask, EngineTest("golden"), ForgeMini, Golden] models::golden,
        "forge-mini against llama.cpp's golden results and the CPU backend: the packed files, and --types made from F16";
    "archs" 300 [Xtask] archs::run,
        "every architecture in every type, --layers of true widths, against the CPU backend";
    "first-use" 240 [Xtask] models::first_use,
        "the check before the first use: 4 layers of every shape in Q4_K_M";
    "mixture" 30 [Xtask] models::mixture,
        "prefill and decode speed of a MoE model";
    "logits" 900 [Xtask] models::logits,
        "2 layers of true widths in every type against the CPU backend";
    "shift" 20 [EngineTest("gpu_shift"), ForgeMini] models::shift,
        "texts past a full context against the CPU backend: forge-mini and random models";
    "long" 60 [Xtask] models::long,
        "logits in Q4_K_M with one prompt of 2048 tokens";
    "variants" 90 [Xtask] models::variants,
        "logits in Q4_K_M with a prompt of 300 tokens, by each --kernel-variant";
    "full" 300 [Xtask] models::full,
        "llama-2-7b and llama-3.1-8b in Q4_K_M, all layers, against the CPU backend";
    "speed" 300 [Xtask] models::speed,
        "prefill and decode speed of llama-2-7b and llama-3.1-8b";
    "tune" 90 [Xtask] tune::run,
        "rocmforge tune, then speed with and without its results in turn; the text must stay the same";
    "memory" 90 [Xtask] models::memory,
        "peak device memory of qwen2.5-7b Q4_K_M with a context of 4096";
    "load" 90 [Xtask, Example("load_stages")] models::load,
        "the stages of loading llama-2-7b Q4_K_M, alone and together";
    "batch" 20 [Example("batch_matmul"), Example("async_launch"), EngineTest("lora_gpu")] models::batch,
        "eight products, grouped and one by one; batches in flight; LoRA adapters against the CPU backend";
    "profile" 180 [Xtask] models::profile,
        "rocmforge profile of llama-3.1-8b and qwen3-8b in Q4_K_M";
    "kv" 90 [Xtask, ForgeMini, Texts] kv::run,
        "each KV-cache type: operations and logits against the CPU backend, perplexity, decode speed at --depths";
    "hybrid" 60 [Xtask] models::hybrid,
        "models whose layers or experts the CPU and the GPU share, against the CPU backend; speed by --gpu-layers";
    "suites" 400 [] models::suites,
        "rocmforge bench matmul, attention, dequant and inference";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_parts_by_name() {
        for part in PARTS {
            let same = PARTS.iter().filter(|other| other.name == part.name);
            assert_eq!(same.count(), 1, "{}", part.name);
            assert_eq!(Part::find(part.name).unwrap().about, part.about);
        }
        let error = Part::find("op").unwrap_err();
        assert!(error.contains("devices, ops, repeat"), "{error}");
    }
}
