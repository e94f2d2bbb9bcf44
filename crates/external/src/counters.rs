//! Hardware counters by what they are about, under the names that the hardware gives them.
//!
//! AMD's names are those of rocprofiler-sdk's counter definitions (ROCm 7) for the architectures of a family; one that
//! a family does not define, or that is known to read zero on it, is left out. A run of the program has at most eight
//! counters of the sequencer, four of the cache and two of the GPU's top. NVIDIA's names are Nsight Compute's, Linux's those of perf's generic events.

use std::str::FromStr;

use super::error::ExternalError;

/// What counters are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CounterCategory {
    /// Instructions by kind.
    Instructions,
    /// Waves or warps: how many, how long; on a CPU how threads are scheduled.
    Waves,
    /// Traffic with the memory.
    Memory,
    /// Hits and misses.
    Cache,
    /// How much of the time the compute units are busy.
    ComputeUnit,
    /// Memory shared by a workgroup: accesses and bank conflicts.
    Lds,
    /// What waves wait for.
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

    /// rocprofiler-sdk's counters, by runs of the program: those of one run fit into the hardware's registers together.
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
            // On gfx12 SQ_WAVE_CYCLES is defined but always reads zero.
            (C::Waves, Gfx12) => &[&["SQ_WAVES", "SQ_BUSY_CYCLES"]],
            (C::Waves, _) => &[&["SQ_WAVES", "SQ_WAVE_CYCLES", "SQ_BUSY_CYCLES"]],
            // There is no WRITE_SIZE for gfx12.
            (C::Memory, Gfx12) => &[&["FETCH_SIZE", "GL2C_EA_WRREQ_64B_sum"]],
            // Each is made of three or four counters of the cache.
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

    /// Nsight Compute's metrics.
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

    /// perf's events. A CPU has no memory that a workgroup shares.
    ///
    /// # Errors
    /// The category is [`CounterCategory::Lds`].
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
                    "a CPU has no counters of the category lds; leave it out".to_string(),
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
                "there is no category '{}' of counters; there are {}",
                super::process::printable(name, 40),
                known.join(", ")
            ))
        })
    }
}

/// AMD GPUs whose counters have the same names.
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
    /// The family of an architecture such as `gfx1100`; suffixes such as `:xnack-` do not matter.
    pub fn of_architecture(name: &str) -> Option<GpuFamily> {
        let number = name.strip_prefix("gfx")?.split(':').next()?;
        // The last two characters are minor version and stepping: gfx90a is 9.0.a, gfx1100 is 11.0.0.
        let major = number.get(..number.len().checked_sub(2)?)?;
        match major {
            // Vega has not all of these counters.
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
    fn families_are_those_of_the_architectures() {
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
    fn every_category_has_counters_everywhere() {
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

    /// Counters of one hardware block that a run can have, by the start of their names.
    #[test]
    fn a_category_fits_into_a_run() {
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
