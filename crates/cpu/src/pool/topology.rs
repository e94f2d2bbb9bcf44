//! The processors that threads may run on: their cores and NUMA nodes.
//!
//! Two hardware threads of a core share its vector units, so a product gains nothing from the second: by default a pool
//! has one thread per core. On a machine with several NUMA nodes, the workers of a pool stay on as few nodes as have
//! enough cores, and the system places them within a node. On a machine with one node the system places them freely.
//!
//! Linux only (`/sys/devices/system`, `sched_getaffinity`); elsewhere every processor counts as a core.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread;

/// A core: its package, and its number in the package.
type Core = (usize, usize);

/// The processors of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    cpus: Vec<usize>,
    cores: BTreeSet<Core>,
}

/// The processors that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topology {
    /// Never empty; the node with the most cores first.
    nodes: Vec<Node>,
}

/// Default number of threads of a pool: one per core, but no more than this process may use by its affinity or its
/// share of time (a container's quota).
pub fn default_threads() -> usize {
    let share = thread::available_parallelism().map_or(1, |n| n.get());
    Topology::detect().map_or(share, |topology| topology.n_cores().min(share))
}

impl Topology {
    /// Reads the topology from the system; `None` if that fails.
    pub(super) fn detect() -> Option<Topology> {
        Topology::read(Path::new("/sys/devices/system"), &allowed_cpus()?)
    }

    fn read(system: &Path, allowed: &[usize]) -> Option<Topology> {
        let mut node_of = BTreeMap::new();
        for entry in fs::read_dir(system.join("node")).into_iter().flatten() {
            let entry = entry.ok()?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            let Some(Ok(node)) = number.map(str::parse::<usize>) else {
                continue;
            };
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            node_of.extend(cpu_list(&list)?.into_iter().map(|cpu| (cpu, node)));
        }
        let mut nodes: BTreeMap<usize, Node> = BTreeMap::new();
        for &cpu in allowed {
            let topology = system.join(format!("cpu/cpu{cpu}/topology"));
            let number = |file: &str| -> Option<usize> {
                let text = fs::read_to_string(topology.join(file)).ok()?;
                text.trim().parse().ok()
            };
            let core = (number("physical_package_id")?, number("core_id")?);
            // A kernel without NUMA has no nodes.
            let node = nodes
                .entry(node_of.get(&cpu).copied().unwrap_or(0))
                .or_default();
            node.cpus.push(cpu);
            node.cores.insert(core);
        }
        let mut nodes: Vec<Node> = nodes.into_values().collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(node.cores.len()));
        (!nodes.is_empty()).then_some(Topology { nodes })
    }

    fn n_cores(&self) -> usize {
        self.nodes.iter().map(|node| node.cores.len()).sum()
    }

    /// Returns the processors that each of `n_threads` threads should stay on; `None` to let the system place them.
    pub(super) fn place(&self, n_threads: usize) -> Option<Vec<&[usize]>> {
        if self.nodes.len() < 2 {
            return None;
        }
        let by_core = self.nodes.iter().flat_map(|node| {
            let cpus = node.cpus.as_slice();
            std::iter::repeat_n(cpus, node.cores.len())
        });
        Some(by_core.cycle().take(n_threads).collect())
    }
}

/// Pins this thread to `cpus`. Does nothing if the system refuses.
pub(super) fn stay_on(cpus: &[usize]) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let mut set = CpuSet::new();
        for &cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
            set.set(cpu);
        }
        if set.count() > 0 {
            let _ = sched_setaffinity(None, &set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpus;
}

fn allowed_cpus() -> Option<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None).ok()?;
        Some(
            (0..CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .collect(),
        )
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Parses a list of numbers such as `0-3,8`.
fn cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the sysfs files of a machine of `(cpu, package, core, node)`.
    fn machine(cpus: &[(usize, usize, usize, usize)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (cpu, package, core, node) in cpus {
            let topology = dir.path().join(format!("cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("physical_package_id"), format!("{package}\n")).unwrap();
            fs::write(topology.join("core_id"), format!("{core}\n")).unwrap();
            let node_dir = dir.path().join(format!("node/node{node}"));
            fs::create_dir_all(&node_dir).unwrap();
            let on_node = cpus.iter().filter(|(.., n)| n == node);
            let list: Vec<String> = on_node.map(|(cpu, ..)| cpu.to_string()).collect();
            fs::write(node_dir.join("cpulist"), list.join(",") + "\n").unwrap();
        }
        dir
    }

    /// Two nodes of two cores of two threads; the second threads are 4 to 7.
    fn two_nodes() -> tempfile::TempDir {
        let cpus: Vec<_> = (0..8)
            .map(|cpu| (cpu, cpu % 4 / 2, cpu % 2, cpu % 4 / 2))
            .collect();
        machine(&cpus)
    }

    #[test]
    fn counts_hardware_threads_of_a_core_once() {
        let dir = two_nodes();
        let n_cores = |allowed: &[usize]| Topology::read(dir.path(), allowed).unwrap().n_cores();
        assert_eq!(n_cores(&[0, 1, 2, 3, 4, 5, 6, 7]), 4);
        assert_eq!(n_cores(&[0, 4]), 1);
        assert_eq!(n_cores(&[1, 2, 6]), 2);
        assert_eq!(Topology::read(dir.path(), &[]), None);
        assert_eq!(Topology::read(dir.path(), &[9]), None);
    }

    #[test]
    fn few_threads_stay_on_one_node() {
        let dir = two_nodes();
        let all = Topology::read(dir.path(), &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let (first, second): (&[usize], &[usize]) = (&[0, 1, 4, 5], &[2, 3, 6, 7]);
        assert_eq!(all.place(2), Some(vec![first, first]));
        assert_eq!(all.place(3), Some(vec![first, first, second]));
        assert_eq!(
            all.place(5),
            Some(vec![first, first, second, second, first])
        );
        // The larger node comes first.
        let part = Topology::read(dir.path(), &[0, 2, 3]).unwrap();
        assert_eq!(part.place(2), Some(vec![&[2, 3][..], &[2, 3][..]]));
    }

    #[test]
    fn leaves_placement_on_one_node_to_the_system() {
        let dir = machine(&[(0, 0, 0, 0), (1, 0, 1, 0)]);
        let topology = Topology::read(dir.path(), &[0, 1]).unwrap();
        assert_eq!((topology.n_cores(), topology.place(2)), (2, None));
    }

    #[test]
    fn parses_processor_lists() {
        assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        assert_eq!(cpu_list("0-x"), None);
    }

    #[test]
    fn finds_a_core_on_this_machine() {
        assert!(default_threads() >= 1);
    }
}
