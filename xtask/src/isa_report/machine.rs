//! Reference cards for the targets: how many waves fit, and how many cycles an instruction occupies a SIMD. Sources:
//! AMD's instruction set manuals and data sheets; LLVM's AMDGPU usage guide for register file sizes and granularity.

use super::metadata::Metadata;

/// A reference card.
pub(crate) struct Machine {
    pub(crate) card: &'static str,
    /// Memory bandwidth in GB/s.
    pub(crate) bandwidth: f64,
    n_units: f64,
    clock_ghz: f64,
    generation: Generation,
    /// Vector registers per lane of a SIMD, at the wave size of the kernels, and the allocation granularity.
    registers: (u64, u64),
}

#[derive(Clone, Copy, PartialEq)]
enum Generation {
    Rdna2,
    Rdna3,
    Rdna4,
    Cdna2,
    Cdna3,
}

const MACHINES: &[(&str, Machine)] = &[
    (
        "gfx1030",
        machine(
            "RX 6800 XT",
            512.0,
            (72.0, 2.25),
            Generation::Rdna2,
            (1024, 16),
        ),
    ),
    (
        "gfx1100",
        machine(
            "RX 7900 XT",
            800.0,
            (84.0, 2.4),
            Generation::Rdna3,
            (1536, 24),
        ),
    ),
    (
        "gfx1151",
        machine(
            "Radeon 8060S",
            256.0,
            (40.0, 2.9),
            Generation::Rdna3,
            (1536, 24),
        ),
    ),
    (
        "gfx1201",
        machine(
            "RX 9070 XT",
            640.0,
            (64.0, 2.97),
            Generation::Rdna4,
            (1536, 24),
        ),
    ),
    (
        "gfx90a",
        machine(
            "MI250X, one die",
            1600.0,
            (110.0, 1.7),
            Generation::Cdna2,
            (512, 8),
        ),
    ),
    (
        "gfx942",
        machine("MI300X", 5300.0, (304.0, 2.1), Generation::Cdna3, (512, 8)),
    ),
];

const fn machine(
    card: &'static str,
    bandwidth: f64,
    (n_units, clock_ghz): (f64, f64),
    generation: Generation,
    registers: (u64, u64),
) -> Machine {
    Machine {
        card,
        bandwidth,
        n_units,
        clock_ghz,
        generation,
        registers,
    }
}

/// Returns the reference card of a target.
pub(crate) fn of(target: &str) -> Option<&'static Machine> {
    let found = MACHINES.iter().find(|(name, _)| *name == target);
    found.map(|(_, machine)| machine)
}

/// Returns the targets with a reference card.
pub(crate) fn targets() -> impl Iterator<Item = &'static str> {
    MACHINES.iter().map(|(name, _)| *name)
}

impl Machine {
    fn is_cdna(&self) -> bool {
        matches!(self.generation, Generation::Cdna2 | Generation::Cdna3)
    }

    /// SIMDs of a compute unit, which share 64 KiB of shared memory.
    fn n_simds(&self) -> u64 {
        if self.is_cdna() { 4 } else { 2 }
    }

    /// Returns the occupancy: waves of a kernel per SIMD, limited by registers and static shared memory. Dynamic shared
    /// memory is not known here.
    pub(crate) fn occupancy(&self, kernel: &Metadata) -> u64 {
        let (file, granule) = self.registers;
        let most = if self.is_cdna() { 8 } else { 16 };
        let by_vgprs = file / kernel.vgprs.max(1).next_multiple_of(granule);
        let by_sgprs = if self.is_cdna() {
            800 / kernel.sgprs.max(1)
        } else {
            most
        };
        let waves_per_block = kernel.block_size.div_ceil(kernel.wave_size.max(1)).max(1);
        let by_lds = match kernel.lds_bytes {
            0 => most,
            bytes => {
                // On RDNA two compute units share their memory, which halves the rounding loss.
                let pairs = if self.is_cdna() { 1 } else { 2 };
                let blocks = pairs * 65_536 / bytes.next_multiple_of(512);
                (blocks * waves_per_block).div_ceil(pairs * self.n_simds())
            }
        };
        most.min(by_vgprs).min(by_sgprs).min(by_lds.max(1))
    }

    /// SIMD cycles of a wave's vector instruction.
    pub(crate) fn vector_cycles(&self, mnemonic: &str) -> f64 {
        let base = if self.is_cdna() { 4.0 } else { 1.0 };
        if let Some(operations) = matrix_operations(mnemonic) {
            return operations / self.matrix_rate(mnemonic);
        }
        let quarter_rate = [
            "v_exp_",
            "v_log_",
            "v_rcp_",
            "v_rsq_",
            "v_sqrt_",
            "v_sin_",
            "v_cos_",
            "v_mul_lo_u32",
            "v_mul_hi_",
            "v_mad_u64",
            "v_mad_i64",
            "v_mad_co_u64",
            "v_mad_co_i64",
        ];
        let is_slow = quarter_rate
            .iter()
            .any(|prefix| mnemonic.starts_with(prefix));
        if is_slow { 4.0 * base } else { base }
    }

    /// Cycles between two scalar or memory instructions on one SIMD.
    pub(crate) fn other_cycles(&self) -> f64 {
        if self.is_cdna() { 4.0 } else { 1.0 }
    }

    /// Multiplications and additions per cycle of a SIMD's matrix unit.
    fn matrix_rate(&self, mnemonic: &str) -> f64 {
        let inputs = mnemonic.rsplit('x').next().unwrap_or("");
        let is_int8 = inputs.contains("i8") || inputs.contains("iu8");
        let is_f32 = inputs.contains("f32");
        match self.generation {
            Generation::Rdna2 | Generation::Rdna3 => 256.0,
            Generation::Rdna4 if is_int8 => 1024.0,
            Generation::Rdna4 => 512.0,
            _ if is_f32 => 64.0,
            Generation::Cdna2 => 256.0,
            Generation::Cdna3 if is_int8 => 1024.0,
            Generation::Cdna3 => 512.0,
        }
    }

    /// Returns the GB/s of a loop that loads `bytes` per wave and takes `cycles` of its SIMD, limited by instruction
    /// issue only.
    pub(crate) fn issue_bandwidth(&self, bytes: f64, cycles: f64) -> f64 {
        bytes / cycles * self.n_simds() as f64 * self.n_units * self.clock_ghz
    }
}

/// Returns the multiplications and additions of an instruction such as `v_wmma_i32_16x16x16_iu8`.
fn matrix_operations(mnemonic: &str) -> Option<f64> {
    let shape = ["v_wmma_", "v_swmmac_", "v_mfma_", "v_smfmac_"]
        .iter()
        .find_map(|prefix| mnemonic.strip_prefix(prefix))?
        .split('_')
        .find(|part| part.matches('x').count() == 2)?;
    // The last side may run into the type: `16x16x32i8`.
    let sides = shape.split('x').map(|side| {
        let digits = side.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<f64>().ok()
    });
    sides.product::<Option<f64>>().map(|product| 2.0 * product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_matches_the_compiler() {
        // Kernels of this project, and what `clang -Rpass-analysis=kernel-resource-usage` of LLVM 19 reports.
        let cases = [
            ("gfx1030", 65, 32, 256, 12),
            ("gfx1030", 138, 1056, 128, 7),
            ("gfx1030", 226, 8448, 128, 4),
            ("gfx1100", 59, 128, 256, 16),
            ("gfx1100", 100, 32, 256, 12),
            ("gfx1100", 200, 8320, 128, 7),
            ("gfx1100", 241, 42_240, 64, 2),
            ("gfx1201", 163, 4160, 128, 9),
            ("gfx942", 66, 64, 256, 7),
            ("gfx942", 141, 1040, 128, 3),
            ("gfx942", 257, 16_512, 128, 1),
        ];
        for (target, vgprs, lds_bytes, block_size, waves) in cases {
            let kernel = Metadata {
                vgprs,
                sgprs: 30,
                lds_bytes,
                wave_size: if target.starts_with("gfx9") { 64 } else { 32 },
                block_size,
                ..Metadata::default()
            };
            let machine = of(target).unwrap();
            assert_eq!(
                machine.occupancy(&kernel),
                waves,
                "{target} {vgprs} {lds_bytes}"
            );
        }
    }

    #[test]
    fn cycles_match_the_manuals() {
        let cases = [
            ("gfx1100", "v_wmma_f32_16x16x16_f16", 32.0),
            ("gfx1100", "v_wmma_i32_16x16x16_iu8", 32.0),
            ("gfx1201", "v_wmma_f32_16x16x16_bf16", 16.0),
            ("gfx1201", "v_wmma_i32_16x16x16_iu8", 8.0),
            ("gfx90a", "v_mfma_f32_16x16x16f16", 32.0),
            ("gfx90a", "v_mfma_i32_16x16x16i8", 32.0),
            ("gfx942", "v_mfma_i32_16x16x32_i8", 16.0),
            ("gfx942", "v_mfma_f32_16x16x16_f16", 16.0),
            ("gfx942", "v_mfma_f32_16x16x4_f32", 32.0),
            ("gfx1100", "v_fma_f32", 1.0),
            ("gfx1100", "v_exp_f32_e32", 4.0),
            ("gfx942", "v_dot4c_i32_i8_e32", 4.0),
        ];
        for (target, mnemonic, cycles) in cases {
            assert_eq!(
                of(target).unwrap().vector_cycles(mnemonic),
                cycles,
                "{mnemonic}"
            );
        }
    }
}
