//! HTTPS, with a certificate that signs itself.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rocmforge_server::{Tls, TlsError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};
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

/// Takes every certificate.
#[derive(Debug)]
struct TakeAll;

impl ServerCertVerifier for TakeAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// Returns the certificate that a server shows.
fn shown(server: &TestServer) -> CertificateDer<'static> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TakeAll))
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(server.url.trim_start_matches("https://")).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    connection.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

/// The route does what SIGHUP does.
#[test]
fn certificates_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let put = |name: &str, to: &Path| assert!(std::fs::copy(fixture(name), to).unwrap() > 0);
    put("tls-cert.pem", &cert);
    put("tls-key.pem", &key);
    let mut config = local();
    config.tls = Some(Tls::read(cert.clone(), key.clone()).unwrap());
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let of_file = |name: &str| CertificateDer::from_pem_file(fixture(name)).unwrap();
    let trusting = TlsConfig::builder().disable_verification(true).build();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .tls_config(trusting)
        .http_status_as_error(false)
        .build()
        .into();
    let reload = || {
        let url = format!("{}/admin/reload", server.url);
        agent.post(url).send_empty().unwrap().status().as_u16()
    };
    assert_eq!(shown(&server), of_file("tls-cert.pem"));
    // Half of a change: the first certificate stays.
    put("other-cert.pem", &cert);
    assert_eq!(reload(), 500);
    assert_eq!(shown(&server), of_file("tls-cert.pem"));
    put("other-key.pem", &key);
    assert_eq!(reload(), 200);
    assert_eq!(shown(&server), of_file("other-cert.pem"));
}
