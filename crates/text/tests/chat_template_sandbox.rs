//! Hostile templates in a process of their own. This program is both sides: with
//! `serve` as its argument it is the child.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use rocmforge_text::chat_template::sandbox::{Limits, Sandbox, serve};
use rocmforge_text::chat_template::{ChatTemplate, Conversation, RenderError, TemplateError};
use serde_json::{Value, json};

/// What must come of a template.
enum Expected {
    Text(&'static str),
    Refused(&'static str),
    /// A limit of the interpreter.
    Limited,
    /// A limit of the process.
    Stopped,
}

use Expected::{Limited, Refused, Stopped, Text};

const CASES: &[(&str, &str, Expected)] = &[
    (
        "a greeting",
        "{{ messages[0].content }} {{ tools | length }}{{ bos_token }}",
        Text("Hi é 1<s>"),
    ),
    ("variables", "{{ enable_thinking }}", Text("False")),
    (
        "a refusal",
        "{{ raise_exception('no \\u2028 thanks') }}",
        Refused("no \u{2028} thanks"),
    ),
    (
        "endless loop",
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
        Limited,
    ),
    (
        "endless text",
        "{% for a in range(10000) %}{{ 'x' * 10000 }}{% endfor %}",
        Limited,
    ),
    (
        "endless macro",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        Limited,
    ),
    ("deep expression", "DEEP", Limited),
    (
        "a string that doubles",
        "{% set ns = namespace(x='x') %}{% for a in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        Stopped,
    ),
    (
        "a text that doubles",
        "{% set ns = namespace(x='x') %}{% for a in range(100) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        Stopped,
    ),
    (
        "many strings",
        "{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = ns.l + ['x' * (90000000 + a)] %}{% endfor %}",
        Stopped,
    ),
    ("constants", "CONSTANTS", Stopped),
    (
        "replacing",
        "{% set x = 'a' * 10000 %}{% set y = x | replace('a', x) %}{{ y | replace('a', x) | length }}",
        Stopped,
    ),
    (
        "a list that shares its parts",
        "{% set ns = namespace(x=[]) %}{% for a in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}{{ ns.x | tojson | length }}",
        Stopped,
    ),
    (
        "a sum that shares its parts",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | sum }}",
        Stopped,
    ),
    (
        "a list too deep to free",
        "{% set ns = namespace(x=[]) %}{% for a in range(1000) %}{% for b in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}",
        Stopped,
    ),
    (
        "recursion in a loop",
        "{% for a in [[[]]] recursive %}{{ loop([a, a]) }}{% endfor %}",
        Limited,
    ),
];

fn source(source: &str) -> String {
    match source {
        "DEEP" => format!("{{{{ {} }}}}", "(".repeat(100_000)),
        "CONSTANTS" => (0..100)
            .map(|i| format!("{{% set x = 'x' * {} %}}", 90_000_000 + i))
            .collect(),
        other => other.into(),
    }
}

fn check(name: &str, template: &str, expected: &Expected) {
    let start = Instant::now();
    let program = std::env::current_exe().unwrap();
    let template = ChatTemplate::from_source(&source(template))
        .unwrap()
        .with_tokens("<s>", "</s>")
        .in_sandbox(Sandbox::new(program, [OsString::from("serve")]));
    let messages = [json!({"role": "user", "content": "Hi é"})];
    let variables = json!({"enable_thinking": false});
    let rendered = template.render(&Conversation {
        messages: &messages,
        tools: &[Value::Null],
        add_generation_prompt: true,
        variables: variables.as_object(),
    });
    let holds = match (expected, &rendered) {
        (Text(expected), Ok(text)) => text == expected,
        (Refused(expected), Err(TemplateError::Render(RenderError::Refused { message }))) => {
            message == expected
        }
        (Limited, Err(TemplateError::Render(error))) => {
            !matches!(error, RenderError::Refused { .. })
        }
        (Stopped, Err(TemplateError::Stopped { .. } | TemplateError::Render(_))) => true,
        _ => false,
    };
    println!("{name}: {:?}", start.elapsed());
    assert!(holds, "{name}: {rendered:?}");
    // Two seconds of computing on a machine that does other things too.
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "{name}: {:?}",
        start.elapsed()
    );
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        serve().unwrap();
        return;
    }
    // What a test runner asks for before it runs anything.
    if std::env::args().any(|arg| arg == "--list") {
        println!("sandbox: test");
        return;
    }
    if !cfg!(target_os = "linux") {
        println!("skipped: the memory limit is enforced on Linux only");
        return;
    }
    for (name, template, expected) in CASES {
        check(name, template, expected);
    }
    let waiting = Sandbox::new("sleep", [OsString::from("60")]).with_limits(Limits {
        wall_seconds: 1,
        ..Limits::default()
    });
    let template = ChatTemplate::chatml().in_sandbox(waiting);
    assert!(matches!(
        template.check(),
        Err(TemplateError::Stopped { .. })
    ));
    let missing = ChatTemplate::chatml().in_sandbox(Sandbox::new("/nonexistent", []));
    assert!(matches!(missing.check(), Err(TemplateError::Process(_))));
    println!("{} templates", CASES.len());
}
