//! HTTP to one hub: GET with redirects, and what each refusal means.
//!
//! Redirects are followed here and not by the HTTP library, so that it is plain to see where the token goes:
//! only to the hub itself, never to the storage hosts that it sends us to, and never over an open connection.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::failure::Failure;
use super::store::shown;

const MAX_REDIRECTS: usize = 8;
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Proves to a hub who asks. Shown nowhere.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Token, String> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("a token is a word of printable ASCII characters".into());
        }
        Ok(Token(text.to_owned()))
    }
}

/// Where a hub is and how to talk to it.
pub struct ClientConfig<'a> {
    /// `https://HOST`, maybe with a path.
    pub endpoint: &'a str,
    pub token: Option<Token>,
    /// PEM certificates to trust instead of the built-in ones.
    pub ca_file: Option<&'a Path>,
    /// A connection that stays silent for longer is given up.
    pub timeout: Duration,
}

/// A hub.
pub struct Client {
    agent: Agent,
    /// Without a slash at the end.
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
    timeout: Duration,
}

/// How much time an answer may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A short one, all of it within the timeout.
    Short,
    /// A long one that must keep coming.
    Long,
}

/// Who answers: scheme, host and port.
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

impl Client {
    /// # Errors
    /// The endpoint is no URL, the certificates cannot be read, or the token would go over an open connection.
    pub fn new(config: ClientConfig<'_>) -> Result<Client> {
        let endpoint = config.endpoint.trim_end_matches('/');
        let origin = endpoint
            .parse::<Uri>()
            .ok()
            .filter(|url| url.query().is_none() && !endpoint.contains('@'))
            .and_then(|url| Origin::of(&url))
            .with_context(|| {
                format!(
                    "'{}' is no address of a hub; give one such as https://huggingface.co",
                    endpoint.escape_debug()
                )
            })?;
        if config.token.is_some() && !origin.is_https && !origin.is_loopback() {
            bail!(
                "a token must not go over an open connection; give the hub's address with https://, or no token"
            );
        }
        let mut tls = TlsConfig::builder();
        if let Some(path) = config.ca_file {
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
        Ok(Client {
            agent: agent.into(),
            endpoint: endpoint.to_owned(),
            origin,
            token: config.token,
            timeout: config.timeout,
        })
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks for `path` of the hub, from byte `offset` on, on behalf of the repository `repo`. The answer's
    /// status is a success, or 416.
    pub fn get(
        &self,
        repo: &str,
        path: &str,
        offset: u64,
        body: Answer,
    ) -> Result<Response<Body>, Failure> {
        let mut url: Uri = format!("{}{path}", self.endpoint)
            .parse()
            .map_err(|_| Failure::fatal(format!("{repo} does not make a valid address")))?;
        let mut origin = self.origin.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get_once(&url, &origin, offset, body)?;
            let status = response.status().as_u16();
            match status {
                200..=299 | 416 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {
                    let target = header(response.headers(), "location").unwrap_or_default();
                    url = follow(&url, target)
                        .ok_or_else(|| Failure::fatal("the hub redirects to no valid address"))?;
                    let next = Origin::of(&url)
                        .ok_or_else(|| Failure::fatal("the hub redirects to no web address"))?;
                    if origin.is_https && !next.is_https {
                        return Err(Failure::fatal(format!(
                            "the hub redirects to an open connection ({})",
                            next.host.escape_debug()
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
        let config = request.config();
        let config = match body {
            Answer::Short => config.timeout_global(Some(self.timeout)),
            Answer::Long => config,
        };
        config
            .build()
            .call()
            .map_err(|error| no_answer(error, origin))
    }

    /// What a status that is no success means to the user.
    fn refusal(&self, repo: &str, status: u16, headers: &HeaderMap, origin: &Origin) -> Failure {
        if *origin != self.origin && matches!(status, 401 | 403) {
            // Links to storage hosts are signed for a while; the next try gets a new one.
            return Failure::again(format!("the storage host answers {status}"));
        }
        let code = header(headers, "x-error-code").unwrap_or_default();
        let how = match &self.token {
            Some(_) => "the token that was given does not open it",
            None => "give a token with --token, ROCMFORGE_HUB_TOKEN or HF_TOKEN",
        };
        match (status, code) {
            (401 | 403, "GatedRepo") => Failure::fatal(format!(
                "{repo} is gated: accept its terms at {}/{repo}, and {how}",
                self.endpoint
            )),
            (401, _) => Failure::fatal(format!(
                "{repo} does not exist, or is private or gated ({status}); check the name, or {how}"
            )),
            (403, _) => Failure::fatal(format!(
                "the hub refuses {repo} (403): its terms may have to be accepted at {}/{repo}; {how}",
                self.endpoint
            )),
            (404, "RevisionNotFound") => {
                Failure::fatal(format!("{repo} has no such revision (404)"))
            }
            (404, "EntryNotFound") => Failure::fatal(format!("{repo} has no such file (404)")),
            (404, _) => Failure::fatal(format!(
                "{repo} is not on {} (404); check the name",
                self.endpoint
            )),
            (429, _) => Failure::Again {
                reason: "the hub wants fewer requests (429)".into(),
                after: header(headers, "retry-after")
                    .and_then(|text| text.parse().ok())
                    .map(Duration::from_secs),
            },
            (408 | 500..=599, _) => Failure::again(format!("the hub has a problem ({status})")),
            _ => Failure::fatal(format!(
                "the hub answers {status} to the request for {repo}"
            )),
        }
    }
}

/// A header that is text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Where a redirect from `from` to `target` leads.
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

/// What it means that there was no answer at all.
fn no_answer(error: ureq::Error, origin: &Origin) -> Failure {
    let host = origin.host.escape_debug();
    match error {
        ureq::Error::HostNotFound => {
            Failure::again(format!("there is no host '{host}', or no network"))
        }
        ureq::Error::Timeout(_) => Failure::again(format!("{host} does not answer in time")),
        ureq::Error::ConnectionFailed => Failure::again(format!("cannot connect to {host}")),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            no_trust(&host.to_string(), &error)
        }
        ureq::Error::Io(error) => Failure::again(format!("cannot talk to {host}: {error}")),
        ureq::Error::Tls(error) => no_trust(&host.to_string(), &error),
        ureq::Error::Rustls(error) => no_trust(&host.to_string(), &error),
        ureq::Error::BodyExceedsLimit(limit) => {
            Failure::fatal(format!("{host} answers with more than {limit} bytes"))
        }
        other => Failure::fatal(format!("cannot talk to {host}: {other}")),
    }
}

fn no_trust(host: &str, error: &dyn fmt::Display) -> Failure {
    Failure::fatal(format!(
        "no safe connection to {host}: {error}; where a proxy has certificates of its own, name them with --ca-file"
    ))
}

fn certificates(path: &Path) -> Result<RootCerts> {
    let bytes = crate::session::read_file(path)?;
    let mut found = Vec::new();
    for item in parse_pem(&bytes) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|error| anyhow!("{} is damaged: {error}", shown(path)))?
        {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        bail!("{} holds no PEM certificates", shown(path));
    }
    Ok(RootCerts::new_with_certs(&found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let token: Token = "hf_secret\n".parse().unwrap();
        assert!(!format!("{token:?}").contains("secret"));
        assert!("two words".parse::<Token>().is_err());
    }

    #[test]
    fn redirects_are_read_as_browsers_do() {
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
    fn an_origin_is_scheme_host_and_port() {
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
    fn a_token_goes_over_no_open_connection() {
        let client = |endpoint| {
            Client::new(ClientConfig {
                endpoint,
                token: Some("t".parse().unwrap()),
                ca_file: None,
                timeout: Duration::from_secs(1),
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
