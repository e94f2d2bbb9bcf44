//! Parses the compiler's metadata of kernels, the note NT_AMDGPU_METADATA as `llvm-readobj --notes` prints it ("Code
//! Object V3 Metadata" and later in LLVM's AMDGPU usage guide).

use std::collections::BTreeMap;

/// The resources of a kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Metadata {
    /// Vector registers per lane, those of the matrix unit included.
    pub(crate) vgprs: u64,
    pub(crate) sgprs: u64,
    /// Static shared memory of a block.
    pub(crate) lds_bytes: u64,
    /// Scratch memory per lane.
    pub(crate) scratch_bytes: u64,
    /// Vector registers spilled to scratch memory or to registers of the matrix unit.
    pub(crate) vector_spills: u64,
    /// Scalar registers spilled to lanes of a vector register.
    pub(crate) scalar_spills: u64,
    pub(crate) wave_size: u64,
    /// Maximum threads of a block.
    pub(crate) block_size: u64,
}

/// Returns the kernels of a note, by name.
pub(crate) fn parse(text: &str) -> BTreeMap<String, Metadata> {
    let mut kernels = BTreeMap::new();
    let mut current: Option<(String, Metadata)> = None;
    let in_kernels = text
        .lines()
        .skip_while(|line| !line.starts_with("amdhsa.kernels:"))
        .skip(1)
        .take_while(|line| line.starts_with(' '));
    for line in in_kernels {
        // Kernels are list items indented by two spaces, their fields by four. Deeper lines describe arguments.
        let field = if let Some(field) = line.strip_prefix("  - ") {
            kernels.extend(current.replace(Default::default()));
            field
        } else {
            match line.strip_prefix("    ") {
                Some(field) if !field.starts_with(' ') => field,
                _ => continue,
            }
        };
        let (Some((name, kernel)), Some((key, value))) = (&mut current, field.split_once(':'))
        else {
            continue;
        };
        let value = value.trim();
        let number = value.parse().unwrap_or(0);
        match key {
            ".name" => *name = value.trim_matches('\'').into(),
            ".vgpr_count" => kernel.vgprs = number,
            ".sgpr_count" => kernel.sgprs = number,
            ".group_segment_fixed_size" => kernel.lds_bytes = number,
            ".private_segment_fixed_size" => kernel.scratch_bytes = number,
            ".vgpr_spill_count" => kernel.vector_spills = number,
            ".sgpr_spill_count" => kernel.scalar_spills = number,
            ".wavefront_size" => kernel.wave_size = number,
            ".max_flat_workgroup_size" => kernel.block_size = number,
            _ => {}
        }
    }
    kernels.extend(current);
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_note() {
        let text = "      AMDGPU Metadata: ---\n\
            amdhsa.kernels:\n  \
            - .agpr_count:     0\n    \
              .args:\n      \
                - .offset:         0\n        \
                  .size:           24\n    \
              .group_segment_fixed_size: 128\n    \
              .max_flat_workgroup_size: 256\n    \
              .name:           argmax\n    \
              .private_segment_fixed_size: 16\n    \
              .sgpr_count:     31\n    \
              .sgpr_spill_count: 2\n    \
              .vgpr_count:     36\n    \
              .vgpr_spill_count: 1\n    \
              .wavefront_size: 64\n  \
            - .name:           other\n    \
              .vgpr_count:     7\n\
            amdhsa.target:   amdgcn-amd-amdhsa--gfx942\n";
        let kernels = parse(text);
        let argmax = Metadata {
            vgprs: 36,
            sgprs: 31,
            lds_bytes: 128,
            scratch_bytes: 16,
            vector_spills: 1,
            scalar_spills: 2,
            wave_size: 64,
            block_size: 256,
        };
        assert_eq!(kernels.len(), 2);
        assert_eq!(kernels["argmax"], argmax);
        assert_eq!(kernels["other"].vgprs, 7);
    }
}
