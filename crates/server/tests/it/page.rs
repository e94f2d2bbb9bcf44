//! The page: complete in itself, and alive in a browser.

use std::process::Command;

use sha2::{Digest as _, Sha256};

use crate::client::start;

/// Returns the texts between `<NAME>` and `</NAME>`.
fn elements<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let rest = page.split(&*open).skip(1);
    rest.map(|rest| rest.split(&*close).next().unwrap())
        .collect()
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let server = start();
    let reply = server.get("/");
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = reply.header("content-security-policy").unwrap().to_string();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    let page = &reply.text;
    for (element, directive) in [("script", "script-src"), ("style", "style-src")] {
        let [text] = elements(page, element)[..] else {
            panic!("there is one {element}");
        };
        let hash: [u8; 32] = Sha256::digest(text).into();
        let source = policy
            .split(';')
            .find(|part| part.trim().starts_with(directive))
            .unwrap();
        let (_, encoded) = source.split_once("sha256-").unwrap();
        assert_eq!(decoded(encoded.split('\'').next().unwrap()), hash);
    }
    for part in [
        "http://",
        "https://",
        "innerHTML",
        "<script ",
        "<link rel=\"stylesheet\"",
        " style=\"",
        "onclick=\"",
    ] {
        assert!(!page.contains(part), "{part}");
    }
}

/// Decodes Base64.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is no digit"),
    };
    let digits: Vec<u8> = text.trim_end_matches('=').bytes().map(digit).collect();
    let bits: Vec<u8> = digits
        .iter()
        .flat_map(|d| (0..6).rev().map(move |i| d >> i & 1))
        .collect();
    bits.chunks_exact(8)
        .map(|byte| byte.iter().fold(0, |all, bit| all << 1 | bit))
        .collect()
}

#[test]
fn the_page_comes_alive_in_a_browser() {
    let browser = std::env::var_os("ROCMFORGE_CHROMIUM").unwrap_or("chromium".into());
    let server = start();
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args([
            "--enable-logging=stderr",
            "--virtual-time-budget=4000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(&server.url)
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: no Chromium on PATH; ROCMFORGE_CHROMIUM names one");
        return;
    };
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(
        dom.contains("<option value=\"forge-mini\">forge-mini</option>"),
        "{dom}"
    );
    assert!(dom.contains("KV cache <b>0 %</b>"), "{dom}");
    let log = String::from_utf8_lossy(&output.stderr);
    let console: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert_eq!(console, [""; 0]);
}
