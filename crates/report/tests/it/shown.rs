//! Tests of the page, the flame graph and the trend in a browser: what they draw, in both themes and on a narrow
//! screen, and their controls.

use rocmforge_bench::baseline::{
    ComparisonResult, Direction, Method, MetricComparison, Point, Series, Trend,
};
use rocmforge_profile::schema::Profile;
use rocmforge_report::{flamegraph, trend};

use crate::browser::{Theme, chromium, drawn, show};
use crate::fixture;
use crate::hostile::{HOSTILE, hostile};
use crate::page::html;

/// The colours of the style: `k0` to `k2`, and the panel's.
const LIGHT: [[u8; 3]; 4] = [
    [0x34, 0x66, 0xcc],
    [0xb8, 0x5c, 0x00],
    [0x1a, 0x7d, 0x58],
    [0xff, 0xff, 0xff],
];
const DARK: [[u8; 3]; 4] = [
    [0x6f, 0x9f, 0xf5],
    [0xf3, 0xa0, 0x4d],
    [0x4f, 0xc4, 0x95],
    [0x1a, 0x1e, 0x24],
];

/// Number of rows that both do arithmetic and read memory.
fn n_dots(profile: &Profile) -> usize {
    let rows = profile.phases.iter().flat_map(|phase| &phase.ops);
    rows.filter(|row| row.bytes > 0 && row.i8_ops + row.f32_ops > 0)
        .count()
}

#[test]
fn page_draws_its_plots() {
    draws_plots(&[
        (fixture::cpu(), [1280, 4200], Theme::Light, LIGHT),
        (fixture::gpu(), [1280, 5200], Theme::Dark, DARK),
    ]);
}

#[test]
#[ignore = "exhaustive: another width"]
fn page_draws_its_plots_on_a_phone() {
    draws_plots(&[(fixture::cpu(), [420, 7000], Theme::Light, LIGHT)]);
}

/// A profile, the size of the window, and the theme with its colours.
type Page = (Profile, [usize; 2], Theme, [[u8; 3]; 4]);

/// Draws pages, and looks for the colours of their plots and panels.
fn draws_plots(pages: &[Page]) {
    let Some(browser) = chromium() else { return };
    for &(ref profile, size, theme, [main, second, third, panel]) in pages {
        let shown = show(&browser, "page.html", &html(profile), size, theme);
        assert_eq!(shown.console, Vec::<String>::new());
        assert_eq!(
            drawn(&shown.dom, "id=\"roofline-plot\" data-drawn=\""),
            Some(n_dots(profile))
        );
        assert_eq!(
            drawn(&shown.dom, "id=\"timeline-plot\" data-drawn=\""),
            Some(profile.timeline.len())
        );
        assert!(drawn(&shown.dom, "data-tables=\"").unwrap() >= 11 + 2 * 12);

        let picture = &shown.picture;
        assert_eq!([picture.width, picture.height], size);
        let colours = &picture.colours;
        let count = |colour: [u8; 3]| colours.get(&colour).copied().unwrap_or(0);
        assert!(colours.len() > 300, "only {} colours", colours.len());
        assert!(
            count(panel) > size[0] * size[1] / 3,
            "the theme's panels are not there"
        );
        // The timeline has rows of 17 pixels over the whole width, most of them in the first colour.
        assert!(count(main) > size[0] * 17 / 2, "{}", count(main));
        assert!(
            count(second) > 100 && count(third) > 100,
            "{} {}",
            count(second),
            count(third)
        );
        // The roofline's marks are translucent.
        let mixed =
            |i: usize| (f64::from(main[i]) * 0.72 + f64::from(panel[i]) * 0.28).round() as i32;
        let near = |pixel: &[u8; 3]| (0..3).all(|i| (i32::from(pixel[i]) - mixed(i)).abs() <= 1);
        let near = colours.iter().filter(|(colour, _)| near(colour));
        let marks: usize = near.map(|(_, n)| n).sum();
        assert!(marks > 200, "{marks} pixels of marks");
    }
}

#[test]
fn pages_of_any_profile_open_without_errors() {
    let Some(browser) = chromium() else { return };
    for profile in [fixture::bare(), hostile(&fixture::gpu())] {
        let shown = show(
            &browser,
            "page.html",
            &html(&profile),
            [1000, 800],
            Theme::Light,
        );
        assert_eq!(shown.console, Vec::<String>::new());
        assert!(
            shown.dom.contains("data-tables="),
            "the scripts did not run"
        );
        let spans = drawn(&shown.dom, "id=\"timeline-plot\" data-drawn=\"");
        assert_eq!(spans.unwrap_or(0), profile.timeline.len());
    }
}

/// Proves that the tests above detect a failing script, a foreign script and a foreign image.
#[test]
fn policy_blocks_foreign_scripts_and_images() {
    let Some(browser) = chromium() else { return };
    let page = html(&fixture::bare());
    let foreign = "<script>document.title = 'harm'</script><img src=\"file:///harm.png\"></main>";
    let shown = show(
        &browser,
        "page.html",
        &page.replace("</main>", foreign),
        [600, 400],
        Theme::Light,
    );
    assert_eq!(shown.console.len(), 2, "{:?}", shown.console);
    assert!(!shown.dom.contains("<title>harm"));
}

/// A script that acts like a reader: switches a phase off, zooms, sorts, points at a span.
const READER: &str = r##"<script>
    const seen = document.body.dataset;
    const drawn = (id) => document.getElementById(id).dataset.drawn;
    const head = [...document.querySelector("#operations thead").rows[0].cells].find((cell) => cell.textContent === "p50");
    const keys = () => [...head.closest("table").tBodies[0].rows].map((row) => row.cells[head.cellIndex].dataset.key).join(" ");
    document.querySelector("[data-phase=decode]").click();
    seen.dots = drawn("roofline-plot");
    head.querySelector("button").click();
    seen.descending = keys();
    head.querySelector("button").click();
    seen.ascending = keys();
    seen.sort = head.getAttribute("aria-sort");
    const canvas = document.querySelector("canvas"), area = canvas.getBoundingClientRect();
    const point = (y) => {
        canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: area.left + area.width / 4, clientY: area.top + y }));
        return document.querySelector(".tip").textContent;
    };
    seen.step = point(54);
    seen.op = point(74);
    document.querySelector("[data-zoom='+']").click();
    seen.zoomed = drawn("timeline-plot");
    document.querySelector("[data-zoom='0']").click();
    seen.all = drawn("timeline-plot");
</script></body>"##;

#[test]
fn controls_sort_zoom_and_select() {
    let Some(browser) = chromium() else { return };
    let profile = fixture::cpu();
    // The policy would block this script.
    let page = html(&profile)
        .replace("Content-Security-Policy", "x")
        .replace("</body>", READER);
    let shown = show(&browser, "page.html", &page, [1280, 900], Theme::Light);
    assert_eq!(shown.console, Vec::<String>::new());
    let seen = |name: &str| {
        let after = format!(" data-{name}=\"");
        let body = &shown.dom[shown.dom.find("<body").unwrap()..];
        let body = &body[..body.find('>').unwrap()];
        let from = body
            .find(&after)
            .unwrap_or_else(|| panic!("no {name} in {body}"))
            + after.len();
        body[from..from + body[from..].find('"').unwrap()].to_owned()
    };
    let mut prefill = profile.clone();
    prefill.phases.retain(|phase| phase.name == "prefill");
    assert_eq!(seen("dots"), n_dots(&prefill).to_string());

    let keys = |order: &str| {
        seen(order)
            .split(' ')
            .map(|key| key.parse().unwrap())
            .collect::<Vec<f64>>()
    };
    let mut want: Vec<f64> = profile.phases[0]
        .ops
        .iter()
        .map(|row| row.call_us.p50)
        .collect();
    want.sort_by(f64::total_cmp);
    assert_eq!(
        (keys("ascending"), seen("sort").as_str()),
        (want.clone(), "ascending")
    );
    want.reverse();
    assert_eq!(keys("descending"), want);

    // A quarter of the width is within the prefill step, and below it within one of its operations.
    assert!(seen("step").starts_with("prefill step"), "{}", seen("step"));
    let is_op = |name: &str| {
        profile.phases[0]
            .ops
            .iter()
            .any(|row| name.starts_with(&row.name))
    };
    assert!(is_op(&seen("op")), "{}", seen("op"));
    let number = |name: &str| seen(name).parse::<usize>().unwrap();
    assert_eq!(number("all"), profile.timeline.len());
    assert!(
        (1..number("all")).contains(&number("zoomed")),
        "{}",
        number("zoomed")
    );
}

#[test]
fn flame_graph_opens_in_a_browser() {
    let Some(browser) = chromium() else { return };
    for (profile, theme, background) in [
        (fixture::cpu(), Theme::Light, [0xff, 0xff, 0xff]),
        (hostile(&fixture::gpu()), Theme::Dark, [0x12, 0x15, 0x19]),
    ] {
        let mut svg = Vec::new();
        flamegraph::write(&profile, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let frames = svg.matches("class=\"frame ").count();
        let shown = show(&browser, "flame.svg", &svg, [1240, 220], theme);
        assert_eq!(shown.console, Vec::<String>::new());
        assert_eq!(drawn(&shown.dom, "data-frames=\""), Some(frames));
        let colours = &shown.picture.colours;
        assert!(
            colours.len() > 50 && colours[&background] > 1000,
            "{} colours",
            colours.len()
        );
    }
}

#[test]
fn trend_page_opens_in_a_browser() {
    let Some(browser) = chromium() else { return };
    let values = [23.4, 23.9, 18.1, 24.0];
    let point = |(i, value): (usize, &f64)| Point {
        baseline: format!("nightly-{i}{HOSTILE}"),
        timestamp: 1_900_000_000 + 86_400 * i as u64,
        program: "0.1.0".to_owned(),
        value: *value,
        spread: Some([value - 0.5, value + 0.4]),
        before: (i > 0).then(|| MetricComparison {
            metric: "tokens_per_s".to_owned(),
            direction: Direction::HigherIsBetter,
            baseline: values[i - 1],
            current: *value,
            change: value / values[i - 1] - 1.0,
            interval: None,
            threshold: 0.1,
            method: Method::Threshold,
            result: match value / values[i - 1] {
                ratio if ratio < 0.9 => ComparisonResult::Regression,
                ratio if ratio > 1.1 => ComparisonResult::Improved,
                _ => ComparisonResult::Ok,
            },
            conclusive: true,
            doubt: None,
        }),
    };
    let series = |hardware: &str| Series {
        benchmark: format!("inference tg64 {HOSTILE}"),
        metric: "tokens_per_s".to_owned(),
        hardware: hardware.to_owned(),
        points: values.iter().enumerate().map(point).collect(),
        since_first: None,
        lost: None,
    };
    let trend = Trend {
        series: vec![series("a CPU"), series(HOSTILE)],
        n_baselines: 4,
        unreadable: vec![format!("broken.json: {HOSTILE}")],
    };
    let mut page = Vec::new();
    trend::write(&trend, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    for (theme, [line, _, _, panel], worse) in [
        (Theme::Light, LIGHT, [0xb9, 0x2c, 0x22]),
        (Theme::Dark, DARK, [0xff, 0x8b, 0x7e]),
    ] {
        let shown = show(&browser, "trend.html", &page, [1000, 1100], theme);
        assert_eq!(shown.console, Vec::<String>::new());
        assert!(drawn(&shown.dom, "data-tables=\"").unwrap() > 0);
        let colours = &shown.picture.colours;
        let count = |colour: [u8; 3]| colours.get(&colour).copied().unwrap_or(0);
        assert!(count(panel) > 100_000, "{}", count(panel));
        // A line, and the filled triangle of the regression.
        assert!(
            count(line) > 100 && count(worse) > 20,
            "{} {}",
            count(line),
            count(worse)
        );
    }
}
