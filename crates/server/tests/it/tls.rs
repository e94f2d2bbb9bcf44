//! HTTPS, with a certificate that signs itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rocmforge_server::{Tls, TlsError};
use serde_json::json;
use ureq::tls::TlsConfig;

use crate::client::{TestServer, forge_mini, local, small};

/// Returns a file of the fixtures: a certificate for localhost and its key, and the key of another one. They are for these
/// tests only.
fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).join(name)
}

#[test]
fn answers_over_tls() {
    let mut config = local();
    config.limits.read_timeout = Duration::from_millis(500);
    config.tls = Some(Tls::read(fixture("tls-cert.pem"), fixture("tls-key.pem")).unwrap());
    let server = TestServer::start(config, vec![forge_mini(small())]);
    assert!(server.url.starts_with("https://127.0.0.1:"));
    let trusting = TlsConfig::builder().disable_verification(true).build();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .tls_config(trusting)
        .build()
        .into();
    let body = json!({"prompt": "Once", "max_tokens": 4, "stream": true}).to_string();
    let post = || {
        agent
            .post(format!("{}/v1/completions", server.url))
            .send(body.as_bytes())
    };
    let text = post().unwrap().into_body().read_to_string().unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    // Clients without TLS, and those that say nothing, are let go.
    let address = server.url.trim_start_matches("https://");
    let plain = ureq::get(format!("http://{address}/health")).call();
    assert!(plain.is_err());
    let mut silent = std::net::TcpStream::connect(address).unwrap();
    silent
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    assert_eq!(std::io::Read::read(&mut silent, &mut [0; 8]).unwrap(), 0);
    post().unwrap();
}

#[test]
fn damaged_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (fixture("tls-cert.pem"), fixture("tls-key.pem"));
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let refused = |cert: &Path, key: &Path| Tls::read(cert.into(), key.into()).unwrap_err();
    assert!(matches!(
        refused(&empty, &key),
        TlsError::NoCertificate { .. }
    ));
    assert!(matches!(refused(&cert, &empty), TlsError::Key { .. }));
    assert!(matches!(
        refused(&dir.path().join("none"), &key),
        TlsError::Certificates { .. }
    ));
    let foreign = fixture("other-key.pem");
    assert!(matches!(refused(&cert, &foreign), TlsError::Config(_)));
}
