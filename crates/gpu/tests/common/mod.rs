//! What the tests of kernels share.

#![allow(dead_code, reason = "each test program takes what it needs of this")]

pub(crate) mod kv;
pub(crate) mod values;

use rocmforge_gpu::{Gpu, Variants, set_host_seed};
use zerocopy::{Immutable, IntoBytes};

/// The devices that tests run on: every persona of the host driver that this build has, or the one that
/// `ROCMFORGE_TEST_DEVICE` names (`cuda:0`).
pub(crate) fn gpus() -> Vec<Gpu> {
    if let Ok(name) = std::env::var("ROCMFORGE_TEST_DEVICE") {
        let id = name.parse().expect("ROCMFORGE_TEST_DEVICE is a device");
        return vec![Gpu::open(id).unwrap_or_else(|error| panic!("{name}: {error}"))];
    }
    let personas = ["gfx10", "gfx11", "gfx12", "cdna", "nv"];
    let gpus: Vec<Gpu> = personas
        .iter()
        .filter_map(|persona| Gpu::host(persona).ok())
        .collect();
    if gpus.is_empty() {
        println!("skipped: built without the target host");
    }
    gpus
}

/// The device as it is, and with each of these variants (`Variants` as text).
pub(crate) fn with_variants(gpu: &Gpu, variants: &[&str]) -> Vec<Gpu> {
    let others = variants.iter().map(|variant| {
        let parsed: Variants = variant.parse().expect("a variant");
        gpu.with_variants(parsed)
    });
    std::iter::once(gpu.clone()).chain(others).collect()
}

/// The devices of [`gpus`], and each with each of these variants.
pub(crate) fn gpus_with(variants: &[&str]) -> Vec<Gpu> {
    let gpus = gpus();
    let all = gpus.iter().flat_map(|gpu| with_variants(gpu, variants));
    all.collect()
}

/// What a test's message says of where it ran.
pub(crate) fn name(gpu: &Gpu) -> String {
    format!("{} {}", gpu.target(), gpu.variants())
}

/// Runs `run` three times, on the host driver with blocks, waves and lanes in another order each time, or as often as
/// `ROCMFORGE_TEST_REPEATS` says on a device, and demands the same bits. `run` sets up its inputs and outputs itself and gives what it read back.
pub(crate) fn three_orders<T: IntoBytes + Immutable>(run: impl Fn() -> Vec<T>) -> Vec<T> {
    let ordered = |seed| {
        set_host_seed(seed);
        run()
    };
    let first = ordered(1);
    let repeats =
        std::env::var("ROCMFORGE_TEST_REPEATS").map_or(3, |n| n.parse().expect("a number"));
    for seed in 2..=repeats {
        let again = ordered(seed);
        let pairs = first.as_bytes().iter().zip(again.as_bytes());
        let differs = pairs.clone().position(|(a, b)| a != b);
        let at = differs.map(|byte| byte / size_of::<T>());
        assert_eq!(at, None, "the result depends on the order (seed {seed})");
        assert_eq!(first.len(), again.len(), "as many values");
    }
    first
}
