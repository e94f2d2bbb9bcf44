//! Tests of the page's markup: numbers, missing values, and that it loads nothing.

use rocmforge_profile::schema::Profile;
use rocmforge_profile::stats::Summary;
use rocmforge_report::page;

use crate::fixture;
use crate::hostile::hostile;

pub(crate) fn html(profile: &Profile) -> String {
    let mut html = Vec::new();
    page::write(profile, &mut html).unwrap();
    String::from_utf8(html).unwrap().replace('\u{a0}', " ")
}

#[test]
fn shows_the_numbers_of_the_profile() {
    for (profile, texts) in [
        (
            fixture::cpu(),
            vec![
                "<h1>Llama 3.2 1B Instruct</h1>",
                "misses the target of 200 ms",
                "llama, 1.24 G parameters",
                "Q4_K - Medium, 763 MiB",
                "matmul ffn_gate+up Q4_K [16384, 2048]",
                "<strong>Read ffn_gate and ffn_up faster</strong>",
                "11 % of decode, 9 to 14 % in single runs",
                "8 % of decode<",
                "n/a: a CPU launches no kernels",
                "n/a: device utilization",
                "n/a, not timed separately in this run: copies to the device, copies from the device.",
                "A timed scope costs 48.0 ns",
                "Every operation had a fast kernel.",
            ],
        ),
        (
            fixture::gpu(),
            vec![
                "within the target of 200 ms",
                "580.159.04",
                "<strong>No action</strong>",
                "above the target of 80 %",
                "matmul of MXFP6 on cuda",
                "n/a: arithmetic peaks",
                "Kernels of decode",
                "<th scope=\"row\">Use graphs</th><td>no</td><td>They are in use.</td>",
                "Starting an operation costs 2.70 µs",
            ],
        ),
        (
            fixture::bare(),
            vec![
                "Nothing stands out.",
                "n/a: this run recorded no timeline",
                "n/a: the run had no phases",
                "n/a: not reported by the system",
            ],
        ),
    ] {
        let html = html(&profile);
        for text in texts {
            assert!(html.contains(text), "{text} is missing");
        }
        // No invalid numbers.
        for text in ["NaN", ">inf", "-inf"] {
            assert!(!html.contains(text), "{text}");
        }
    }
}

/// The page shows the means of the runs, as the terminal does.
#[test]
fn numbers_are_those_of_the_terminal() {
    let mut profile = fixture::cpu();
    let phase = &mut profile.phases[1];
    assert_eq!(phase.name, "decode");
    phase.unprofiled = Summary::of(&[1000.0, 1000.0, 4000.0]).unwrap();
    phase.profiled = Summary::of(&[1000.0, 1000.0, 7000.0]).unwrap();
    phase.least_ms = Some(500.0);
    phase.ops[0].bandwidth_share = Some(2.45);
    phase.ops[0].ops_share = Some(0.5);
    let html = html(&profile);
    // Means of 2 and 3 s, a quarter of the roofline; the medians are 1 s.
    for text in [
        " tokens in 2.00 s",
        ">2.00 s<",
        ">3.00 s<",
        "25.0 %",
        ">245 %*<",
    ] {
        assert!(html.contains(text), "{text} is missing");
    }
}

#[test]
fn pages_load_nothing() {
    for profile in [fixture::cpu(), fixture::gpu()] {
        let html = html(&profile).replace("http://www.w3.org/2000/svg", "");
        for part in [
            "http:", "https:", "//cdn", "@import", "url(", " src=", "<link",
        ] {
            assert!(!html.contains(part), "{part}");
        }
        assert!(html.contains("default-src 'none'") && !html.contains("script-src 'unsafe"));
    }
}

#[test]
fn escapes_names_everywhere() {
    for profile in [fixture::cpu(), fixture::gpu(), fixture::bare()] {
        let plain = html(&profile);
        let hostile = html(&hostile(&profile));
        for tag in ["<script", "</script", "<img", "</style", "<title", "<!--"] {
            assert_eq!(
                hostile.matches(tag).count(),
                plain.matches(tag).count(),
                "{tag}"
            );
        }
        assert!(!hostile.contains(['\0', '\u{ffff}']));
    }
}
