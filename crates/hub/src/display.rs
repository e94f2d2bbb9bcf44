//! Paths and sizes as messages show them.

use std::path::Path;

use rocmforge_gguf::escape_control;

/// Returns the path as text with control characters escaped.
pub fn path(path: &Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}

/// Returns a size with a binary unit: `6.6 MiB`.
pub fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, "KiB");
    for next in ["MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_sizes_with_binary_units() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (6_924_992, "6.6 MiB"),
            (1 << 40, "1.0 TiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }
}
