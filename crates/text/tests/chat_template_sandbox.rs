//! Hostile templates, rendered in a sandbox process. This program is both sides: with `serve` as its argument it is
//! the child. It answers a test runner's `--list`, and takes part of a test name as a filter.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use rocmforge_text::chat_template::sandbox::{Limits, Sandbox, serve};
use rocmforge_text::chat_template::{ChatTemplate, Conversation, RenderError, TemplateError};
use serde_json::{Value, json};

/// The expected outcome of a template.
enum Expected {
    Text(&'static str),
    Refused(&'static str),
    /// An error whose message is cut.
    Cut,
    /// Stopped by a limit of the interpreter.
    Limited,
    /// Stopped by a limit of the process.
    Stopped,
}

use Expected::{Cut, Limited, Refused, Stopped, Text};

const CASES: &[(&str, &str, Expected)] = &[
    (
        "a_greeting",
        "{{ messages[0].content }} {{ tools | length }}{{ bos_token }}",
        Text("Hi é 1<s>"),
    ),
    ("variables", "{{ enable_thinking }}", Text("False")),
    (
        "a_refusal",
        "{{ raise_exception('no \\u2028 thanks') }}",
        Refused("no \u{2028} thanks"),
    ),
    (
        "a_refusal_of_90_mb",
        "{{ raise_exception('\\u0001' * 90000000) }}",
        Cut,
    ),
    (
        "a_failure_that_names_90_mb",
        "{% include 'x' * 90000000 %}",
        Cut,
    ),
    (
        "endless_loop",
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
        Limited,
    ),
    (
        "endless_text",
        "{% for a in range(10000) %}{{ 'x' * 10000 }}{% endfor %}",
        Limited,
    ),
    (
        "endless_macro",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        Limited,
    ),
    ("deep_expression", "DEEP", Limited),
    (
        "a_string_that_doubles",
        "{% set ns = namespace(x='x') %}{% for a in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        Stopped,
    ),
    (
        "a_text_that_doubles",
        "{% set ns = namespace(x='x') %}{% for a in range(100) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
        Stopped,
    ),
    (
        "many_strings",
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
        "a_list_that_shares_its_parts",
        "{% set ns = namespace(x=[]) %}{% for a in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}{{ ns.x | tojson | length }}",
        Stopped,
    ),
    (
        "a_sum_that_shares_its_parts",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | sum }}",
        Stopped,
    ),
    (
        "a_list_too_deep_to_free",
        "{% set ns = namespace(x=[]) %}{% for a in range(1000) %}{% for b in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}",
        Stopped,
    ),
    (
        "recursion_in_a_loop",
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
        (Cut, Err(TemplateError::Render(error))) => {
            let (RenderError::Refused { message } | RenderError::Failed { message, .. }) = error
            else {
                panic!("{error:?}");
            };
            message.len() > 100 && message.len() <= 5000 && error.to_string().len() < 10_000
        }
        (Limited, Err(TemplateError::Render(error))) => {
            !matches!(error, RenderError::Refused { .. })
        }
        (Stopped, Err(TemplateError::Stopped { .. } | TemplateError::Render(_))) => true,
        _ => false,
    };
    println!("{name}: {:?}", start.elapsed());
    assert!(holds, "{name}: {rendered:?}");
    // Two seconds of CPU time, on a machine that may be busy.
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "{name}: {:?}",
        start.elapsed()
    );
}

/// A child that does not answer, and a program that does not exist.
fn check_processes() {
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
}

/// Children are used again, by several threads, and outcomes do not depend on what was rendered before.
fn check_reuse() {
    let program = std::env::current_exe().unwrap();
    let source = "{% if messages[0].content == 'boom' %}{% set ns = namespace(x='x') %}\
        {% for a in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
        {% endif %}\
        {% set seen = seen | default('never') %}{{ seen }}{% set seen = messages[0].content %} {{ seen }}";
    let template = ChatTemplate::from_source(source)
        .unwrap()
        .in_sandbox(Sandbox::new(program, [OsString::from("serve")]));
    let render = |content: &str| {
        let messages = [json!({"role": "user", "content": content})];
        template.render(&Conversation {
            messages: &messages,
            ..Conversation::default()
        })
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for i in 0..150 {
                    let content = format!("{thread} {i}");
                    assert_eq!(render(&content).unwrap(), format!("never {content}"));
                }
            });
        }
    });
    println!("600 prompts: {:?}", start.elapsed());
    assert!(matches!(render("boom"), Err(TemplateError::Stopped { .. })));
    assert_eq!(render("Hi").unwrap(), "never Hi");
}

/// A template of 30 MB of characters that JSON escapes, within the limits of text.
fn check_long_text() {
    let program = std::env::current_exe().unwrap();
    let template = ChatTemplate::from_source("{{ '\\u0001' * 30000000 }}")
        .unwrap()
        .in_sandbox(Sandbox::new(program, [OsString::from("serve")]));
    let text = template.render(&Conversation::default()).unwrap();
    assert!(text.len() == 30_000_000 && text.bytes().all(|b| b == 1));
}

/// Runs this program again under limits that are below those of a rendering.
fn check_own_limits() {
    let program = std::env::current_exe().unwrap();
    let script = "ulimit -v 300000 && ulimit -t 1 && exec \"$0\" limited";
    let mut shell = std::process::Command::new("sh");
    let status = shell.args(["-c", script]).arg(program).status().unwrap();
    assert!(status.success(), "{status}");
}

/// The part of [`check_own_limits`] under the limits.
fn check_limited() {
    let program = std::env::current_exe().unwrap();
    let render = |source: &str| {
        ChatTemplate::from_source(source)
            .unwrap()
            .in_sandbox(Sandbox::new(&program, [OsString::from("serve")]))
            .render(&Conversation::default())
    };
    assert_eq!(render("fine").unwrap(), "fine");
    let error = render("{{ ('x' * 90000000) ~ ('y' * 90000000) ~ ('z' * 90000000) }}");
    assert!(
        matches!(
            error,
            Err(TemplateError::OwnLimits {
                memory_mib: 292,
                seconds: 1
            })
        ),
        "{error:?}"
    );
}

fn main() {
    const PROCESSES: &str = "processes";
    const LONG_TEXT: &str = "a_text_of_control_characters";
    const REUSE: &str = "children_are_used_again";
    const OWN_LIMITS: &str = "limits_of_this_process";
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "serve") {
        serve().unwrap();
        return;
    }
    if args.first().is_some_and(|arg| arg == "limited") {
        return check_limited();
    }
    let names = CASES
        .iter()
        .map(|(name, ..)| *name)
        .chain([PROCESSES, LONG_TEXT, REUSE, OWN_LIMITS]);
    if args.iter().any(|arg| arg == "--list") {
        let is_ignored = args.iter().any(|arg| arg == "--ignored");
        names
            .filter(|_| !is_ignored)
            .for_each(|name| println!("{name}: test"));
        return;
    }
    if !cfg!(target_os = "linux") {
        println!("skipped: the memory limit is enforced on Linux only");
        return;
    }
    let wanted = args.iter().find(|arg| !arg.starts_with('-'));
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| name.contains(wanted.as_str()));
    for (name, template, expected) in CASES.iter().filter(|(name, ..)| is_wanted(name)) {
        check(name, template, expected);
    }
    if is_wanted(PROCESSES) {
        check_processes();
    }
    if is_wanted(LONG_TEXT) {
        check_long_text();
    }
    if is_wanted(REUSE) {
        check_reuse();
    }
    if is_wanted(OWN_LIMITS) {
        check_own_limits();
    }
}
