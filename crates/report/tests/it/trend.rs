//! Tests of the trend page.

use rocmforge_bench::baseline::{Hardware, Rules, Trend};
use rocmforge_report::trend;

use crate::comparison::{HOSTILE, some_cpu, stored};

fn page(trend: &Trend) -> String {
    let mut page = Vec::new();
    trend::write(trend, &mut page).unwrap();
    String::from_utf8(page).unwrap()
}

#[test]
fn marks_regressions_and_escapes_names() {
    let hostile = Hardware {
        cpu_model: Some(HOSTILE.to_string()),
        ..some_cpu()
    };
    let mut all = vec![
        stored("a", 100, 10.0, some_cpu()),
        stored("<b>", 200, 15.0, some_cpu()),
        stored("c", 300, 10.0, some_cpu()),
        stored("x", 150, 50.0, hostile),
    ];
    let page_of = |all: &[_]| page(&Trend::of(all, &Rules::default()));
    let text = page_of(&all);
    let count = |text: &str, part: &str| text.matches(part).count();
    assert_eq!(
        (
            count(&text, "class=\"worse\""),
            count(&text, "class=\"better\"")
        ),
        (1, 1)
    );
    assert_eq!(count(&text, "<figure class=\"chart\">"), 1);
    assert!(text.contains("What got worse") && text.contains("&lt;b&gt;, 1970-01-01T00:03:20Z"));
    for part in ["<&", "<b>", "\u{1b}", "NaN"] {
        assert!(!text.contains(part), "{part}");
    }
    // It loads nothing.
    for part in [" src=", "@import", "url(", "<link"] {
        assert!(!text.contains(part), "{part}");
    }
    all.retain(|stored| stored.name != "<b>");
    let text = page_of(&all);
    assert!(!text.contains("What got worse") && !text.contains("class=\"worse\""));
    assert!(page(&Trend::default()).contains("no baseline has a comparable metric"));
}
