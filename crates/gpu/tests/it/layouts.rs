//! The parameters of kernels have the same layout in Rust and in the kernels' sources.

use std::collections::BTreeSet;

use crate::common;
use rocmforge_gpu::{Field, images};

/// Kernels that need matrix units.
const WIDE: [&str; 6] = [
    "prefill_192_128",
    "prefill_256",
    "prefill_512",
    "prefill_latent_576_512",
    "prefill_latent_320_256",
    "prefill_latent_288_256",
];

/// For every kernel: the size of its parameters, and name, offset and size of every field in them and in the entries of
/// tables that they point to.
#[test]
fn parameters_are_passed_as_kernels_declare_them() {
    for gpu in common::all_gpus() {
        // Devices without matrix units have no kernels for prompts of the widest heads (attention_prefill.hip).
        let widest = gpu.constant("attention_prefill.F16", "widest").unwrap();
        let (missing, layouts): (Vec<_>, Vec<_>) = gpu
            .kernel_layouts()
            .into_iter()
            .partition(|(name, _)| WIDE.contains(name) && widest <= 128);
        assert!(missing.iter().all(|(_, layout)| layout.is_err()));
        let layouts: Vec<_> = layouts
            .into_iter()
            .map(|(_, layout)| layout.unwrap())
            .collect();
        let mut different = Vec::new();
        for layout in &layouts {
            let name = format!(
                "{} of {} for {}",
                layout.kernel,
                layout.module,
                gpu.target()
            );
            if let Some(declared) = &layout.declared {
                let differs = |(a, b): &(&Field, &Field)| a != b;
                let mut pairs = layout.passed.iter().zip(declared);
                if let Some((passed, declared)) = pairs.find(differs) {
                    different.push(format!(
                        "{name} is passed {passed:?}, and declares {declared:?}"
                    ));
                }
                assert_eq!(layout.passed.len(), declared.len(), "fields of {name}");
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n"));
        // Every module of the build is among them.
        let tested: BTreeSet<&str> = layouts.iter().map(|layout| layout.module).collect();
        let mut built = images().iter().filter(|image| image.target == gpu.target());
        assert!(built.all(|image| tested.contains(image.module)));
    }
}
