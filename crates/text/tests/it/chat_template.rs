//! Chat templates: compared with Jinja2's renderings, from files, and with limits.

use rocmforge_gguf::{Gguf, Writer};
use rocmforge_testkit::data::{conformance, forge_mini, golden, read_json};
use rocmforge_text::chat_template::{
    ChatTemplate, Clock, Conversation, RenderError, TemplateError,
};
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[test]
fn renders_templates_of_released_models_as_jinja2_does() {
    let Some(folder) = conformance("data") else {
        return;
    };
    let rows = read_json(&folder.join("golden/chat_templates.json"));
    let folder = folder.join("templates");
    assert_eq!(list(&rows).len(), 90);
    for row in list(&rows) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let name = text(&row["template"]);
        let input = &row["input"];
        let template =
            ChatTemplate::from_source(&std::fs::read_to_string(folder.join(&name)).unwrap())
                .unwrap()
                .with_tokens(&text(&input["bos_token"]), &text(&input["eos_token"]))
                .with_clock(Clock::Text("26 Jul 2024".into()));
        let rendered = template.render(&Conversation {
            messages: list(&input["messages"]),
            tools: list(&input["tools"]),
            add_generation_prompt: input["add_generation_prompt"].as_bool().unwrap(),
            variables: None,
        });
        let case = format!("{name}, {}", row["case"]);
        match row["output"].as_str() {
            Some(expected) => assert_eq!(rendered.unwrap(), expected, "{case}"),
            None => assert!(
                matches!(
                    rendered,
                    Err(TemplateError::Render(RenderError::Refused { .. }))
                ),
                "{case}: {rendered:?}"
            ),
        }
    }
}

fn render(source: &str, variables: &Value) -> Result<String, TemplateError> {
    let template = ChatTemplate::from_source(source)?.with_clock(Clock::At {
        unix_seconds: 1_721_966_706,
    });
    let messages = [json!({"role": "user", "content": "Hi"})];
    let variables = variables.as_object().cloned().unwrap_or_default();
    let conversation = Conversation {
        messages: &messages,
        variables: Some(&variables),
        ..Conversation::default()
    };
    template.render(&conversation)
}

/// Template sources and the output of Jinja2 3.1.6, configured as in transformers, with the variables below.
const SNIPPETS: &[(&str, &str)] = &[
    (
        "{{ n }} {{ t }} {{ f }} {{ z }} {{ i / 2 }} {{ 7 // 2 }} {{ neg // 2 }} {{ neg % 3 }} {{ 2 ** 10 }}",
        "None True 0.1 1.0 1.5 3 -4 2 1024",
    ),
    ("{{ l }}", "[3, 'x', None, True, 1.5]"),
    ("{{ d }}", "{'k': 'v', 'n': {'a': [1, 2]}, 'b': False}"),
    ("{{ [q] }}", "['it\\'s \"q\" \\\\ \\n\\té\\x01']"),
    ("{{ (1, 'a') }} {{ (1,) }} {{ () }}", "(1, 'a') (1,) ()"),
    (
        "{{ l | tojson }} {{ d | tojson }} {{ q | tojson }}",
        "[3, \"x\", null, true, 1.5] {\"k\": \"v\", \"n\": {\"a\": [1, 2]}, \"b\": false} \"it's \\\"q\\\" \\\\ \\n\\té\\u0001\"",
    ),
    (
        "{{ d | tojson(indent=2) }}",
        "{\n  \"k\": \"v\",\n  \"n\": {\n    \"a\": [\n      1,\n      2\n    ]\n  },\n  \"b\": false\n}",
    ),
    (
        "{{ d | tojson(indent=2, separators=(',', ':')) }}",
        "{\n  \"k\":\"v\",\n  \"n\":{\n    \"a\":[\n      1,\n      2\n    ]\n  },\n  \"b\":false\n}",
    ),
    (
        "{{ d | tojson(sort_keys=true) }} {{ empty | tojson(indent=4) }} {{ {} | tojson }}",
        "{\"b\": false, \"k\": \"v\", \"n\": {\"a\": [1, 2]}} [] {}",
    ),
    (
        "{{ q | tojson(ensure_ascii=true) }}",
        "\"it's \\\"q\\\" \\\\ \\n\\t\\u00e9\\u0001\"",
    ),
    (
        "{{ [1e-5, 1e-4, 123456789012345680.0, 1e300, -0.0] | tojson }}",
        "[1e-05, 0.0001, 1.2345678901234568e+17, 1e+300, -0.0]",
    ),
    (
        "{{ {1: 2, 'a': none} | tojson }}",
        "{\"1\": 2, \"a\": null}",
    ),
    ("{{ 'a<b>&\\'\"' | tojson }}", "\"a<b>&'\\\"\""),
    (
        "{{ d | string }} {{ n | string }} {{ t | string }} {{ i | string | length }}",
        "{'k': 'v', 'n': {'a': [1, 2]}, 'b': False} None True 1",
    ),
    (
        "{{ s | upper }} {{ s | lower }} {{ s | title }} {{ s | capitalize }} {{ s | length }} {{ '  x ' | trim }}|",
        "AB C ab c Ab C Ab c 4 x|",
    ),
    (
        "{{ s.upper() }} {{ s.lower() }} {{ s.split(' ') }} {{ s.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'xxaxx'.strip('x') }}",
        "AB C ab c ['Ab', 'c'] ['Ab', 'c'] ['a', 'b,c'] a",
    ),
    (
        "{{ s.startswith('A') }} {{ s.endswith(('z', 'c')) }} {{ s.find('c') }} {{ s.replace('b', 'X') }} {{ 'x'.join(['1', '2']) }}",
        "True True 3 AX c 1x2",
    ),
    (
        "{{ 'a b'.title() }} {{ 'abc'.rstrip('c') }} {{ 'abc'.lstrip('a') }} {{ s.count('b') }} {{ 'A'.isupper() }} {{ '12'.isdigit() }}",
        "A B ab bc 1 True True",
    ),
    (
        "{{ 'a\\nb'.splitlines() }} {{ 'aXbXc'.rsplit('X', 1)[-1] }}",
        "['a', 'b'] c",
    ),
    (
        "{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('zz', 'def') }} {{ d.get('k') }}",
        "[('k', 'v'), ('n', {'a': [1, 2]}), ('b', False)] ['k', 'n', 'b'] ['v', {'a': [1, 2]}, False] def v",
    ),
    (
        "{{ d['k'] }} {{ d.k }} {{ d.n.a[1] }} {{ l[-1] }} {{ l[1:3] }} {{ l[::-1] }} {{ s[::-1] }} {{ s[1:] }} {{ s[-1] }}",
        "v v 2 1.5 ['x', None] [1.5, True, None, 'x', 3] c bA b c c",
    ),
    (
        "{{ 'k' in d }} {{ 'zz' not in d }} {{ 3 in l }} {{ 'b' in s }}",
        "True True True True",
    ),
    (
        "{{ undefined_thing }}|{{ undefined_thing is defined }}|{{ n is none }}|{{ undefined_thing | default('d') }}|{{ blank | default('d', true) }}",
        "|False|True|d|d",
    ),
    (
        "{{ s is string }} {{ i is number }} {{ d is mapping }} {{ l is sequence }} {{ l is iterable }} {{ s is iterable }} {{ t is boolean }} {{ i is integer }} {{ f is float }} {{ t is true }} {{ d.b is false }} {{ i is odd }} {{ i is divisibleby 3 }}",
        "True True True True True True True True True True True True True",
    ),
    (
        "{{ people | map(attribute='n') | join(', ') }} {{ people | selectattr('age', 'defined') | list | length }} {{ people | selectattr('n', 'equalto', 'a') | first }} {{ people | rejectattr('age', 'defined') | map(attribute='n') | list }}",
        "b, a, c 2 {'n': 'a', 'age': 1} ['c']",
    ),
    (
        "{{ people | sort(attribute='n') | map(attribute='n') | list }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [1, 2, 2] | unique | list }} {{ [1, 2] | sum }} {{ [1, 5] | max }} {{ [4, 2] | min }}",
        "['a', 'b', 'c'] [3, 2, 1] [1, 2] 3 5 2",
    ),
    (
        "{{ l | first }} {{ l | last }} {{ [1, 2, 3] | reverse | list }} {{ 'abc' | list }} {{ d | dictsort }} {{ d | items | list }}",
        "3 1.5 [3, 2, 1] ['a', 'b', 'c'] [('b', False), ('k', 'v'), ('n', {'a': [1, 2]})] [('k', 'v'), ('n', {'a': [1, 2]}), ('b', False)]",
    ),
    (
        "{{ 'x' | indent(2) }} {{ 'a\\nb' | indent(2) }} {{ 'a\\nb' | indent(2, true) }}",
        "x a\n  b   a\n  b",
    ),
    (
        "{{ 'a' ~ 1 ~ 'b' }} {{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 2 }} {{ [0] * 2 }}",
        "a1b ab [1, 2] abab [0, 0]",
    ),
    (
        "{{ 'yes' if t else 'no' }} {{ 'x' if false }}|{{ not t }} {{ t and blank }} {{ blank or 'z' }}",
        "yes |False  z",
    ),
    (
        "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }} {% endfor %}",
        "10TrueFalse33 21FalseFalse32 32FalseTrue31 ",
    ),
    (
        "{% for x in [1, 2, 3] %}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}",
        "-2;1-3;2-;",
    ),
    (
        "{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ x }}{% else %}none{% endfor %}{% for x in [] %}a{% else %}none{% endfor %}",
        "24none",
    ),
    (
        "{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "02",
    ),
    (
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
        "k=v;n={'a': [1, 2]};b=False;knb",
    ),
    (
        "{% set ns = namespace(a=1, found=false) %}{% for x in [1, 2] %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.found }}",
        "4False",
    ),
    (
        "{% set x %}block {{ s }}{% endset %}{{ x | upper }}",
        "BLOCK AB C",
    ),
    (
        "{% macro m(a, b='B') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{{ m('x') | length }}",
        "[1B][12]4",
    ),
    (
        "{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}in{% endcall %}",
        "<in>",
    ),
    (
        "{% filter upper %}abc{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}",
        "ABC1",
    ),
    ("{# comment #}a{%- if true -%} b {%- endif -%} c", "abc"),
    ("  {% if true %}\n    x\n  {% endif %}\ny", "    x\ny"),
    ("{%- raw %}{{ raw }}{% endraw %}", "{{ raw }}"),
    ("{{- ' a ' -}} b", " a b"),
    (
        "{{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ dict(a=1) }}",
        "[0, 1, 2] [1, 3, 5] {'a': 1}",
    ),
    (
        "{{ messages[0]['content'] }} {{ messages | length }} {{ messages[-1].role }} {{ messages[0].missing is defined }}",
        "Hi 1 user False",
    ),
    ("{{ strftime_now('%Y-%m-%d %H:%M') }}", "2024-07-26 04:05"),
    (
        "{{ '%s is %d' | format('x', 3) }} {{ 'a{}b{}'.format(1, 'z') }}",
        "x is 3 a1bz",
    ),
    (
        "{{ 3.7 | int }} {{ '12' | int }} {{ 'x' | int(0) }} {{ 2.567 | round(2) }} {{ 2.5 | round | int }} {{ -3 | abs }} {{ '1.5' | float }}",
        "3 12 0 2.57 2 3 1.5",
    ),
    (
        "{{ 1 == 1.0 }} {{ 'a' == 'a' }} {{ n == none }} {{ [1] == [1] }} {{ 1 < 2 <= 2 }} {{ 'a' < 'b' }}",
        "True True True True True True",
    ),
    (
        "{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | slice(2) | list }}",
        "[[1, 2], [3, 4], [5]] [[1, 2], [3]]",
    ),
    (
        "{{ l | select('string') | list }} {{ l | reject('none') | list }} {{ [1, 2, 3] | select('gt', 1) | list }} {{ ['a', 'b'] | map('upper') | list }}",
        "['x'] [3, 'x', True, 1.5] [2, 3] ['A', 'B']",
    ),
    (
        "{{ 'a.b' | replace('.', '-') }} {{ ['a', 1, none] | join('|') }} {{ '<a>' | e }} {{ '<a>' | escape }} {{ '<a>' | safe }}",
        "a-b a|1|None &lt;a&gt; &lt;a&gt; <a>",
    ),
    (
        "{{ ('a' in ['a']) and ('b' not in 'abc' or true) }} {{ {'a': 1}.a }} {{ {'a': {'b': 2}}['a']['b'] }}",
        "True 1 2",
    ),
    (
        "{% if messages[0].role == 'user' and messages[0].content is string %}ok{% elif false %}no{% else %}no{% endif %}",
        "ok",
    ),
    (
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = [a, b] %}{{ c }}",
        "12[1, 2]",
    ),
    (
        "{{ 'line1\\nline2' }}{{ \"tab\\t|\" }}{{ 'é\\u00e9' }}",
        "line1\nline2tab\t|éé",
    ),
    (
        "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
        "user",
    ),
    (
        "{{ 10 | string ~ 'x' }} {{ -i }} {{ 1.0 * 2 }} {{ 1e3 }} {{ 5 % 3 }} {{ 1_000 }}",
        "10x -3 2.0 1000.0 2 1000",
    ),
    (
        "{{ people | groupby('n') | map('first') | list }} {{ people | map(attribute='age', default=0) | list }}",
        "['a', 'b', 'c'] [2, 1, 0]",
    ),
    ("{{ s | first }} {{ 'a' ~ 'b' | upper }}", "A aB"),
    ("{{ namespace(a=1).a }}", "1"),
    (
        "{{ [[1, 2], [3]] | sum(start=[]) }} {{ none | default('x') }} {{ n | default('x', true) }}",
        "[1, 2, 3] None x",
    ),
    (
        "{{ 'x' is in ['x'] }} {{ 1 is eq 1 }} {{ 'a' is lower }} {{ d is not string }} {{ s is sameas s }}",
        "True True True True True",
    ),
    (
        "{{ true }} {{ True }} {{ none }} {{ None }} {{ false }} {{ False }}",
        "True True None None False False",
    ),
    (
        "{{ messages | tojson }} {{ messages }}",
        "[{\"role\": \"user\", \"content\": \"Hi\"}] [{'role': 'user', 'content': 'Hi'}]",
    ),
    ("{{ ' a'.lstrip() ~ 'b '.rstrip() }} ", "ab "),
    (
        "{{ [0.1, 1.0] }} {{ [none, true, 'a\\'b', \"q\\\"'\"] }} {{ {1: (1, 2)} }}",
        "[0.1, 1.0] [None, True, \"a'b\", 'q\"\\''] {1: (1, 2)}",
    ),
    (
        "{{ ['\\n', '\\\\', 'é', '\\x7f'] }}",
        "['\\n', '\\\\', 'é', '\\x7f']",
    ),
    ("{% generation %}x{% endgeneration %}", "x"),
    (
        "{{ 'a' ~ none ~ true ~ 1.0 ~ [1, 'x'] }}",
        "aNoneTrue1.0[1, 'x']",
    ),
    (
        "{{ 'ab'.removeprefix('a') }} {{ 'ab'.removesuffix('b') }}",
        "b a",
    ),
    (
        "{{ 'abc'.index('c') }} {{ 'a b c'.rsplit(' ', 1) }} {{ 'a-b'.partition('-') }}",
        "2 ['a b', 'c'] ('a', '-', 'b')",
    ),
    (
        "{{ d.copy() }} {{ 'a  b '.rsplit(none, 1) }} {{ ' a b c '.rsplit() }} {{ 'a-b-c'.rpartition('-') }} {{ 'x'.partition('-') }}",
        "{'k': 'v', 'n': {'a': [1, 2]}, 'b': False} ['a', 'b'] ['a', 'b', 'c'] ('a-b', '-', 'c') ('x', '', '')",
    ),
];

fn variables() -> Value {
    json!({
        "s": "Ab c", "n": null, "t": true, "i": 3, "f": 0.1, "e": 1e16, "z": 1.0, "neg": -7,
        "l": [3, "x", null, true, 1.5], "d": {"k": "v", "n": {"a": [1, 2]}, "b": false},
        "q": "it's \"q\" \\ \n\té\u{1}", "empty": [], "blank": "",
        "people": [{"n": "b", "age": 2}, {"n": "a", "age": 1}, {"n": "c"}],
    })
}

#[test]
fn renders_snippets_as_jinja2_does() {
    let variables = variables();
    let mut wrong = Vec::new();
    for (source, expected) in SNIPPETS {
        match render(source, &variables) {
            Ok(text) if text == *expected => {}
            other => wrong.push(format!(
                "{source}\n  expected {expected:?}\n  rendered {other:?}"
            )),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        SNIPPETS.len(),
        wrong.join("\n")
    );
}

#[test]
fn errors_have_the_message_of_raise_exception() {
    let error = render("{{ raise_exception('Only\\nusers: ' ~ s) }}", &variables()).unwrap_err();
    match &error {
        TemplateError::Render(RenderError::Refused { message }) => {
            assert_eq!(message, "Only\nusers: Ab c")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        error.to_string(),
        "the chat template refuses this conversation: Only\\nusers: Ab c"
    );
    // Also inside a macro, a call and a filter.
    let inner = "{% macro m() %}{{ raise_exception('x') }}{% endmacro %}{{ m() | upper }}";
    assert!(
        render(inner, &Value::Null)
            .unwrap_err()
            .to_string()
            .ends_with("conversation: x")
    );
}

#[test]
fn errors_name_the_line() {
    let error = render("ok\n{% if %}", &Value::Null).unwrap_err();
    assert!(
        matches!(
            &error,
            TemplateError::Render(RenderError::Syntax { line: Some(2), .. })
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("line 2"), "{error}");
    let error = render("ok\n\n{{ nothing.at.all }}", &Value::Null).unwrap_err();
    assert!(
        matches!(
            &error,
            TemplateError::Render(RenderError::Failed { line: Some(3), .. })
        ),
        "{error:?}"
    );
    let large = format!("{{# {} #}}", "x".repeat(2 << 20));
    assert!(matches!(
        ChatTemplate::from_source(&large),
        Err(TemplateError::TooLarge { .. })
    ));
    assert!(
        ChatTemplate::from_source("{{ raise_exception('no') }}")
            .unwrap()
            .check()
            .is_ok()
    );
    assert!(
        ChatTemplate::from_source("{% if %}")
            .unwrap()
            .check()
            .is_err()
    );
}

#[test]
fn limits_steps_text_and_depth() {
    let endless =
        "{% for a in range(10000) %}{% for b in range(10000) %}{{ '' }}{% endfor %}{% endfor %}";
    let error = render(endless, &Value::Null).unwrap_err();
    assert!(
        matches!(
            error,
            TemplateError::Render(RenderError::TooManySteps { .. })
        ),
        "{error:?}"
    );
    let long = "{% for a in range(10000) %}{{ 'x' * 10000 }}{% endfor %}";
    let error = render(long, &Value::Null).unwrap_err();
    assert!(
        matches!(
            error,
            TemplateError::Render(RenderError::TooMuchText { .. })
        ),
        "{error:?}"
    );
    let deep = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    let error = render(deep, &Value::Null).unwrap_err();
    assert!(
        matches!(error, TemplateError::Render(RenderError::Failed { .. })),
        "{error:?}"
    );
    for nested in [
        "(".repeat(100_000),
        "[".repeat(100_000),
        "{% if a %}".repeat(100_000),
    ] {
        let error = render(&format!("{{{{ {nested}"), &Value::Null).unwrap_err();
        assert!(
            matches!(error, TemplateError::Render(RenderError::Syntax { .. })),
            "{error:?}"
        );
    }
}

/// Creates a file with a small vocabulary and these templates.
fn file(templates: &[(&str, &str)]) -> (Gguf, Tokenizer) {
    let mut writer = Writer::new("llama");
    writer
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2");
    writer.set("tokenizer.ggml.tokens", vec!["<s>", "</s>"]);
    writer.set("tokenizer.ggml.token_type", vec![3i32, 3]);
    writer.set("tokenizer.ggml.merges", Vec::<&str>::new());
    writer
        .set("tokenizer.ggml.bos_token_id", 0u32)
        .set("tokenizer.ggml.eos_token_id", 1u32);
    for (key, source) in templates {
        writer.set(key, *source);
    }
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf, None).unwrap();
    (gguf, tokenizer)
}

#[test]
fn reads_templates_of_a_file() {
    let render = |template: &ChatTemplate, tools: &[Value]| {
        let messages = [json!({"role": "user", "content": "Hi"})];
        let conversation = Conversation {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            ..Conversation::default()
        };
        template.render(&conversation).unwrap()
    };
    let (gguf, tokenizer) = file(&[]);
    let template = ChatTemplate::from_gguf(&gguf, &tokenizer, None).unwrap();
    assert!(template.is_fallback());
    assert_eq!(
        render(&template, &[]),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );

    let (gguf, tokenizer) = file(&[
        (
            "tokenizer.chat_template",
            "{{ bos_token }}plain{{ eos_token }}{% if enable_thinking %}{% endif %}",
        ),
        (
            "tokenizer.chat_template.tool_use",
            "tools {{ tools | length }}",
        ),
        ("tokenizer.chat_template.rag", "rag"),
    ]);
    let template = ChatTemplate::from_gguf(&gguf, &tokenizer, None).unwrap();
    assert!(!template.is_fallback());
    assert_eq!(render(&template, &[]), "<s>plain</s>");
    assert_eq!(render(&template, &[json!({})]), "tools 1");
    assert!(template.mentions("enable_thinking") && !template.mentions("thinking"));
    let named = |name| ChatTemplate::from_gguf(&gguf, &tokenizer, Some(name));
    assert_eq!(render(&named("rag").unwrap(), &[json!({})]), "rag");
    assert_eq!(
        render(&named("default").unwrap(), &[json!({})]),
        "<s>plain</s>"
    );
    let error = named("other").unwrap_err().to_string();
    assert!(
        error.contains("'other'") && error.contains("default, tool_use, rag"),
        "{error}"
    );
}

#[test]
fn forge_mini_has_a_template_with_tools() {
    let gguf = forge_mini();
    let tokenizer = Tokenizer::from_gguf(&gguf, None).unwrap();
    let template = ChatTemplate::from_gguf(&gguf, &tokenizer, None).unwrap();
    template.check().unwrap();
    let golden = golden();
    let prompts = &golden["variants"]["Q4_K_M"]["prompts"];
    let check = |name: &str, messages: Value, tools: Value| {
        let conversation = Conversation {
            messages: list(&messages),
            tools: list(&tools),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        assert_eq!(
            template.render(&conversation).unwrap(),
            prompts[name]["prompt"],
            "{name}"
        );
    };
    check(
        "chat",
        json!([{"role": "user", "content": "Who are you?"}]),
        json!([]),
    );
    check(
        "tool",
        json!([{"role": "user", "content": "What is the weather in Paris?"}]),
        json!([{"type": "function", "function": {
            "name": "get_weather", "description": "Get the current weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]),
    );
}

#[test]
fn strftime_now_uses_the_clock() {
    assert_eq!(
        render("{{ strftime_now('%d %b %Y') }}", &Value::Null).unwrap(),
        "26 Jul 2024"
    );
    let now = ChatTemplate::from_source("{{ strftime_now('%Y') }}").unwrap();
    let year: i32 = now
        .render(&Conversation::default())
        .unwrap()
        .parse()
        .unwrap();
    assert!((2026..2200).contains(&year));
}

#[test]
fn variables_cannot_replace_messages() {
    let mut variables = Map::new();
    variables.insert("messages".into(), json!([]));
    variables.insert("enable_thinking".into(), json!(false));
    let template =
        ChatTemplate::from_source("{{ messages | length }}{{ enable_thinking }}").unwrap();
    let messages = [json!({"role": "user", "content": "Hi"})];
    let conversation = Conversation {
        messages: &messages,
        variables: Some(&variables),
        ..Conversation::default()
    };
    assert_eq!(template.render(&conversation).unwrap(), "1False");
}
