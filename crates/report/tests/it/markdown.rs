//! Tests of the Markdown format.

use rocmforge_report::markdown;

use crate::comparison::report;

#[test]
fn names_stay_in_their_cells() {
    let text = markdown::text(&report());
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(table.len(), 2 + 5, "{text}");
    for line in &table {
        // Bars without a backslash end a cell.
        let bars = line.replace("\\|", "").matches('|').count();
        assert_eq!(bars, 7, "{line}");
    }
    assert!(table[2].ends_with("| **REGRESSION** |"), "{text}");
    for part in ["<&", "<C", "@me", "https://", "\u{1b}"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
}
