//! Shared parts of the kernels' tests.

pub(crate) mod activations;
pub(crate) mod acts;
pub(crate) mod formats;
pub(crate) mod kv;
pub(crate) mod mixture;
pub(crate) mod values;
pub(crate) mod weights;

use rocmforge_gguf::GgmlType;
use rocmforge_gpu::{
    Event, Gpu, GpuError, KvTypes, Persona, Trace, Variants, images, set_host_seed,
};
use zerocopy::{Immutable, IntoBytes};

/// Every device of this run: the emulated GPUs that this build has kernels for, or the device that `ROCMFORGE_TEST_DEVICE`
/// names (`cuda:0`). Those that check memory accesses come first.
pub(crate) fn all_gpus() -> Vec<Gpu> {
    if let Ok(name) = std::env::var("ROCMFORGE_TEST_DEVICE") {
        let id = name.parse().expect("ROCMFORGE_TEST_DEVICE is a device");
        return vec![Gpu::open(id).unwrap_or_else(|error| panic!("{name}: {error}"))];
    }
    let personas = Persona::ALL.iter();
    let mut gpus: Vec<Gpu> = personas
        .filter_map(|persona| Gpu::host(persona.name()).ok())
        .collect();
    // Then those that the build has most modules for: `gpus` would leave out what only later ones have.
    let n_modules = |gpu: &Gpu| images().iter().filter(|i| i.target == gpu.target()).count();
    gpus.sort_by_key(|gpu| (is_unchecked(gpu), std::cmp::Reverse(n_modules(gpu))));
    if gpus.is_empty() {
        println!("skipped: built without the target host");
    }
    gpus
}

/// Whether it is the emulated GPU that checks no memory accesses.
pub(crate) fn is_unchecked(gpu: &Gpu) -> bool {
    gpu.target() == "host-quick"
}

/// The devices to run a kernel's test on: each of [`all_gpus`] whose kernels differ from those that were tested before.
///
/// Emulated GPUs whose kernels preprocess to the same source share their images (e.g. all with waves of 32 lanes share
/// `norm`). A device is skipped if every module that the loop's body loaded on another one is the same image here. So
/// the body must not choose modules by device, and may keep no result from one device for the next.
pub(crate) fn gpus() -> impl Iterator<Item = Gpu> {
    gpus_from(0)
}

/// The devices of [`gpus`], of which `turn` says the first.
pub(crate) fn gpus_from(turn: usize) -> impl Iterator<Item = Gpu> {
    let mut tested: Vec<Gpu> = Vec::new();
    let mut all = all_gpus();
    let first = turn.checked_rem(all.len()).unwrap_or(0);
    all.rotate_left(first);
    all.into_iter().filter(move |gpu| {
        let is_new = !tested.iter().any(|before| shares_kernels(before, gpu));
        if is_new {
            tested.push(gpu.clone());
        }
        is_new
    })
}

/// Whether the build has the kernels of a weight format for a device. CI has those of some formats for some devices
/// (`build/sample.rs`).
pub(crate) fn has_format(gpu: &Gpu, ty: GgmlType) -> bool {
    has_module(gpu, &format!("rows.{}", ty.name()))
}

/// The same of attention in a KV cache.
pub(crate) fn has_attention(gpu: &Gpu, types: KvTypes) -> bool {
    has_module(gpu, &format!("attention_decode.{}", types.name()))
}

fn has_module(gpu: &Gpu, module: &str) -> bool {
    let mut built = images().iter();
    built.any(|image| image.target == gpu.target() && image.module == module)
}

/// The devices of [`gpus`] for which the build has the kernels of a weight format.
pub(crate) fn gpus_of(ty: GgmlType) -> impl Iterator<Item = Gpu> {
    gpus_of_all([ty])
}

/// The same of all of these formats.
pub(crate) fn gpus_of_all<const N: usize>(types: [GgmlType; N]) -> impl Iterator<Item = Gpu> {
    let has_all = move |gpu: &Gpu| types.iter().all(|&ty| has_format(gpu, ty));
    let all = all_gpus();
    assert!(
        all.is_empty() || all.iter().any(has_all),
        "no device has kernels for {types:?}"
    );
    gpus().filter(has_all)
}

/// Whether all modules that `tested` has loaded are the same images for `gpu`.
fn shares_kernels(tested: &Gpu, gpu: &Gpu) -> bool {
    let modules = tested.loaded_modules();
    let find = |gpu: &Gpu, module: &str| {
        let mut all = images().iter();
        all.find(|image| image.target == gpu.target() && image.module == module)
    };
    // Compiled without checks all images are others. The kernels are, where the others have matrix units.
    let of_units = ["gemm.", "attention_"];
    let is_same = |module: &&str| match (find(tested, module), find(gpu, module)) {
        (Some(_), Some(_)) if is_unchecked(gpu) => {
            !of_units.iter().any(|name| module.starts_with(name))
        }
        (Some(one), Some(other)) => one.is_same(other),
        _ => false,
    };
    !modules.is_empty() && modules.iter().all(is_same)
}

/// The device without variants, and with each of these (`Variants` as text).
pub(crate) fn with_variants(gpu: &Gpu, variants: &[&str]) -> Vec<Gpu> {
    let others = variants.iter().map(|variant| {
        let parsed: Variants = variant.parse().expect("a variant");
        gpu.with_variants(parsed)
    });
    std::iter::once(gpu.clone()).chain(others).collect()
}

/// The devices of [`gpus`], without variants and with each of these.
pub(crate) fn gpus_with(variants: &[&str]) -> impl Iterator<Item = Gpu> {
    gpus().flat_map(move |gpu| with_variants(&gpu, variants))
}

/// Names the device and its variants in messages.
pub(crate) fn name(gpu: &Gpu) -> String {
    format!("{} {}", gpu.target(), gpu.variants())
}

/// Returns the kernels that `launch` queues.
pub(crate) fn kernels(
    gpu: &Gpu,
    launch: impl FnOnce() -> Result<(), GpuError>,
) -> Vec<&'static str> {
    let origin = Event::new(gpu).unwrap();
    origin.record().unwrap();
    let mut trace = Trace::new(gpu);
    trace.record(launch).unwrap();
    gpu.synchronize().unwrap();
    let times = trace.times(&origin).unwrap();
    times.iter().map(|time| time.kernel).collect()
}

/// How often tests run each kernel, if the environment says it (`ROCMFORGE_TEST_REPEATS`). Then they leave out nothing.
pub(crate) fn repeats() -> Option<u64> {
    let repeats = std::env::var("ROCMFORGE_TEST_REPEATS").ok()?;
    Some(repeats.parse().expect("a number"))
}

/// Every second case, from the first or the second on as `turn` says; all of them if repeats are asked for, and on a real
/// GPU, which is fast. Two lists that are combined so still have each of their entries with half of the other's.
pub(crate) fn every_second<T>(
    cases: impl IntoIterator<Item = T>,
    turn: usize,
) -> impl Iterator<Item = T> {
    let has_all = repeats().is_some() || std::env::var_os("ROCMFORGE_TEST_DEVICE").is_some();
    let cases = cases.into_iter().enumerate();
    cases.filter_map(move |(i, case)| (has_all || (i + turn).is_multiple_of(2)).then_some(case))
}

/// Runs `run` twice (or as often as [`repeats`]) and asserts equal bits. The emulator runs blocks, waves
/// and lanes in another order each time. `run` sets up its own inputs and outputs and returns what it read back.
pub(crate) fn any_order<T: IntoBytes + Immutable>(run: impl Fn() -> Vec<T>) -> Vec<T> {
    let ordered = |seed| {
        set_host_seed(seed);
        run()
    };
    let first = ordered(1);
    for seed in 2..=repeats().unwrap_or(2) {
        let again = ordered(seed);
        let pairs = first.as_bytes().iter().zip(again.as_bytes());
        let differs = pairs.clone().position(|(a, b)| a != b);
        let at = differs.map(|byte| byte / size_of::<T>());
        assert_eq!(at, None, "the result depends on the order (seed {seed})");
        assert_eq!(first.len(), again.len(), "as many values");
    }
    first
}
