//! Ready-made rocprofv3 sessions for common questions about an AMD GPU.
//!
//! `profile_memory(dir, family).run("rocmforge", ["bench"], &|| false)` runs the program once for the times and once
//! for each set of counters.

use std::path::PathBuf;

use super::counters::{CounterCategory, GpuFamily};
use super::rocprof::{ProfilingConfig, RocprofSession};

/// Matches the names of our GEMM and GEMV kernels.
const PRODUCTS: &str = "^mat(mul|vec)";

/// Where the time goes: kernels and HIP calls.
pub fn profile_kernel(dir: impl Into<PathBuf>) -> RocprofSession {
    RocprofSession::with_config(ProfilingConfig::new(dir).with_hip_trace(true))
}

/// How many bytes each kernel moves; with its time, its bandwidth.
pub fn profile_memory(dir: impl Into<PathBuf>, family: GpuFamily) -> RocprofSession {
    counting(dir, family, &[CounterCategory::Memory])
}

/// What kernels wait for: memory traffic, cache hits, stalls.
pub fn profile_memory_detailed(dir: impl Into<PathBuf>, family: GpuFamily) -> RocprofSession {
    use CounterCategory::{Cache, Memory, Stalls};
    counting(dir, family, &[Memory, Cache, Stalls])
}

/// Memory traffic, cache hits and workgroup-shared memory of the GEMM and GEMV kernels.
pub fn profile_matmul_memory(dir: impl Into<PathBuf>, family: GpuFamily) -> RocprofSession {
    use CounterCategory::{Cache, Lds, Memory};
    let config = config(dir, family, &[Memory, Cache, Lds]);
    RocprofSession::with_config(config.with_kernels(PRODUCTS))
}

/// Utilization of the compute units: busy time, waves and instructions.
pub fn profile_compute_unit(dir: impl Into<PathBuf>, family: GpuFamily) -> RocprofSession {
    use CounterCategory::{ComputeUnit, Instructions, Waves};
    counting(dir, family, &[ComputeUnit, Waves, Instructions])
}

fn counting(
    dir: impl Into<PathBuf>,
    family: GpuFamily,
    categories: &[CounterCategory],
) -> RocprofSession {
    RocprofSession::with_config(config(dir, family, categories))
}

fn config(
    dir: impl Into<PathBuf>,
    family: GpuFamily,
    categories: &[CounterCategory],
) -> ProfilingConfig {
    let start = ProfilingConfig::new(dir);
    categories.iter().fold(start, |config, category| {
        config.with_category(*category, family)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_have_the_expected_runs() {
        let family = GpuFamily::Gfx11;
        for (session, expected) in [
            (
                profile_kernel("d"),
                &["--kernel-trace --hip-trace --output-format csv -d d -o rocmforge -- app"][..],
            ),
            (
                profile_memory("d", family),
                &[
                    "--kernel-trace --output-format csv -d d -o rocmforge -- app",
                    "--pmc FETCH_SIZE --output-format csv -d d -o rocmforge_pmc1 -- app",
                    "--pmc WRITE_SIZE --output-format csv -d d -o rocmforge_pmc2 -- app",
                ],
            ),
            (
                profile_memory_detailed("d", GpuFamily::Gfx12),
                &[
                    "--kernel-trace --output-format csv -d d -o rocmforge -- app",
                    "--pmc FETCH_SIZE GL2C_EA_WRREQ_64B_sum --output-format csv -d d -o rocmforge_pmc1 -- app",
                    "--pmc GL2C_HIT_sum GL2C_MISS_sum --output-format csv -d d -o rocmforge_pmc2 -- app",
                    "--pmc SQ_WAIT_ANY SQ_WAIT_INST_ANY --output-format csv -d d -o rocmforge_pmc3 -- app",
                ],
            ),
            (
                profile_matmul_memory("d", GpuFamily::Gfx9),
                &[
                    "--kernel-trace --output-format csv -d d -o rocmforge -- app",
                    "--pmc FETCH_SIZE --kernel-include-regex '^mat(mul|vec)' --output-format csv -d d -o rocmforge_pmc1 -- app",
                    "--pmc WRITE_SIZE --kernel-include-regex '^mat(mul|vec)' --output-format csv -d d -o rocmforge_pmc2 -- app",
                    "--pmc TCC_HIT_sum TCC_MISS_sum --kernel-include-regex '^mat(mul|vec)' --output-format csv -d d -o rocmforge_pmc3 -- app",
                    "--pmc SQ_INSTS_LDS SQ_LDS_BANK_CONFLICT SQ_LDS_IDX_ACTIVE --kernel-include-regex '^mat(mul|vec)' --output-format csv -d d -o rocmforge_pmc4 -- app",
                ],
            ),
            (
                profile_compute_unit("d", family),
                &[
                    "--kernel-trace --output-format csv -d d -o rocmforge -- app",
                    "--pmc GRBM_COUNT GRBM_GUI_ACTIVE SQ_BUSY_CYCLES --output-format csv -d d -o rocmforge_pmc1 -- app",
                    "--pmc SQ_WAVES SQ_WAVE_CYCLES SQ_BUSY_CYCLES OccupancyPercent --output-format csv -d d -o rocmforge_pmc2 -- app",
                    "--pmc SQ_INSTS_VALU SQ_INSTS_SALU SQ_INSTS_SMEM SQ_INSTS_TEX_LOAD SQ_INSTS_TEX_STORE --output-format csv -d d -o rocmforge_pmc3 -- app",
                ],
            ),
        ] {
            let commands = session.commands("app", [""; 0]);
            let printed: Vec<String> = commands.iter().map(ToString::to_string).collect();
            let expected: Vec<String> = expected
                .iter()
                .map(|args| format!("rocprofv3 {args}"))
                .collect();
            assert_eq!(printed, expected);
        }
    }
}
