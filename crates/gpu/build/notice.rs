//! What the build says about itself.

/// Returns what to say of a build without any kernels that nobody asked for: the GPU may be hidden from the build, as in
/// a container. `targets`: what `wanted` expands to.
pub(crate) fn no_kernels(wanted: &str, targets: &[String]) -> Option<&'static str> {
    (targets.is_empty() && wanted.trim() == "native").then_some(
        "no GPU is visible here, so this build contains no GPU kernels and runs on the CPU only; for a GPU, set \
         ROCMFORGE_GPU_TARGETS to a list such as gfx1100,sm_80",
    )
}
