//! HTTP client of one hub: GET with redirects, and the meaning of error statuses.
//!
//! Redirects are followed here rather than by the HTTP library, to control where the token goes: only to the hub,
//! never to the storage hosts it redirects to, and never unencrypted.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rocmforge_gguf::shown;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::error::Error;
use crate::retry::Failure;

const MAX_REDIRECTS: usize = 8;
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_CERTIFICATE_BYTES: u64 = 16 << 20;

/// The variable that other programs read the hub's token from.
const TOKEN_VARIABLE: &str = "HF_TOKEN";

/// An access token of a hub. `Debug` does not print it.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Token, Error> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::BadToken);
        }
        Ok(Token(text.to_owned()))
    }
}

impl Token {
    /// Reads the token from `HF_TOKEN`; `None` if the variable is unset or blank.
    ///
    /// # Errors
    /// The variable does not hold a token.
    pub fn from_env() -> Result<Option<Token>, Error> {
        match env::var(TOKEN_VARIABLE) {
            Ok(text) if !text.trim().is_empty() => text.parse().map(Some),
            _ => Ok(None),
        }
    }
}

/// The address of a hub and how to talk to it.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// `https://HOST`, optionally with a path.
    pub endpoint: String,
    /// Needed for gated and private models.
    pub token: Option<Token>,
    /// PEM certificates to trust instead of the built-in ones.
    pub ca_file: Option<PathBuf>,
    /// Longest time without data.
    pub timeout: Duration,
    /// Retries of a failed request; the count restarts when data arrives.
    pub retries: u32,
}

impl Default for HubConfig {
    /// huggingface.co without a token, 60 s timeout, 5 retries.
    fn default() -> HubConfig {
        HubConfig {
            endpoint: "https://huggingface.co".into(),
            token: None,
            ca_file: None,
            timeout: Duration::from_secs(60),
            retries: 5,
        }
    }
}

/// A client of one hub. Connects on the first request.
pub struct Hub {
    agent: Agent,
    /// Without a slash at the end.
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
    timeout: Duration,
    retries: u32,
}

/// How the timeout applies to a response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To the whole response.
    Short,
    /// To each read.
    Long,
}

/// Scheme, host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    is_https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &Uri) -> Option<Origin> {
        let is_https = match url.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        Some(Origin {
            is_https,
            host: url
                .host()
                .filter(|host| !host.is_empty())?
                .to_ascii_lowercase(),
            port: url.port_u16().unwrap_or(if is_https { 443 } else { 80 }),
        })
    }

    fn is_loopback(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        host == "localhost"
            || host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }
}

impl Hub {
    /// # Errors
    /// The endpoint is not a URL, the certificates cannot be read, or the token would be sent unencrypted.
    pub fn new(config: HubConfig) -> Result<Hub, Error> {
        let endpoint = config.endpoint.trim_end_matches('/');
        let origin = endpoint
            .parse::<Uri>()
            .ok()
            .filter(|url| url.query().is_none() && !endpoint.contains('@'))
            .and_then(|url| Origin::of(&url))
            .ok_or_else(|| Error::BadEndpoint {
                endpoint: endpoint.to_owned(),
            })?;
        if config.token.is_some() && !origin.is_https && !origin.is_loopback() {
            return Err(Error::TokenWithoutTls);
        }
        let mut tls = TlsConfig::builder();
        if let Some(path) = &config.ca_file {
            tls = tls.root_certs(certificates(path)?);
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MAX_HEADER_BYTES)
            .timeout_resolve(Some(config.timeout))
            .timeout_connect(Some(config.timeout))
            .timeout_send_request(Some(config.timeout))
            .timeout_recv_response(Some(config.timeout))
            .timeout_per_read(Some(config.timeout))
            .user_agent(concat!("rocmforge/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .tls_config(tls.build())
            .build();
        Ok(Hub {
            agent: agent.into(),
            endpoint: endpoint.to_owned(),
            origin,
            token: config.token,
            timeout: config.timeout,
            retries: config.retries,
        })
    }

    pub(crate) fn retries(&self) -> u32 {
        self.retries
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Requests `path` of the hub from byte `offset` on; `repo` is for messages. The response's status is 2xx or 416.
    pub(crate) fn get(
        &self,
        repo: &str,
        path: &str,
        offset: u64,
        body: Answer,
    ) -> Result<Response<Body>, Failure> {
        let mut url: Uri = format!("{}{path}", self.endpoint)
            .parse()
            .map_err(|_| Failure::fatal(format!("{repo} does not form a valid address")))?;
        let mut origin = self.origin.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get_once(&url, &origin, offset, body)?;
            let status = response.status().as_u16();
            match status {
                200..=299 | 416 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {
                    let target = header(response.headers(), "location").unwrap_or_default();
                    url = follow(&url, target)
                        .ok_or_else(|| Failure::fatal("the hub redirects to an invalid address"))?;
                    let next = Origin::of(&url).ok_or_else(|| {
                        Failure::fatal("the hub redirects to an address that is not HTTP")
                    })?;
                    if origin.is_https && !next.is_https {
                        return Err(Failure::fatal(format!(
                            "the hub redirects to an unencrypted connection ({})",
                            shown(&next.host)
                        )));
                    }
                    origin = next;
                }
                _ => return Err(self.refusal(repo, status, response.headers(), &origin)),
            }
        }
        Err(Failure::fatal(format!(
            "the hub redirects more than {MAX_REDIRECTS} times"
        )))
    }

    fn get_once(
        &self,
        url: &Uri,
        origin: &Origin,
        offset: u64,
        body: Answer,
    ) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(Token(token)) = &self.token
            && *origin == self.origin
        {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if offset > 0 {
            request = request.header("Range", format!("bytes={offset}-"));
        }
        let mut config = request.config();
        if origin.is_loopback() {
            // A proxy would read the token, which is sent without encryption here.
            config = config.proxy(None);
        }
        let config = match body {
            Answer::Short => config.timeout_global(Some(self.timeout)),
            Answer::Long => config,
        };
        config
            .build()
            .call()
            .map_err(|error| no_answer(error, origin))
    }

    /// Explains an error status.
    fn refusal(&self, repo: &str, status: u16, headers: &HeaderMap, origin: &Origin) -> Failure {
        if *origin != self.origin && matches!(status, 401 | 403) {
            // Links to storage hosts expire; the next try gets a new one.
            return Failure::transient(format!("the storage host answers {status}"));
        }
        let code = header(headers, "x-error-code").unwrap_or_default();
        let how = match &self.token {
            Some(_) => "use a token that has access",
            None => "set a token (HF_TOKEN)",
        };
        let refused = |reason: String| Failure::refused(status, reason);
        match (status, code) {
            (401 | 403, "GatedRepo") => refused(format!(
                "{repo} is gated: accept its terms at {}/{repo}, and {how}",
                self.endpoint
            )),
            (401, _) => refused(format!(
                "{repo} does not exist, or is private or gated (401); check the name, or {how}"
            )),
            (403, _) => refused(format!(
                "the hub refuses access to {repo} (403): accept its terms at {}/{repo} if it has any, and {how}",
                self.endpoint
            )),
            (404, "RevisionNotFound") => refused(format!("{repo} has no such revision (404)")),
            (404, "EntryNotFound") => refused(format!("{repo} has no such file (404)")),
            (404, _) => refused(format!(
                "{repo} is not on {} (404); check the name",
                self.endpoint
            )),
            (429, _) => Failure::Transient {
                reason: "the hub limits the request rate (429)".into(),
                retry_after: header(headers, "retry-after")
                    .and_then(|text| text.parse().ok())
                    .map(Duration::from_secs),
            },
            (408 | 500..=599, _) => Failure::transient(format!("the hub has an error ({status})")),
            _ => refused(format!(
                "the hub answers {status} to the request for {repo}"
            )),
        }
    }
}

/// Returns a header's text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Resolves the redirect `target` against the address `from`.
fn follow(from: &Uri, target: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let whole = match target {
        "" => return None,
        _ if target.starts_with("//") => format!("{scheme}:{target}"),
        _ if target.starts_with('/') => format!("{scheme}://{authority}{target}"),
        _ => target.to_owned(),
    };
    whole.parse().ok()
}

/// Explains why there was no response.
fn no_answer(error: ureq::Error, origin: &Origin) -> Failure {
    let host = shown(&origin.host);
    match error {
        ureq::Error::HostNotFound => Failure::transient(format!(
            "cannot find the host {host}; check the address and the network"
        )),
        ureq::Error::Timeout(_) => Failure::transient(format!("{host} does not respond in time")),
        ureq::Error::ConnectionFailed => Failure::transient(format!("cannot connect to {host}")),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            untrusted(&host, &error)
        }
        ureq::Error::Io(error) => {
            Failure::transient(format!("connection to {host} failed: {error}"))
        }
        ureq::Error::Tls(error) => untrusted(&host, &error),
        ureq::Error::Rustls(error) => untrusted(&host, &error),
        ureq::Error::BodyExceedsLimit(limit) => {
            Failure::fatal(format!("{host} sends more than {limit} bytes"))
        }
        other => Failure::fatal(format!("connection to {host} failed: {other}")),
    }
}

fn untrusted(host: &str, error: &dyn fmt::Display) -> Failure {
    Failure::fatal(format!(
        "cannot verify {host}: {error}; if a proxy uses its own certificates, set ca_file"
    ))
}

fn certificates(path: &Path) -> Result<RootCerts, Error> {
    let bad = |problem: String| Error::BadCertificates {
        path: path.to_owned(),
        problem,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_CERTIFICATE_BYTES).read_to_end(&mut bytes))
        .map_err(Error::io("read", path))?;
    let mut found = Vec::new();
    for item in parse_pem(&bytes) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| bad(format!("invalid certificate: {error}")))?
        {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(bad("no PEM certificates found".into()));
    }
    Ok(RootCerts::new_with_certs(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_not_printed() {
        let token: Token = "hf_secret\n".parse().unwrap();
        assert!(!format!("{token:?}").contains("secret"));
        assert!("two words".parse::<Token>().is_err());
    }

    #[test]
    fn resolves_redirects_like_browsers() {
        let from: Uri = "https://a.example:8443/x/y?z".parse().unwrap();
        for (target, expected) in [
            ("/b?c", Some("https://a.example:8443/b?c")),
            ("//cdn.example/b", Some("https://cdn.example/b")),
            ("http://cdn.example/b", Some("http://cdn.example/b")),
            ("", None),
        ] {
            let found = follow(&from, target).map(|url| url.to_string());
            assert_eq!(found.as_deref(), expected, "{target:?}");
        }
    }

    #[test]
    fn origins_compare_scheme_host_and_port() {
        let of = |url: &str| Origin::of(&url.parse().unwrap());
        assert_eq!(of("https://A.example/x"), of("https://a.example:443"));
        assert_ne!(of("https://a.example"), of("http://a.example"));
        assert_ne!(of("https://a.example"), of("https://a.example.evil"));
        assert_ne!(of("http://localhost:1"), of("http://localhost:2"));
        assert_eq!(of("ftp://a.example"), None);
        assert!(of("http://127.0.0.1:8080").unwrap().is_loopback());
        assert!(!of("http://localhost.evil").unwrap().is_loopback());
    }

    #[test]
    fn rejects_tokens_without_tls_and_bad_endpoints() {
        let client = |endpoint: &str| {
            Hub::new(HubConfig {
                endpoint: endpoint.into(),
                token: Some("t".parse().unwrap()),
                ..HubConfig::default()
            })
        };
        assert!(client("http://hub.example").is_err());
        assert!(client("http://localhost:1").is_ok());
        assert!(client("https://hub.example/").is_ok());
        for bad in [
            "hub.example",
            "ftp://x",
            "https://",
            "https://a@b",
            "https://x?y",
            "",
        ] {
            assert!(client(bad).is_err(), "{bad:?}");
        }
    }
}
