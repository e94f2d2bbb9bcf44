//! The page: complete in itself, and alive in a browser.

use rocmforge_server::{Keys, NewKey};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::browser::Browser;
use crate::client::{TestServer, forge_mini, local, roomy, small, start};

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
pub(crate) fn decoded(text: &str) -> Vec<u8> {
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
    let server = start();
    let Some(mut browser) = Browser::open(&server.url) else {
        return;
    };
    browser.wait_for("$('model').value === 'forge-mini'");
    browser.wait_for("$('gauges').innerText.includes('KV cache 0 %')");
    browser.check_sizes("chat");
    browser.check_quiet(&server.url);
}

/// Markup that would run, in everything that a user or a model writes.
#[test]
fn text_stays_text() {
    let server = start();
    let Some(mut browser) = Browser::open(&server.url) else {
        return;
    };
    let hostile = "<img src=x onerror=\"window.hit = 1\"><script>window.hit = 2</script>";
    let markdown = format!(
        "# {hostile}\n\n- {hostile}\n\n`{hostile}` **{hostile}** {hostile}\n\n```\n{hostile}\n```"
    );
    let turns = json!([
        {"role": "user", "content": hostile},
        {"role": "assistant", "content": markdown, "reasoning": markdown, "error": hostile, "note": hostile,
            "calls": [{"name": hostile, "arguments": hostile}], "cut": hostile},
    ]);
    let kept = json!([{ "turns": turns }]).to_string();
    let script = format!(
        "localStorage.setItem('rocmforge-conversations', {})",
        json!(kept)
    );
    browser.eval(&script);
    browser.go(&format!("{}/?again", server.url));
    browser.wait_for("document.querySelectorAll('.turn').length === 2");
    let shown = browser.eval("$('log').textContent");
    // Every text but the name of the list's item, which is cut.
    assert_eq!(
        shown.as_str().unwrap().matches(hostile).count(),
        18,
        "{shown}"
    );
    assert_eq!(browser.eval("document.images.length"), 0);
    assert_eq!(browser.eval("document.scripts.length"), 1);
    assert_eq!(browser.eval("typeof window.hit"), "undefined");
    browser.check_sizes("markup");
    browser.check_quiet(&server.url);
}

#[test]
fn calls_and_cut_answers_are_shown() {
    let server = start();
    let Some(mut browser) = Browser::open(&server.url) else {
        return;
    };
    browser.wait_for("$('model').value === 'forge-mini'");
    // An answer that must call.
    browser.eval(
        "(() => { const own = fetch; window.fetch = (path, options) => own(path, options?.body?.includes('clock') \
         ? { ...options, body: JSON.stringify({ ...JSON.parse(options.body), tool_choice: 'required', \
         parallel_tool_calls: false }) } : options); })()",
    );
    let clock = json!([{"type": "function", "function": {"name": "clock", "parameters": {
        "type": "object", "properties": {"zone": {"enum": ["UTC"]}}, "required": ["zone"], "additionalProperties": false}}}]);
    let tools = json!(clock.to_string());
    browser.eval(&format!(
        "$('tools').value = {tools}; $('input').value = 'What time is it?'; $('input').focus()"
    ));
    browser.press_enter();
    browser.wait_for("document.querySelector('.call summary')?.innerText === 'Call of clock'");
    browser.wait_for("document.querySelector('.call code').innerText.includes('UTC')");
    browser.check_sizes("call");

    browser.wait_for("$('send').innerText === 'Send'");
    let ask = "$('input').value = 'Tell me a story.'; $('input').focus()";
    browser.eval(&format!(
        "$('tools').value = ''; $('max_tokens').value = '2'; {ask}"
    ));
    browser.press_enter();
    browser.wait_for("document.querySelector('.cut')?.innerText.includes('most tokens')");
    // Tools that are none are named.
    browser.wait_for("$('send').innerText === 'Send'");
    browser.eval(&format!("$('tools').value = '['; {ask}"));
    browser.press_enter();
    browser.wait_for("document.querySelector('.error')?.innerText.includes('no JSON')");
    browser.check_quiet(&server.url);
}

#[test]
fn stop_frees_the_blocks() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let Some(mut browser) = Browser::open(&server.url) else {
        return;
    };
    browser.wait_for("$('model').value === 'forge-mini'");
    // An answer that does not end by itself.
    browser.eval(
        "(() => { const own = fetch; window.fetch = (path, options) => own(path, options?.body \
         ? { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true }) } : options); })()",
    );
    browser.eval("$('input').value = 'Tell me a story.'; $('input').focus()");
    browser.press_enter();
    browser.wait_for("document.querySelector('.turn.assistant')?.innerText.length > 20");
    server.wait_for("vllm:num_requests_running", 1.0);
    assert_eq!(browser.eval("$('send').innerText"), "Stop");
    browser.eval("$('send').focus()");
    browser.press_enter();
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
    browser.wait_for("$('send').innerText === 'Send' && $('log').innerText.includes('stopped')");
    browser.check_sizes("answer");
    browser.check_quiet(&server.url);
}

#[test]
fn the_owner_ends_a_request_and_profiles_in_the_page() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let body = json!({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": true, "stream": true});
    let begin = |id| {
        let mut lines = server.lines("/v1/completions", &body, &[("x-request-id", id)]);
        lines.next().unwrap();
        lines
    };
    let Some(mut browser) = Browser::open(&format!("{}/#server", server.url)) else {
        return;
    };
    browser.wait_for("$('requests-note').innerText === 'None.'");
    let (stays, ends) = (begin("stays"), begin("ends"));
    let states =
        "[...document.querySelectorAll('[data-label=State]')].map((cell) => cell.innerText).join()";
    browser.wait_for(&format!("{states} === 'decode, streams,decode, streams'"));
    // By the keyboard: the button of the second row.
    let button = "document.querySelector('[data-id=ends] button')";
    assert_eq!(
        browser.eval(&format!("{button}.ariaLabel")),
        "End request ends"
    );
    browser.eval(&format!("{button}.focus()"));
    browser.press_enter();
    let last = ends.filter(|line| !line.is_empty()).last().unwrap();
    assert!(last.contains("ended_by_owner"), "{last}");
    browser.wait_for("$('requests').tBodies[0].rows.length === 1");
    drop(stays);
    let profiled = begin("profiled");
    browser.eval("$('seconds').value = '1'; $('start').focus()");
    browser.press_enter();
    browser.wait_for("$('profile').innerText.includes('By shape')");
    let rows = browser.eval("$('profile').querySelector('table').tBodies[0].innerText");
    assert!(rows.as_str().unwrap().starts_with("decode"), "{rows}");
    browser.check_sizes("server");
    browser.eval("$('profile').lastElementChild.scrollIntoView({ block: 'end' })");
    browser.check_sizes("profile");
    drop(profiled);
    // The report, for a browser that is sent there.
    let reported = begin("reported");
    browser.go(&format!("{}/admin/profile?seconds=1", server.url));
    browser.wait_for("document.querySelector('h1').innerText === 'Live traffic'");
    browser.wait_for("document.querySelector('#shapes td')");
    browser.check_sizes("report");
    drop(reported);
    browser.go(&format!("{}/#server", server.url));
    browser.wait_for("$('requests-note').innerText === 'None.'");
    browser.check_quiet(&server.url);
}

#[test]
fn the_page_asks_for_a_key_that_suffices() {
    let keys = ["user", "owner"].map(|name| NewKey::create(name).unwrap());
    let [user, owner] = &keys;
    let mut config = local();
    config.keys = Keys::parse(&format!(
        "{}\n{}:infer,metrics,admin",
        user.line, owner.line
    ))
    .unwrap();
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let Some(mut browser) = Browser::open(&format!("{}/robots.txt", server.url)) else {
        return;
    };
    let give = |browser: &mut Browser, key: &NewKey| {
        browser.eval(&format!(
            "sessionStorage.setItem('rocmforge-key', '{}')",
            key.key
        ));
    };
    give(&mut browser, user);
    browser.go(&format!("{}/#server", server.url));
    browser.wait_for("$('requests-note').innerText.includes('scope') && !$('other-key').hidden");
    give(&mut browser, owner);
    browser.wait_for("$('requests-note').innerText === 'None.' && $('other-key').hidden");
    assert_eq!(browser.eval("$('model').value"), "forge-mini");
}
