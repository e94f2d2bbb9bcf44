//! The parameters of kernels have the same layout in Rust and in the kernels' sources.

use std::collections::BTreeSet;

use crate::common;
use rocmforge_gpu::images;

/// For every kernel: the size of its parameters, and offset and size of every number and address in them, and of the
/// entries of tables that they point to.
#[test]
fn parameters_are_passed_as_kernels_declare_them() {
    for gpu in common::all_gpus() {
        let layouts = gpu.kernel_layouts().unwrap();
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
