//! `rocmforge pull` against a hostile, broken or silent hub.

use std::time::Duration;

use serde_json::json;

use crate::mock_hub::{Answer, MockHub, Repo, status};
use crate::program::run;
use crate::pull::{Folder, faulty, hub, model};

#[test]
fn rejects_unsafe_file_names() {
    for name in [
        "../evil.gguf",
        "/tmp/evil.gguf",
        "a/../../evil.gguf",
        "a\\..\\evil.gguf",
        "nul.gguf",
        "a\0.gguf",
        ".x.gguf",
        "C:evil.gguf",
    ] {
        let hub = hub(Repo::new(&[(name, &model(1))]));
        let folder = Folder::new();
        folder.pull(&hub, "hf:o/r", &[]).fails(1, "unsafe");
        assert!(hub.asked_files().is_empty(), "{name:?}");
        assert!(folder.files().is_empty(), "{name:?}");
    }
    for reference in ["o/r", "hf:../r", "hf:o/r/../x.gguf", "hf:o/r:"] {
        let hub = hub(Repo::new(&[]));
        Folder::new().pull(&hub, reference, &[]).fails(2, "error");
        assert!(hub.asked().is_empty(), "{reference}");
    }
}

#[test]
fn rejects_hostile_listings() {
    let info = |change: fn(&mut serde_json::Value)| {
        let mut info = Repo::new(&[("m.gguf", &model(1))]).info();
        change(&mut info);
        status(200).body(info.to_string())
    };
    for (answer, part) in [
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(1u64 << 62)),
            "not enough disk space",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(u64::MAX)),
            "not enough disk space",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(-1)),
            "cannot read the hub's answer",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(0)),
            "empty",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["sha256"] = json!("zz")),
            "SHA-256",
        ),
        (
            info(|i| i["siblings"] = json!("x")),
            "cannot read the hub's answer",
        ),
        (
            status(200).body("[".repeat(100_000)),
            "cannot read the hub's answer",
        ),
        (
            status(200).body(vec![b' '; 33 << 20]),
            "longer than 32.0 MiB",
        ),
        (
            status(302).header("Location", "/again"),
            "redirects more than",
        ),
        (
            status(302).header("Location", "file:///etc/passwd"),
            "redirects to an",
        ),
        (status(302).header("Location", "http://"), "invalid address"),
    ] {
        let hub = MockHub::start(move |_| answer.clone());
        let folder = Folder::new();
        folder
            .pull(&hub, "hf:o/r", &["--retries", "0"])
            .fails(1, part);
        assert!(folder.files().is_empty(), "{part}");
    }
}

#[test]
fn does_not_keep_hostile_files() {
    let page = b"<html>this is no model</html>".repeat(20);
    let long = model(1).repeat(2);
    let cases: [(Vec<u8>, Answer, &str); 3] = [
        (page.clone(), status(200).body(page), "not a GGUF file"),
        (model(1), status(200).body(long), "sends a different"),
        (model(1), status(200).body("short"), "sends a different"),
    ];
    for (bytes, answer, part) in cases {
        let hub = faulty(Repo::new(&[("m.gguf", &bytes)]), move |_, _| answer.clone());
        let folder = Folder::new();
        folder
            .pull(&hub, "hf:o/r", &["--retries", "0"])
            .fails(1, part);
        assert!(!folder.path("o/r/m.gguf").exists(), "{part}");
    }
}

#[test]
fn gives_up_on_silent_and_slow_servers() {
    let repo = || Repo::new(&[("m.gguf", &model(1))]);
    let silent = faulty(repo(), |_, answer| {
        std::thread::sleep(Duration::from_secs(20));
        answer
    });
    let slow = faulty(repo(), |_, mut answer| {
        answer.drip = Some(20);
        answer
    });
    let listing = MockHub::start(|_| {
        let mut answer = status(200).body(vec![b' '; 100_000]);
        answer.drip = Some(10);
        answer
    });
    // At the same time: each waits for its timeout of a second.
    std::thread::scope(|scope| {
        for (hub, part) in [
            (&silent, "to resume"),
            (&slow, "to resume"),
            (&listing, "broke off"),
        ] {
            scope.spawn(move || {
                let flags = ["--timeout", "1", "--retries", "0"];
                Folder::new().pull(hub, "hf:o/r", &flags).fails(1, part);
            });
        }
    });
    // A closed port.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    run(&["pull", "hf:o/r", "--endpoint", &endpoint, "--retries", "0"]).fails(1, "127.0.0.1");
}
