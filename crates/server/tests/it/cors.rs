//! Pages of other sites.

use rocmforge_server::{Keys, NewKey, Origins, Server, ServerError};

use crate::client::{Reply, TestServer, forge_mini, local, small, start};

const PAGE: &str = "https://example.com";
const BODY: &[u8] = b"{\"content\": \"a\"}";

fn origins(texts: &[&str]) -> Origins {
    let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
    Origins::parse(&texts).unwrap()
}

/// What a browser asks before a page's request.
fn preflight(server: &TestServer, origin: &str) -> Reply {
    server.options(
        "/v1/chat/completions",
        &[
            ("origin", origin),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization,x-stainless-os",
            ),
        ],
    )
}

fn allowed(reply: &Reply) -> Option<&str> {
    reply.header("access-control-allow-origin")
}

#[test]
fn pages_of_listed_sites_may_ask() {
    let mut config = local();
    config.origins = origins(&["http://localhost:3000", PAGE]);
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let reply = preflight(&server, PAGE);
    assert_eq!(reply.status, 200);
    assert_eq!(allowed(&reply), Some(PAGE));
    let headers = reply.header("access-control-allow-headers").unwrap();
    assert!(headers.contains("x-stainless-os"), "{headers}");
    let methods = reply.header("access-control-allow-methods").unwrap();
    assert!(methods.contains("POST"), "{methods}");
    let reply = server.send("/tokenize", BODY, &[("origin", PAGE)]);
    assert_eq!(allowed(&reply), Some(PAGE));
    assert!(
        reply
            .header("access-control-expose-headers")
            .unwrap()
            .contains("retry-after")
    );
    reply.ok();
    // Of other sites, neither.
    let other = "https://example.com.evil.net";
    let reply = preflight(&server, other);
    assert_eq!(allowed(&reply), None);
    reply.error(403);
    let reply = server.send("/tokenize", BODY, &[("origin", other)]);
    assert_eq!(allowed(&reply), None);
    reply.error(403);
}

#[test]
fn pages_of_all_sites_may_ask_with_a_key() {
    let key = NewKey::create("page").unwrap();
    let mut config = local();
    config.origins = origins(&["*"]);
    let refused = Server::bind(config.clone(), vec![forge_mini(small())]);
    assert!(matches!(refused.err(), Some(ServerError::OpenToPages)));
    config.keys = Keys::parse(&key.line).unwrap();
    let server = TestServer::start(config, vec![forge_mini(small())]);
    assert_eq!(allowed(&preflight(&server, PAGE)), Some("*"));
    // The page reads why it is refused.
    let reply = server.send("/tokenize", BODY, &[("origin", PAGE)]);
    assert_eq!(allowed(&reply), Some("*"));
    reply.error(401);
    let headers = [("origin", PAGE), ("x-api-key", key.key.as_str())];
    server.send("/tokenize", BODY, &headers).ok();
}

#[test]
fn without_a_list_no_page_may_ask() {
    let server = start();
    for origin in [PAGE, server.url.as_str()] {
        let reply = preflight(&server, origin);
        assert_ne!(reply.status, 200);
        assert_eq!(allowed(&reply), None);
    }
}
