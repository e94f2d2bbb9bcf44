//! The system and its CPU.

use rocmforge_cpu::memory::available_bytes;
use rocmforge_cpu::{Isa, default_threads};

use super::report::{Check, Status};
use super::root::Root;
use crate::devices::cpu_name;
use crate::output::size;

/// The kernel and the distribution.
pub fn system(root: &Root) -> Check {
    let kernel = root.read("/proc/sys/kernel/osrelease");
    let kernel = kernel.unwrap_or_else(|| "of unknown version".into());
    let distribution = distribution(root).unwrap_or_else(|| "an unknown distribution".into());
    let detail = format!(
        "rocmforge {} on {distribution}, Linux {kernel}, {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH
    );
    Check::new("system", Status::Ok, detail)
}

/// The name in os-release.
fn distribution(root: &Root) -> Option<String> {
    let text = root.read("/etc/os-release")?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_string())
}

/// The CPU, its instruction set and memory.
pub fn cpu() -> Check {
    let isa = Isa::detect();
    let name = cpu_name().unwrap_or_else(|| "unknown CPU".into());
    let memory = available_bytes().map_or("unknown".into(), size);
    let detail = format!(
        "{name}, {}, {} threads, {memory} of memory available",
        isa.name(),
        default_threads()
    );
    match isa {
        Isa::Scalar => Check::new("cpu", Status::Warning, detail).advice(
            "this CPU has none of the vector instructions that this build uses; it will be slow",
        ),
        _ => Check::new("cpu", Status::Ok, detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_distribution() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().into());
        assert!(system(&root).detail.contains("unknown distribution"));
        std::fs::create_dir_all(folder.path().join("etc")).unwrap();
        let text = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        std::fs::write(folder.path().join("etc/os-release"), text).unwrap();
        let detail = system(&root).detail;
        assert!(
            detail.contains("on Debian GNU/Linux 12 (bookworm)"),
            "{detail}"
        );
    }
}
