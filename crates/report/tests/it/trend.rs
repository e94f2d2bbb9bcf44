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
    assert!(text.contains("&lt;b&gt;, 1970-01-01T00:03:20Z"));
    // The loss was made good.
    assert!(!text.contains("What got worse"));
    // All within a week: the axis has times.
    assert!(text.contains(">1970-01-01 00:01 UTC<") && text.contains(">1970-01-01 00:05 UTC<"));
    for part in ["<&", "<b>", "\u{1b}", "NaN"] {
        assert!(!text.contains(part), "{part}");
    }
    // It loads nothing.
    for part in [" src=", "@import", "url(", "<link"] {
        assert!(!text.contains(part), "{part}");
    }
    all.push(stored("<d>", 100 + 30 * 24 * 3600, 14.0, some_cpu()));
    let text = page_of(&all);
    assert!(
        text.contains("What got worse") && text.contains("since a<"),
        "{text}"
    );
    assert!(text.contains(">1970-01-01<") && text.contains(">1970-01-31<"));
    all.pop();
    all.retain(|stored| stored.name != "<b>");
    let text = page_of(&all);
    assert!(!text.contains("What got worse") && !text.contains("class=\"worse\""));
    assert!(page(&Trend::default()).contains("no baseline has a comparable metric"));
}
