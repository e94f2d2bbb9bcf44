//! What the tests of kernels share.

use rocmforge_gpu::Gpu;

/// The devices that tests run on: every persona of the host driver that this build has.
pub(crate) fn gpus() -> Vec<Gpu> {
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
