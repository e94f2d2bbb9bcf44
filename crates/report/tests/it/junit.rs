//! Tests of the JUnit format, with an XML parser.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use rocmforge_report::junit;

use crate::comparison::{HOSTILE, report};

fn attribute(element: &BytesStart<'_>, name: &str) -> String {
    let found = element.try_get_attribute(name).unwrap();
    let found = found.unwrap_or_else(|| panic!("{name} in {element:?}"));
    found.unescape_value().unwrap().into_owned()
}

#[test]
fn parser_finds_every_case() {
    let text = junit::text(&report());
    let mut reader = Reader::from_str(&text);
    reader.config_mut().check_end_names = true;
    let mut cases = Vec::new();
    let mut children = Vec::new();
    let mut counts = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(element) | Event::Empty(element) => {
                for attribute in element.attributes() {
                    attribute.unwrap().unescape_value().unwrap();
                }
                match element.name().as_ref() {
                    b"testsuites" | b"testsuite" => counts.push(
                        ["tests", "failures", "errors", "skipped"]
                            .map(|name| attribute(&element, name)),
                    ),
                    b"testcase" => cases.push((
                        attribute(&element, "classname"),
                        attribute(&element, "name"),
                    )),
                    other => children.push(String::from_utf8(other.to_vec()).unwrap()),
                }
            }
            Event::Text(text) => {
                text.decode().unwrap();
            }
            Event::Eof => break,
            _ => {}
        }
    }
    let counted = ["7", "1", "1", "2"].map(String::from);
    assert_eq!(counts, [counted.clone(), counted]);
    let names: Vec<(&str, &str)> = cases
        .iter()
        .map(|(class, name)| (class.as_str(), name.as_str()))
        .collect();
    let hostile = HOSTILE.replace('\u{1b}', "\u{fffd}");
    assert_eq!(
        names,
        [
            (hostile.as_str(), "p50_ms"),
            ("quick", "p50_ms"),
            ("same", "p50_ms"),
            ("noisy", "p50_ms"),
            ("foreign", "hardware"),
            ("gone", "gone"),
            ("new", "new"),
        ]
    );
    assert_eq!(
        children,
        [
            "failure",
            "system-out",
            "system-out",
            "system-out",
            "error",
            "skipped",
            "skipped"
        ]
    );
}
