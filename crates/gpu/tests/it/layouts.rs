//! The parameters of kernels have the same layout in Rust and in the kernels' sources.

use std::collections::BTreeSet;

use crate::common;
use rocmforge_gpu::images;

/// For every kernel: the size of its parameters, and offset and size of every number and address in them, and of the
/// entries of tables that they point to.
#[test]
fn parameters_are_passed_as_kernels_declare_them() {
    for gpu in common::all_gpus() {
        // Devices without matrix units have no kernel for prompts of the widest heads (attention_prefill.hip).
        let widest = gpu.constant("attention_prefill.F16", "widest").unwrap();
        let (missing, layouts): (Vec<_>, Vec<_>) = gpu
            .kernel_layouts()
            .into_iter()
            .partition(|(name, _)| *name == "prefill_256" && widest < 256);
        assert!(missing.iter().all(|(_, layout)| layout.is_err()));
        let layouts: Vec<_> = layouts
            .into_iter()
            .map(|(_, layout)| layout.unwrap())
            .collect();
        for layout in &layouts {
            let name = format!(
                "{} of {} for {}",
                layout.kernel,
                layout.module,
                gpu.target()
            );
            if let Some(declared) = &layout.declared {
                assert_eq!(
                    &layout.passed, declared,
                    "{name}: [offset, size] of each field"
                );
            }
        }
        // Every module of the build is among them.
        let tested: BTreeSet<&str> = layouts.iter().map(|layout| layout.module).collect();
        let mut built = images().iter().filter(|image| image.target == gpu.target());
        assert!(built.all(|image| tested.contains(image.module)));
    }
}
