//! The machine of a measurement. Only measurements on the same hardware are compared. Software differences are only
//! reported, since measuring their effect is the purpose of a baseline.

use serde::Serialize;

/// Hardware and software of a measurement: first the fields of schema A, then our additions. `None` if unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Hardware {
    /// Name of the GPU; `None` if the CPU computed.
    pub gpu_name: Option<String>,
    /// Architecture such as `gfx1100`, `sm_90`.
    pub gpu_architecture: Option<String>,
    /// Version of HIP; `None` on other devices.
    pub rocm_version: Option<String>,
    /// Architecture such as `x86_64`.
    pub cpu_arch: Option<String>,
    pub os: Option<String>,
    pub rustc_version: Option<String>,
    /// Version of the GPU's driver.
    pub driver: Option<String>,
    /// CPU model name.
    pub cpu_model: Option<String>,
    /// Number of compute threads.
    pub n_threads: Option<u64>,
    pub program_version: Option<String>,
    /// Commit of the sources this program was built from.
    pub program_commit: Option<String>,
}

/// A fact in which two machines differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub fact: &'static str,
    pub baseline: Option<String>,
    pub current: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_string());
        let (was, is) = (known(&self.baseline), known(&self.current));
        write!(f, "{}: was {was}, is {is}", self.fact)
    }
}

impl Hardware {
    /// Returns the facts known at build time: version of the program and its compiler, operating system, architecture.
    /// The caller adds the rest.
    pub fn of_this_build() -> Hardware {
        let known = |text: &str| (!text.is_empty()).then(|| text.to_string());
        Hardware {
            cpu_arch: known(std::env::consts::ARCH),
            os: known(std::env::consts::OS),
            rustc_version: known(env!("ROCMFORGE_RUSTC_VERSION")),
            program_version: known(env!("CARGO_PKG_VERSION")),
            ..Hardware::default()
        }
    }

    /// Returns the hardware differences between this baseline and `current`. Facts missing in the baseline do not
    /// differ, but it must name the device: the GPU, or the CPU if no GPU computed.
    pub fn differences(&self, current: &Hardware) -> Vec<Difference> {
        let n_threads = |hardware: &Hardware| hardware.n_threads.map(|n| n.to_string());
        let facts = [
            (
                "gpu_architecture",
                self.gpu_architecture.clone(),
                current.gpu_architecture.clone(),
            ),
            (
                "cpu_model",
                self.cpu_model.clone(),
                current.cpu_model.clone(),
            ),
            ("cpu_arch", self.cpu_arch.clone(), current.cpu_arch.clone()),
            ("os", self.os.clone(), current.os.clone()),
            ("n_threads", n_threads(self), n_threads(current)),
        ];
        let mut found = Vec::new();
        // Every baseline tells whether a GPU computed.
        if self.gpu_name != current.gpu_name {
            found.push(Difference {
                fact: "gpu_name",
                baseline: self.gpu_name.clone().or(Some("none".to_string())),
                current: current.gpu_name.clone().or(Some("none".to_string())),
            });
        }
        for (fact, baseline, current) in facts {
            let is_needed = fact == "cpu_model" && self.gpu_name.is_none();
            if (baseline.is_some() || is_needed) && baseline != current {
                found.push(Difference {
                    fact,
                    baseline,
                    current,
                });
            }
        }
        found
    }

    /// Returns the software differences in facts known on both sides.
    pub fn software_differences(&self, current: &Hardware) -> Vec<Difference> {
        let facts = [
            ("rocm_version", &self.rocm_version, &current.rocm_version),
            ("driver", &self.driver, &current.driver),
            ("rustc_version", &self.rustc_version, &current.rustc_version),
            (
                "program_version",
                &self.program_version,
                &current.program_version,
            ),
            (
                "program_commit",
                &self.program_commit,
                &current.program_commit,
            ),
        ];
        let differ = facts
            .into_iter()
            .filter(|(_, a, b)| a.is_some() && b.is_some() && a != b);
        differ
            .map(|(fact, baseline, current)| Difference {
                fact,
                baseline: baseline.clone(),
                current: current.clone(),
            })
            .collect()
    }

    /// Returns the name of the device, with the number of threads for a CPU.
    pub fn label(&self) -> String {
        let cpu = || self.cpu_model.as_deref().or(self.cpu_arch.as_deref());
        match (&self.gpu_name, cpu(), self.n_threads) {
            (Some(gpu), _, _) => gpu.clone(),
            (None, Some(cpu), Some(1)) => format!("{cpu}, 1 thread"),
            (None, Some(cpu), Some(n)) => format!("{cpu}, {n} threads"),
            (None, Some(cpu), None) => cpu.to_string(),
            (None, None, _) => "unknown hardware".to_string(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn some_cpu() -> Hardware {
        Hardware {
            cpu_arch: Some("x86_64".into()),
            os: Some("linux".into()),
            cpu_model: Some("Some CPU".into()),
            n_threads: Some(2),
            program_version: Some("0.1.0".into()),
            ..Hardware::default()
        }
    }

    #[test]
    fn compares_every_hardware_fact() {
        let text = |text: &str| Some(text.to_string());
        let gpu = Hardware {
            gpu_name: text("Some GPU"),
            gpu_architecture: text("gfx1100"),
            driver: text("6.1"),
            ..some_cpu()
        };
        for hardware in [some_cpu(), gpu.clone()] {
            assert_eq!(hardware.differences(&hardware), []);
        }
        type Change = fn(&mut Hardware);
        let changes: [(&str, Change); 6] = [
            ("gpu_name", |h| h.gpu_name = None),
            ("gpu_architecture", |h| {
                h.gpu_architecture = Some("gfx1101".into())
            }),
            ("cpu_model", |h| h.cpu_model = Some("Other CPU".into())),
            ("cpu_arch", |h| h.cpu_arch = Some("aarch64".into())),
            ("os", |h| h.os = Some("windows".into())),
            ("n_threads", |h| h.n_threads = Some(1)),
        ];
        for (fact, change) in changes {
            let mut other = gpu.clone();
            change(&mut other);
            let facts: Vec<_> = gpu.differences(&other).iter().map(|d| d.fact).collect();
            assert_eq!(facts, [fact]);
            assert!(gpu.software_differences(&other).is_empty());
        }
        assert_eq!(some_cpu().differences(&gpu)[0].fact, "gpu_name");
        let newer = Hardware {
            driver: text("6.2"),
            program_version: text("0.2.0"),
            ..gpu.clone()
        };
        assert_eq!(gpu.differences(&newer), []);
        let facts: Vec<_> = gpu
            .software_differences(&newer)
            .iter()
            .map(|d| d.fact)
            .collect();
        assert_eq!(facts, ["driver", "program_version"]);
    }

    #[test]
    fn requires_the_device_name_in_a_baseline() {
        let now = some_cpu();
        let nameless = Hardware {
            cpu_model: None,
            ..some_cpu()
        };
        let [difference] = &nameless.differences(&now)[..] else {
            panic!("one difference");
        };
        assert_eq!(
            difference.to_string(),
            "cpu_model: was unknown, is Some CPU"
        );
        // Schema B names the GPU but has no facts of the host.
        let b = Hardware {
            gpu_name: Some("Some GPU".into()),
            ..Hardware::default()
        };
        let on_gpu = Hardware {
            gpu_name: Some("Some GPU".into()),
            ..some_cpu()
        };
        assert_eq!(b.differences(&on_gpu), []);
    }
}
