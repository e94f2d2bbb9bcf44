//! What a hostile, broken or silent hub cannot do to `rocmforge pull`.

use std::time::Duration;

use serde_json::json;

use crate::mock_hub::{Answer, MockHub, Repo, status};
use crate::program::run;
use crate::pull::{Folder, faulty, hub, model};

#[test]
fn names_that_lead_elsewhere_are_refused() {
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
        folder.pull(&hub, "hf:o/r", &[]).fails(1, "not safe");
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
fn hostile_hubs_get_nowhere() {
    let info = |change: fn(&mut serde_json::Value)| {
        let mut info = Repo::new(&[("m.gguf", &model(1))]).info();
        change(&mut info);
        status(200).body(info.to_string())
    };
    for (answer, part) in [
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(1u64 << 62)),
            "not enough room",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(u64::MAX)),
            "not enough room",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(-1)),
            "not understood",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["size"] = json!(0)),
            "empty",
        ),
        (
            info(|i| i["siblings"][0]["lfs"]["sha256"] = json!("zz")),
            "SHA-256",
        ),
        (info(|i| i["siblings"] = json!("x")), "not understood"),
        (status(200).body("[".repeat(100_000)), "not understood"),
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
            "redirects to no",
        ),
        (
            status(302).header("Location", "http://"),
            "no valid address",
        ),
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
fn hostile_files_are_not_kept() {
    let page = b"<html>this is no model</html>".repeat(20);
    let long = model(1).repeat(2);
    let cases: [(Vec<u8>, Answer, &str); 3] = [
        (page.clone(), status(200).body(page), "not a GGUF file"),
        (model(1), status(200).body(long), "sends another"),
        (model(1), status(200).body("short"), "sends another"),
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
fn silent_and_slow_servers_are_given_up() {
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
    for (hub, part) in [
        (silent, "goes on"),
        (slow, "goes on"),
        (listing, "broke off"),
    ] {
        let pulled = Folder::new().pull(&hub, "hf:o/r", &["--timeout", "1", "--retries", "0"]);
        pulled.fails(1, part);
    }
    // A port that nobody listens on any more.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    run(&["pull", "hf:o/r", "--endpoint", &endpoint, "--retries", "0"]).fails(1, "127.0.0.1");
}
