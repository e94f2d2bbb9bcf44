//! Pages of other sites that may ask (CORS). Browsers let no others read answers.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::caller::REQUEST_ID;
use crate::http::fields::IGNORED;

/// Time for which a browser need not ask again whether it may send a request.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The sites whose pages may ask.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    any: bool,
    listed: Vec<HeaderValue>,
}

/// A text that is no origin.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{0}' is no origin; use one such as https://example.com or http://localhost:3000, or * for all"
)]
pub struct OriginError(String);

impl Origins {
    /// Reads origins; `*` stands for all.
    ///
    /// # Errors
    /// One of them is none.
    pub fn parse(texts: &[String]) -> Result<Origins, OriginError> {
        let mut origins = Origins::default();
        for text in texts {
            match text.as_str() {
                "*" => origins.any = true,
                text => origins.listed.push(origin(text)?),
            }
        }
        Ok(origins)
    }

    /// Whether pages of all sites may ask.
    pub(crate) fn are_all(&self) -> bool {
        self.any
    }

    pub(crate) fn allow(&self, origin: &HeaderValue) -> bool {
        self.any || self.listed.contains(origin)
    }

    /// Returns what answers browsers; `None` if no page may ask.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        let allowed = match (self.any, self.listed.is_empty()) {
            (true, _) => AllowOrigin::any(),
            (false, true) => return None,
            (false, false) => AllowOrigin::list(self.listed.clone()),
        };
        let ignored = HeaderName::from_static(IGNORED);
        Some(
            CorsLayer::new()
                .allow_origin(allowed)
                .allow_methods([Method::GET, Method::POST, Method::DELETE])
                // Clients send their key, and headers about themselves.
                .allow_headers(AllowHeaders::mirror_request())
                .expose_headers([REQUEST_ID, ignored, header::RETRY_AFTER])
                .max_age(MAX_AGE),
        )
    }
}

fn origin(text: &str) -> Result<HeaderValue, OriginError> {
    let wrong = || OriginError(text.escape_debug().to_string());
    let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
    let is_part =
        |c: u8| c.is_ascii_graphic() && !c.is_ascii_uppercase() && !b"/?#*,@".contains(&c);
    match [scheme, host]
        .iter()
        .all(|part| !part.is_empty() && part.bytes().all(is_part))
    {
        true => HeaderValue::from_str(text).map_err(|_| wrong()),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_origins() {
        let parse = |text: &str| Origins::parse(&[text.to_string()]);
        for text in [
            "https://example.com",
            "http://localhost:3000",
            "http://[::1]:80",
            "*",
        ] {
            assert!(parse(text).is_ok(), "{text}");
        }
        for text in [
            "example.com",
            "https://",
            "https://a/",
            "https://*.a",
            "https://A",
            "",
            "a://b\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(Origins::default().layer().is_none());
    }
}
