//! Hardware counters by category, under the vendors' names.
//!
//! AMD names come from rocprofiler-sdk's counter definitions (ROCm 7) for the architectures of a family. Counters that
//! a family does not define are omitted, and on gfx12 those that need SQ_WAVE_CYCLES, which reads zero there. Others
//! may read zero too: gfx10 to gfx12 count only in a stable power state (README of rocprofiler-sdk). They are asked for; a
//! counter that reads zero for every kernel is reported as unavailable. A run can collect at most eight counters of the
//! sequencer (SQ), four of the cache and two of GRBM. NVIDIA names are Nsight Compute's; those of a CPU are perf's
//! generic events.

use std::str::FromStr;

use super::error::ExternalError;

/// A category of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CounterCategory {
    /// Instruction counts by kind.
    Instructions,
    /// Waves or warps: number and duration; on a CPU thread scheduling.
    Waves,
    /// Memory traffic.
    Memory,
    /// Cache hits and misses.
    Cache,
    /// Utilization of the compute units.
    ComputeUnit,
    /// Workgroup-shared memory: accesses and bank conflicts.
    Lds,
    /// Stall reasons of waves.
    Stalls,
}

impl CounterCategory {
    pub const ALL: [CounterCategory; 7] = [
        CounterCategory::Instructions,
        CounterCategory::Waves,
        CounterCategory::Memory,
        CounterCategory::Cache,
        CounterCategory::ComputeUnit,
        CounterCategory::Lds,
        CounterCategory::Stalls,
    ];

    pub fn name(self) -> &'static str {
        match self {
            CounterCategory::Instructions => "instructions",
            CounterCategory::Waves => "waves",
            CounterCategory::Memory => "memory",
            CounterCategory::Cache => "cache",
            CounterCategory::ComputeUnit => "compute-unit",
            CounterCategory::Lds => "lds",
            CounterCategory::Stalls => "stalls",
        }
    }

    /// Returns rocprofiler-sdk's counters grouped by run; the counters of a run fit into the hardware's registers
    /// together.
    pub fn of_amd(self, family: GpuFamily) -> &'static [&'static [&'static str]] {
        use CounterCategory as C;
        use GpuFamily::{Gfx9, Gfx10, Gfx11, Gfx12};
        match (self, family) {
            (C::Instructions, Gfx9) => &[&[
                "SQ_INSTS_VALU",
                "SQ_INSTS_SALU",
                "SQ_INSTS_SMEM",
                "SQ_INSTS_VMEM_RD",
                "SQ_INSTS_VMEM_WR",
            ]],
            (C::Instructions, Gfx10) => &[&[
                "SQ_INSTS_VALU",
                "SQ_INSTS_SALU",
                "SQ_INSTS_SMEM",
                "SQ_INSTS_FLAT",
            ]],
            (C::Instructions, Gfx11 | Gfx12) => &[&[
                "SQ_INSTS_VALU",
                "SQ_INSTS_SALU",
                "SQ_INSTS_SMEM",
                "SQ_INSTS_TEX_LOAD",
                "SQ_INSTS_TEX_STORE",
            ]],
            // On gfx12 SQ_WAVE_CYCLES is defined but always reads zero: ROCm/rocm-systems, issue 8523. OccupancyPercent
            // needs it.
            (C::Waves, Gfx12) => &[&["SQ_WAVES", "SQ_BUSY_CYCLES"]],
            (C::Waves, _) => &[&[
                "SQ_WAVES",
                "SQ_WAVE_CYCLES",
                "SQ_BUSY_CYCLES",
                "OccupancyPercent",
            ]],
            // gfx12 does not define WRITE_SIZE.
            (C::Memory, Gfx12) => &[&["FETCH_SIZE", "GL2C_EA_WRREQ_64B_sum"]],
            // Each is derived from three or four cache counters.
            (C::Memory, _) => &[&["FETCH_SIZE"], &["WRITE_SIZE"]],
            (C::Cache, Gfx9) => &[&["TCC_HIT_sum", "TCC_MISS_sum"]],
            (C::Cache, _) => &[&["GL2C_HIT_sum", "GL2C_MISS_sum"]],
            (C::ComputeUnit, Gfx9) => &[&["GRBM_COUNT", "GRBM_GUI_ACTIVE", "SQ_ACTIVE_INST_VALU"]],
            (C::ComputeUnit, _) => &[&["GRBM_COUNT", "GRBM_GUI_ACTIVE", "SQ_BUSY_CYCLES"]],
            (C::Lds, Gfx9) => &[&["SQ_INSTS_LDS", "SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE"]],
            (C::Lds, _) => &[&[
                "SQ_INSTS_LDS",
                "SQC_LDS_BANK_CONFLICT",
                "SQC_LDS_IDX_ACTIVE",
            ]],
            (C::Stalls, Gfx12) => &[&["SQ_WAIT_ANY", "SQ_WAIT_INST_ANY"]],
            (C::Stalls, _) => &[&["SQ_WAIT_ANY", "SQ_WAIT_INST_ANY", "SQ_WAIT_INST_LDS"]],
        }
    }

    /// Returns Nsight Compute's metrics.
    pub fn of_nvidia(self) -> &'static [&'static str] {
        match self {
            CounterCategory::Instructions => &[
                "smsp__inst_executed.sum",
                "sm__inst_executed_pipe_tensor.sum",
                "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
            ],
            CounterCategory::Waves => &[
                "sm__warps_active.avg.pct_of_peak_sustained_active",
                "launch__waves_per_multiprocessor",
                "launch__registers_per_thread",
            ],
            CounterCategory::Memory => &[
                "dram__bytes_read.sum",
                "dram__bytes_write.sum",
                "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            ],
            CounterCategory::Cache => {
                &["l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"]
            }
            CounterCategory::ComputeUnit => &[
                "sm__throughput.avg.pct_of_peak_sustained_elapsed",
                "sm__cycles_active.avg",
            ],
            CounterCategory::Lds => &[
                "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
            ],
            CounterCategory::Stalls => &[
                "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
                "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
                "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",
                "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio",
            ],
        }
    }

    /// Returns perf's events.
    ///
    /// # Errors
    /// For [`CounterCategory::Lds`]: a CPU has no workgroup-shared memory.
    pub fn of_cpu(self) -> Result<&'static [&'static str], ExternalError> {
        Ok(match self {
            CounterCategory::Instructions => &["instructions", "branches", "branch-misses"],
            CounterCategory::Waves => &["context-switches", "cpu-migrations"],
            CounterCategory::Memory => &["LLC-load-misses", "page-faults", "dTLB-load-misses"],
            CounterCategory::Cache => {
                &["cache-references", "cache-misses", "L1-dcache-load-misses"]
            }
            CounterCategory::ComputeUnit => &["task-clock", "cycles"],
            CounterCategory::Stalls => &["stalled-cycles-frontend", "stalled-cycles-backend"],
            CounterCategory::Lds => {
                return Err(ExternalError::BadRequest(
                    "a CPU has no counters of the category lds; omit it".to_string(),
                ));
            }
        })
    }
}

impl FromStr for CounterCategory {
    type Err = ExternalError;

    fn from_str(name: &str) -> Result<CounterCategory, ExternalError> {
        let known = CounterCategory::ALL.map(CounterCategory::name);
        let found = CounterCategory::ALL
            .into_iter()
            .find(|category| category.name() == name);
        found.ok_or_else(|| {
            ExternalError::BadRequest(format!(
                "unknown counter category '{}'; known: {}",
                super::process::printable(name, 40),
                known.join(", ")
            ))
        })
    }
}

/// A family of AMD GPUs with the same counter names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuFamily {
    /// CDNA: Instinct MI100 and later (gfx908, gfx90a, gfx94x, gfx950).
    Gfx9,
    /// RDNA1 and RDNA2.
    Gfx10,
    /// RDNA3 and 3.5.
    Gfx11,
    /// RDNA4.
    Gfx12,
}

impl GpuFamily {
    /// Returns the family of an architecture such as `gfx1100`; suffixes such as `:xnack-` are ignored.
    pub fn of_architecture(name: &str) -> Option<GpuFamily> {
        let number = name.strip_prefix("gfx")?.split(':').next()?;
        // The last two characters are minor version and stepping: gfx90a is 9.0.a, gfx1100 is 11.0.0.
        let major = number.get(..number.len().checked_sub(2)?)?;
        match major {
            // Vega lacks some of these counters.
            "9" if !matches!(number, "900" | "902" | "904" | "906" | "909" | "90c") => {
                Some(GpuFamily::Gfx9)
            }
            "10" => Some(GpuFamily::Gfx10),
            "11" => Some(GpuFamily::Gfx11),
            "12" => Some(GpuFamily::Gfx12),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn maps_architectures_to_families() {
        for (name, family) in [
            ("gfx90a", Some(GpuFamily::Gfx9)),
            ("gfx90a:sramecc+:xnack-", Some(GpuFamily::Gfx9)),
            ("gfx942", Some(GpuFamily::Gfx9)),
            ("gfx1030", Some(GpuFamily::Gfx10)),
            ("gfx1100", Some(GpuFamily::Gfx11)),
            ("gfx1151", Some(GpuFamily::Gfx11)),
            ("gfx1201", Some(GpuFamily::Gfx12)),
            ("gfx906", None),
            ("gfx803", None),
            ("gfx", None),
            ("gfxé", None),
            ("sm_90", None),
            ("", None),
        ] {
            assert_eq!(GpuFamily::of_architecture(name), family, "{name}");
        }
    }

    #[test]
    fn every_category_has_counters_on_every_device() {
        let families = [
            GpuFamily::Gfx9,
            GpuFamily::Gfx10,
            GpuFamily::Gfx11,
            GpuFamily::Gfx12,
        ];
        for category in CounterCategory::ALL {
            assert_eq!(
                category.name().parse::<CounterCategory>().unwrap(),
                category
            );
            let amd = families.map(|family| category.of_amd(family).concat());
            for names in amd.into_iter().chain([category.of_nvidia().to_vec()]) {
                let different: HashSet<_> = names.iter().collect();
                assert!(
                    !names.is_empty() && different.len() == names.len(),
                    "{names:?}"
                );
            }
            assert_eq!(category.of_cpu().is_err(), category == CounterCategory::Lds);
        }
        let error = "wave".parse::<CounterCategory>().unwrap_err().to_string();
        assert!(
            error.contains("'wave'") && error.contains("compute-unit"),
            "{error}"
        );
    }

    /// Limits of counters per hardware block and run, by name prefix.
    #[test]
    fn categories_fit_into_a_run() {
        for category in CounterCategory::ALL {
            for family in [
                GpuFamily::Gfx9,
                GpuFamily::Gfx10,
                GpuFamily::Gfx11,
                GpuFamily::Gfx12,
            ] {
                for names in category.of_amd(family) {
                    for (block, most) in [("SQ", 8), ("TCC_", 4), ("GL2C_", 4), ("GRBM_", 2)] {
                        let n = names.iter().filter(|name| name.starts_with(block)).count();
                        assert!(n <= most, "{category:?} {family:?}: {n} of {block}");
                    }
                }
            }
        }
    }
}
