//! The GPUs that the Linux kernel's AMD compute driver (KFD) lists. Also used by the build script, which compiles for
//! the GPUs of the machine.

use std::fs;
use std::path::Path;

/// Where the kernel lists the nodes.
pub(crate) const TOPOLOGY: &str = "/sys/class/kfd/kfd/topology/nodes";

/// A GPU in the kernel's list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// e.g. `gfx1100`.
    pub(crate) architecture: String,
    /// PCI domain; and bus, device and function in 16 bits.
    pub(crate) location: (u32, u32),
    /// `None` if the kernel does not say.
    pub(crate) n_compute_units: Option<u32>,
}

/// Returns the GPUs under a folder like [`TOPOLOGY`]; none if the folder does not exist.
pub(crate) fn nodes(topology: &Path) -> Vec<Node> {
    let Ok(entries) = fs::read_dir(topology) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries
        .flatten()
        .map(|e| e.path().join("properties"))
        .collect();
    paths.sort();
    let texts = paths
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok());
    texts.filter_map(|text| node(&text)).collect()
}

/// Parses the properties of a node, one per line: `gfx_target_version 110000`. CPUs are nodes with version 0.
fn node(properties: &str) -> Option<Node> {
    let number = |name: &str| -> Option<u32> {
        let mut lines = properties.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
    };
    let version = number("gfx_target_version").filter(|version| *version > 0)?;
    let n_simds = number("simd_count").zip(number("simd_per_cu"));
    Some(Node {
        n_compute_units: n_simds.and_then(|(all, per_unit)| all.checked_div(per_unit)),
        architecture: architecture(version),
        location: (
            number("domain").unwrap_or(0),
            number("location_id").unwrap_or(0),
        ),
    })
}

/// Formats an architecture: 90010 is gfx90a, 100300 is gfx1030.
fn architecture(version: u32) -> String {
    let (major, minor, step) = (version / 10_000, version / 100 % 100, version % 100);
    format!("gfx{major}{minor:x}{step:x}")
}

/// Parses `0000:03:00.0` into the kernel's numbers.
pub(crate) fn parse_bus_id(text: &str) -> Option<(u32, u32)> {
    let (address, function) = text.trim().split_once('.')?;
    let mut parts = address.split(':').map(|part| u32::from_str_radix(part, 16));
    let (domain, bus, device) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let function = u32::from_str_radix(function, 16).ok()?;
    Some((domain, bus << 8 | device << 3 | function))
}

/// Formats the kernel's numbers as `0000:03:00.0`.
pub(crate) fn bus_id(domain: u32, location: u32) -> String {
    let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
    format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_nodes() {
        let properties = "cpu_cores_count 0\nsimd_count 120\nsimd_per_cu 2\ngfx_target_version 110001\nlocation_id 768\n\
                          domain 0\n";
        let expected = Node {
            n_compute_units: Some(60),
            architecture: "gfx1101".into(),
            location: parse_bus_id("0000:03:00.0").unwrap(),
        };
        assert_eq!(node(properties), Some(expected));
        assert_eq!(node("cpu_cores_count 8\ngfx_target_version 0\n"), None);
        for (version, name) in [
            (90010, "gfx90a"),
            (90402, "gfx942"),
            (110501, "gfx1151"),
            (120001, "gfx1201"),
        ] {
            assert_eq!(architecture(version), name);
        }
        for text in ["0000:03:00.0", "0001:c3:1f.7"] {
            let (domain, location) = parse_bus_id(text).unwrap();
            assert_eq!(bus_id(domain, location), text);
        }
        assert_eq!(nodes(Path::new("/nowhere")), []);
    }
}
