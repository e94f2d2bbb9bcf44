//! Answers with reasoning and calls, from upstream's grammars, templates and tests, cut in every way.

use rocmforge_testkit::data::conformance;
use rocmforge_testkit::sweep::{every_nth, first};
use rocmforge_text::answer::{AnswerParser, Delta, Format};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// What an answer says, however its text was cut.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: String,
    calls: Vec<Call>,
    unfinished: String,
}

#[derive(Debug, Default, PartialEq)]
struct Call {
    id: Option<String>,
    name: String,
    arguments: String,
    complete: Option<bool>,
}

impl Answer {
    fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::Content(text) => self.content += &text,
                Delta::Unfinished(text) => self.unfinished += &text,
                Delta::Call(part) => {
                    if part.index == self.calls.len() {
                        self.calls.push(Call::default());
                    }
                    let n_calls = self.calls.len();
                    let call = &mut self.calls[part.index];
                    assert_eq!((part.index, call.complete), (n_calls - 1, None));
                    call.name += &part.name.unwrap_or_default();
                    call.id = call.id.take().or(part.id);
                    call.arguments += &part.arguments;
                }
                Delta::CallEnd { index, complete } => {
                    let before = self.calls[index].complete.replace(complete);
                    assert_eq!(before, None);
                }
            }
        }
    }
}

fn tools() -> &'static [Value] {
    static TOOLS: LazyLock<Vec<Value>> = LazyLock::new(make_tools);
    &TOOLS
}

fn make_tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| {
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let string = json!({"type": "string"});
    vec![
        tool("special_function", json!({"arg1": {"type": "integer"}})),
        tool(
            "special_function_with_opt",
            json!({"arg1": {"type": "integer"}, "arg2": {"type": "integer"}}),
        ),
        tool("get_time", json!({"city": string})),
        tool("get_weather", json!({"city": string})),
        tool("python", json!({"code": string})),
        tool("amount", json!({"orig": {"type": "number"}})),
        tool("todo_list", json!({"todos": {"type": "array"}})),
        tool("empty_args", json!({})),
        tool(
            "edit",
            json!({"oldString": string, "newString": string, "replaceAll": {"type": "boolean"}}),
        ),
    ]
}

/// Reads an answer that comes in these pieces.
fn read<'t>(format: &str, prompt: &str, pieces: impl IntoIterator<Item = &'t str>) -> Answer {
    let mut parser = AnswerParser::new(Format::by_name(format).unwrap(), prompt, tools());
    let mut answer = Answer::default();
    for piece in pieces {
        answer.add(parser.push(piece));
    }
    answer.add(parser.finish());
    answer
}

fn chars(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices()
        .map(|(at, c)| &text[at..at + c.len_utf8()])
}

/// Reads an answer whole, cut at every character into two pieces, and one character at a time.
fn read_all_ways(format: &str, prompt: &str, text: &str) -> Answer {
    let whole = read(format, prompt, [text]);
    for (at, _) in text.char_indices() {
        let (left, right) = text.split_at(at);
        let cut = read(format, prompt, [left, right]);
        assert_eq!(cut, whole, "{format}: {left:?} | {right:?}");
    }
    assert_eq!(
        read(format, prompt, chars(text)),
        whole,
        "{format}: {text:?}"
    );
    whole
}

/// Format, end of the prompt, answer, reasoning, content, and calls: id (or ""), name, arguments.
type Case<'a> = (
    &'a str,
    &'a str,
    &'a str,
    &'a str,
    &'a str,
    &'a [(&'a str, &'a str, &'a str)],
);

const ONE: &[(&str, &str, &str)] = &[("", "special_function", r#"{"arg1": 1}"#)];
const TWO: &[(&str, &str, &str)] = &[
    ("", "special_function", r#"{"arg1": 1}"#),
    ("", "special_function_with_opt", r#"{"arg1": 1, "arg2": 2}"#),
];
const HELLO: &str = "Hello, world!\nWhat's up?";
const THOUGHTS: &str = "I'm\nthinking";

/// Answers of llama.cpp's tests/test-chat.cpp, each for the template named beside it, which the model's authors publish.
const UPSTREAM: &[Case<'_>] = &[
    // NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use
    ("hermes", "", HELLO, "", HELLO, &[]),
    (
        "hermes",
        "",
        "<tool_call>\n{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}}</tool_call>",
        "",
        "",
        ONE,
    ),
    (
        "hermes",
        "",
        "Hello, world!\nWhat's up?<tool_call>\n{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}}</tool_call>",
        "",
        HELLO,
        ONE,
    ),
    // Qwen-QwQ-32B, whose prompt opens the reasoning
    (
        "hermes",
        "<|im_start|>assistant\n<think>\n",
        "Let me think about this...\n</think>\nThe answer is 42.",
        "Let me think about this...",
        "The answer is 42.",
        &[],
    ),
    (
        "hermes",
        "<|im_start|>assistant\n<think>\n",
        "</think>Hello, world!",
        "",
        "Hello, world!",
        &[],
    ),
    // ibm-granite-granite-4.0
    (
        "hermes",
        "",
        "<tool_call>\n{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}}\n</tool_call>",
        "",
        "",
        ONE,
    ),
    // ibm-granite-granite-3.3-2B-Instruct; the list after the mark is of its system message
    (
        "granite",
        "",
        "<think>I'm\nthinking</think>Hello, world!\nWhat's up?",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "granite",
        "",
        "<think>I'm\nthinking</think><response>Hello, world!\nWhat's up?</response>",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "granite",
        "",
        "<|tool_call|>[{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}}, {\"name\": \"special_function_with_opt\", \"arguments\": {\"arg1\": 1, \"arg2\": 2}}]",
        "",
        "",
        TWO,
    ),
    // Qwen3-Coder
    (
        "qwen-xml",
        "",
        "<tool_call>\n<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        ONE,
    ),
    (
        "qwen-xml",
        "",
        "<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        ONE,
    ),
    (
        "qwen-xml",
        "",
        "<tool_call>\n<function=python>\n<parameter=code>\ndef hello():\n    print(\"<b>\")\n\nhello()\n</parameter>\n</function>\n</tool_call>",
        "",
        "",
        &[(
            "",
            "python",
            r#"{"code": "def hello():\n    print(\"<b>\")\n\nhello()"}"#,
        )],
    ),
    (
        "qwen-xml",
        "",
        "I'll do it.\n<tool_call>\n<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=special_function_with_opt>\n<parameter=arg1>\n1\n</parameter>\n<parameter=arg2>\n2\n</parameter>\n</function>\n</tool_call>\n",
        "",
        "I'll do it.",
        TWO,
    ),
    // Qwen3.5-4B
    (
        "qwen-xml",
        "<think>\n",
        "I'm\nthinking\n</think>\n\n<tool_call>\n<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>\n</tool_call>",
        THOUGHTS,
        "",
        ONE,
    ),
    (
        "qwen-xml",
        "<think>\n",
        "I'm\nthinking<tool_call>\n<function=special_function>\n<parameter=arg1>\n1\n</parameter>\n</function>\n</tool_call>",
        THOUGHTS,
        "",
        ONE,
    ),
    // ByteDance-Seed-OSS
    (
        "qwen-xml",
        "",
        "<seed:tool_call>\n<function=special_function>\n<parameter=arg1>1</parameter>\n</function>\n</seed:tool_call>",
        "",
        "",
        ONE,
    ),
    // GLM-4.6
    (
        "glm",
        "",
        "<tool_call>special_function\n<arg_key>arg1</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "",
        "",
        ONE,
    ),
    // GLM-4.7-Flash
    (
        "glm",
        "<think>",
        "I'm\nthinking</think><tool_call>special_function<arg_key>arg1</arg_key><arg_value>1</arg_value></tool_call>",
        THOUGHTS,
        "",
        ONE,
    ),
    (
        "glm",
        "</think>",
        "<tool_call>special_function<arg_key>arg1</arg_key><arg_value>1</arg_value></tool_call><tool_call>special_function_with_opt<arg_key>arg1</arg_key><arg_value>1</arg_value><arg_key>arg2</arg_key><arg_value>2</arg_value></tool_call>",
        "",
        "",
        TWO,
    ),
    (
        "glm",
        "<think>",
        "Let me read the diff content.</think><tool_call>empty_args</tool_call>",
        "Let me read the diff content.",
        "",
        &[("", "empty_args", "{}")],
    ),
    // deepseek-ai-DeepSeek-V3.1
    (
        "deepseek",
        "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"city\": \"XYZCITY\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        "",
        &[("", "get_time", r#"{"city": "XYZCITY"}"#)],
    ),
    (
        "deepseek",
        "<think>",
        "REASONING</think>CONTENT<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "REASONING",
        "CONTENT",
        &[
            ("", "get_time", r#"{"city": "Paris"}"#),
            ("", "get_weather", r#"{"city": "Paris"}"#),
        ],
    ),
    // deepseek-ai-DeepSeek-R1-Distill-Qwen-32B, as its template writes calls
    (
        "deepseek",
        "<think>\n",
        "I'm\nthinking</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>special_function\n```json\n{\"arg1\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>special_function_with_opt\n```json\n{\"arg1\": 1, \"arg2\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        THOUGHTS,
        "",
        TWO,
    ),
    // google-gemma-4-31B-it
    (
        "gemma4",
        "",
        "<|channel>thought\nI'm\nthinking<channel|>Hello, world!\nWhat's up?",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "gemma4",
        "",
        "<|tool_call>call:get_time{city:<|\"|>London<|\"|>}<tool_call|>",
        "",
        "",
        &[("", "get_time", r#"{"city": "London"}"#)],
    ),
    (
        "gemma4",
        "",
        "<|tool_call>call:todo_list{todos:[]}<tool_call|>",
        "",
        "",
        &[("", "todo_list", r#"{"todos": []}"#)],
    ),
    (
        "gemma4",
        "",
        "<|tool_call>call:amount{orig:1.5e10}<tool_call|>",
        "",
        "",
        &[("", "amount", r#"{"orig": 1.5e10}"#)],
    ),
    (
        "gemma4",
        "",
        "<|tool_call>call:todo_list{todos:[{item:<|\"|>a: {b}<|\"|>,done:false},{item:<|\"|>c<|\"|>,done:null}]}<tool_call|>",
        "",
        "",
        &[(
            "",
            "todo_list",
            r#"{"todos": [{"item": "a: {b}", "done": false}, {"item": "c", "done": null}]}"#,
        )],
    ),
    (
        "gemma4",
        "",
        "<|channel>thought\n<channel|>Hello, world!\nWhat's up?<|channel>thought\n<channel|><channel|>",
        "",
        HELLO,
        &[],
    ),
    (
        "gemma4",
        "",
        "<|channel><|channel>thought\n<channel|>Hello, world!\nWhat's up?",
        "",
        HELLO,
        &[],
    ),
    // LFM2.5-8B-A1B
    (
        "lfm2",
        "",
        "<think>I'm\nthinking</think><|tool_call_start|>[special_function(arg1=1)]<|tool_call_end|>",
        THOUGHTS,
        "",
        ONE,
    ),
    (
        "lfm2",
        "",
        "<think>I need to call a function</think>Let me check the time.<|tool_call_start|>[get_time(city=\"Paris\")]<|tool_call_end|>",
        "I need to call a function",
        "Let me check the time.",
        &[("", "get_time", r#"{"city": "Paris"}"#)],
    ),
    (
        "lfm2",
        "",
        "<think>Let me think about <|tool_call_start|>[special_function(arg1=1)]<|tool_call_end|> hmm</think><|tool_call_start|>[special_function(arg1=1)]<|tool_call_end|>",
        "Let me think about <|tool_call_start|>[special_function(arg1=1)]<|tool_call_end|> hmm",
        "",
        ONE,
    ),
    // mistralai-Mistral-Nemo-Instruct-2407
    (
        "mistral",
        "",
        "[TOOL_CALLS][{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}, \"id\": \"123456789\"}]",
        "",
        "",
        &[("123456789", "special_function", r#"{"arg1": 1}"#)],
    ),
    // Mistral-Small-3.2-24B-Instruct-2506
    (
        "mistral",
        "",
        "[TOOL_CALLS]special_function[CALL_ID]000000001[ARGS]{\"arg1\": 1}[TOOL_CALLS]special_function_with_opt[CALL_ID]000000002[ARGS]{\"arg1\": 1, \"arg2\": 2}",
        "",
        "",
        &[
            ("000000001", "special_function", r#"{"arg1": 1}"#),
            (
                "000000002",
                "special_function_with_opt",
                r#"{"arg1": 1, "arg2": 2}"#,
            ),
        ],
    ),
    // unsloth-mistral-Devstral-Small-2507
    (
        "mistral",
        "",
        "Hello, world!\nWhat's up?[TOOL_CALLS]special_function[ARGS]{\"arg1\": 1}",
        "",
        HELLO,
        ONE,
    ),
    // mistralai-Ministral-3-14B-Reasoning-2512
    (
        "mistral",
        "",
        "[THINK]I'm\nthinking[/THINK]Hello, world!\nWhat's up?",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "mistral",
        "",
        "[THINK]Let me think about [TOOL_CALLS]special_function[ARGS]{\"arg1\":1} and more[/THINK][TOOL_CALLS]special_function[ARGS]{\"arg1\": 1}",
        "Let me think about [TOOL_CALLS]special_function[ARGS]{\"arg1\":1} and more",
        "",
        ONE,
    ),
    // meta-llama-Llama-3.2-3B-Instruct, as its template writes calls
    ("llama3", "", HELLO, "", HELLO, &[]),
    (
        "llama3",
        "",
        "{\"name\": \"special_function\", \"parameters\": {\"arg1\": 1}}",
        "",
        "",
        ONE,
    ),
    // vLLM's test_llama3_json_tool_parser.py: several, and after the mark of code
    (
        "llama3",
        "",
        "<|python_tag|>{\"name\": \"special_function\", \"parameters\": {\"arg1\": 1}}; {\"name\": \"special_function_with_opt\", \"parameters\": {\"arg1\": 1, \"arg2\": 2}}",
        "",
        "",
        TWO,
    ),
    // llama.com/docs/model-cards-and-prompt-formats/llama3_2: zero-shot function calling
    (
        "llama3",
        "",
        "[special_function(arg1=1), special_function_with_opt(arg1=1, arg2=2)]",
        "",
        "",
        TWO,
    ),
    (
        "llama3",
        "",
        "[get_weather(city='San Francisco'), python(code=\"a = [1]\\nprint(a)\")]",
        "",
        "",
        &[
            ("", "get_weather", r#"{"city": "San Francisco"}"#),
            ("", "python", r#"{"code": "a = [1]\nprint(a)"}"#),
        ],
    ),
    // Kimi-K2-Thinking
    (
        "kimi-k2",
        "",
        "<think>I'm thinking about this</think><|tool_calls_section_begin|><|tool_call_begin|>functions.special_function:0<|tool_call_argument_begin|>{\"arg1\": 1}<|tool_call_end|><|tool_calls_section_end|>",
        "I'm thinking about this",
        "",
        &[(
            "functions.special_function:0",
            "special_function",
            r#"{"arg1": 1}"#,
        )],
    ),
    (
        "kimi-k2",
        "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.special_function:0<|tool_call_argument_begin|>{\"arg1\": 1}<|tool_call_end|><|tool_call_begin|>functions.special_function_with_opt:1<|tool_call_argument_begin|>{\"arg1\": 1, \"arg2\": 2}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        "",
        &[
            (
                "functions.special_function:0",
                "special_function",
                r#"{"arg1": 1}"#,
            ),
            (
                "functions.special_function_with_opt:1",
                "special_function_with_opt",
                r#"{"arg1": 1, "arg2": 2}"#,
            ),
        ],
    ),
    // MiniMax-M2
    (
        "minimax-m2",
        "<think>\n",
        "I'm\nthinking\n</think>\n\nHello, world!\nWhat's up?",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "minimax-m2",
        "<think>\n",
        "Let's call a tool:\n</think>\n\n<minimax:tool_call>\n<invoke name=\"empty_args\">\n</invoke>\n</minimax:tool_call>",
        "Let's call a tool:",
        "",
        &[("", "empty_args", "{}")],
    ),
    (
        "minimax-m2",
        "<think>\n",
        "\n</think>\n\n<minimax:tool_call>\n<invoke name=\"special_function\">\n<parameter name=\"arg1\">1</parameter>\n</invoke>\n</minimax:tool_call>",
        "",
        "",
        ONE,
    ),
    // CohereForAI-c4ai-command-r7b-12-2024-tool_use
    (
        "command-r7b",
        "",
        "<|START_THINKING|>I'm\nthinking<|END_THINKING|><|START_RESPONSE|>Hello, world!\nWhat's up?<|END_RESPONSE|>",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "command-r7b",
        "",
        "<|START_THINKING|>I'm\nthinking<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"special_function\", \"parameters\": {\"arg1\": 1}}\n]<|END_ACTION|>",
        THOUGHTS,
        "",
        &[("0", "special_function", r#"{"arg1": 1}"#)],
    ),
    // openai-gpt-oss-120b
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>final<|message|>Hello, world!\nWhat's up?",
        "",
        HELLO,
        &[],
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>commentary<|message|>Hello, world!\nWhat's up?",
        "",
        HELLO,
        &[],
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant<|channel|>final<|message|>Hello, world!\nWhat's up?",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        " to=functions.special_function<|channel|>analysis<|message|>{\"arg1\": 1}",
        "",
        "",
        ONE,
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        " to=functions.special_function<|channel|>analysis <|constrain|>json<|message|>{\"arg1\": 1}",
        "",
        "",
        ONE,
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>commentary to=functions.special_function<|message|>{\"arg1\": 1}<|call|>",
        "",
        "",
        ONE,
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant to=functions.special_function<|channel|>analysis<|message|>{\"arg1\": 1}",
        THOUGHTS,
        "",
        ONE,
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Thinking about edit...<|end|><|start|>assistant<|channel|>commentary to=functions.edit <|constrain|>json<|message|>{\"oldString\": \"if (part < railCount - 1) {\", \"newString\": \"if (part < 4) {\", \"replaceAll\": false}",
        "Thinking about edit...",
        "",
        &[(
            "",
            "edit",
            r#"{"oldString": "if (part < railCount - 1) {", "newString": "if (part < 4) {", "replaceAll": false}"#,
        )],
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>analysis<|message|>I will execute python to say hello<|end|><|start|>assistant to=container.exec<|channel|>commentary<|message|>python3 -c 'print(\"hello\")'",
        "I will execute python to say hello",
        "",
        &[],
    ),
    (
        "gpt-oss",
        "<|start|>assistant",
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant<|channel|>final<|message|>Hello, world!\nWhat's up?",
        THOUGHTS,
        HELLO,
        &[],
    ),
    // muse-glimmer
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=user<|message|>Hello, world!\nWhat's up?<|eot|>",
        "",
        HELLO,
        &[],
    ),
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=special_function<|message|><atem:function_calls>\n<atem:invoke name=\"special_function\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        "",
        "",
        ONE,
    ),
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=user<|message|>Hello, world!\nWhat's up?<|eom|><|start|>assistant to=special_function<|message|><atem:function_calls>\n<atem:invoke name=\"special_function\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        "",
        HELLO,
        ONE,
    ),
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=user<|message|>You invoke it like this:\n<atem:function_calls>\n<atem:invoke name=\"special_function\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
        "",
        "You invoke it like this:\n<atem:function_calls>\n<atem:invoke name=\"special_function\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        &[],
    ),
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=self<|message|>I need to output the invoice details in JSON<|eom|><|start|>assistant to=user<|message|>{\"amount\": 123.45, \"date\": \"2025-12-03\"}",
        "I need to output the invoice details in JSON",
        "{\"amount\": 123.45, \"date\": \"2025-12-03\"}",
        &[],
    ),
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=self<|message|>I could use <atem:function_calls>\n<atem:invoke name=\"special_function\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls> here<|eom|><|start|>assistant to=user<|message|>Hello!<|eot|>",
        "I could use <atem:function_calls>\n<atem:invoke name=\"special_function\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls> here",
        "Hello!",
        &[],
    ),
    // The same, as its template writes several calls, and values of strings
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=self<|message|>I'm\nthinking<|eom|><|start|>assistant to=special_function<|message|><atem:function_calls>\n<atem:invoke name=\"special_function\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=special_function_with_opt<|message|><atem:function_calls>\n<atem:invoke name=\"special_function_with_opt\">\n<atem:parameter name=\"arg1\">1</atem:parameter>\n<atem:parameter name=\"arg2\">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
        THOUGHTS,
        "",
        TWO,
    ),
    (
        "muse-glimmer",
        "<|start|>assistant",
        " to=edit<|message|><atem:function_calls>\n<atem:invoke name=\"edit\">\n<atem:parameter name=\"oldString\"> if (a < 1) {\n</atem:parameter>\n<atem:parameter name=\"newString\">7</atem:parameter>\n<atem:parameter name=\"replaceAll\">false</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
        "",
        "",
        &[(
            "",
            "edit",
            r#"{"oldString": " if (a < 1) {\n", "newString": "7", "replaceAll": false}"#,
        )],
    ),
    // deepseek-ai-DeepSeek-V3.2
    (
        "dsml",
        "<think>",
        "I'm\nthinking</think>Hello, world!\nWhat's up?",
        THOUGHTS,
        HELLO,
        &[],
    ),
    (
        "dsml",
        "<think>",
        "Let me check the time</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_time\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Tokyo</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Let me check the time",
        "",
        &[("", "get_time", r#"{"city": "Tokyo"}"#)],
    ),
    (
        "dsml",
        "</think>",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"special_function\">\n<｜DSML｜parameter name=\"arg1\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "",
        "",
        ONE,
    ),
    (
        "dsml",
        "<think>",
        "Calling both</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_time\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Calling both",
        "",
        &[
            ("", "get_time", r#"{"city": "Paris"}"#),
            ("", "get_weather", r#"{"city": "Paris"}"#),
        ],
    ),
    (
        "dsml",
        "<think>",
        "Thinking about it</think>Let me call the function.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"special_function\">\n<｜DSML｜parameter name=\"arg1\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Thinking about it",
        "Let me call the function.",
        ONE,
    ),
    (
        "dsml",
        "<think>",
        "Test array</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"todo_list\">\n<｜DSML｜parameter name=\"todos\" string=\"false\">[\"buy milk\",\"walk dog\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Test array",
        "",
        &[("", "todo_list", r#"{"todos": ["buy milk","walk dog"]}"#)],
    ),
    // deepseek-ai-DeepSeek-V4, as its template writes calls
    (
        "dsml",
        "</think>",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_time\">\n<｜DSML｜parameter name=\"city\" string=\"true\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "",
        "",
        &[("", "get_time", r#"{"city": "7"}"#)],
    ),
    // NVIDIA-Nemotron-Nano-v2
    (
        "nemotron-nano",
        "<think>\n",
        "I'm\nthinking\n</think>\n<TOOLCALL>[{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}}]</TOOLCALL>",
        THOUGHTS,
        "",
        ONE,
    ),
    (
        "nemotron-nano",
        "<think>\n",
        "I'm\nthinking\n</think>\n\n<TOOLCALL>[{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}}]</TOOLCALL>\n",
        THOUGHTS,
        "",
        ONE,
    ),
    // Apertus-8B-Instruct; the second as its template writes reasoning and several calls
    (
        "apertus",
        "",
        "<|tools_prefix|>[{\"special_function\": {\"arg1\": 1}}]<|tools_suffix|>",
        "",
        "",
        ONE,
    ),
    (
        "apertus",
        "",
        "<|inner_prefix|>I'm\nthinking<|inner_suffix|>Hello, world!\nWhat's up?<|tools_prefix|>[{\"special_function\": {\"arg1\": 1}}, {\"special_function_with_opt\": {\"arg1\": 1, \"arg2\": 2}}]<|tools_suffix|>",
        THOUGHTS,
        HELLO,
        TWO,
    ),
    // tencent-Hy3, as its template writes calls
    (
        "hy3",
        "<think:opensource>",
        "I'm\nthinking</think:opensource>Hello, world!\nWhat's up?<tool_calls:opensource>\n<tool_call:opensource>special_function<tool_sep:opensource>\n<arg_key:opensource>arg1</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>special_function_with_opt<tool_sep:opensource>\n<arg_key:opensource>arg1</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n<arg_key:opensource>arg2</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        THOUGHTS,
        HELLO,
        TWO,
    ),
    // poolside-Laguna-S-2.1, as its template writes calls
    (
        "glm",
        "<think>",
        "I'm\nthinking</think><tool_call>special_function<arg_key>arg1</arg_key><arg_value>1</arg_value></tool_call>",
        THOUGHTS,
        "",
        ONE,
    ),
    // The form for templates without calls, which llama.cpp had before it read them from templates.
    (
        "generic",
        "",
        "{\"response\": \"Hello, world!\\nWhat's up?\"}",
        "",
        HELLO,
        &[],
    ),
    (
        "generic",
        "",
        "{\"tool_calls\": [{\"name\": \"special_function\", \"arguments\": {\"arg1\": 1}}, {\"name\": \"special_function_with_opt\", \"arguments\": {\"arg1\": 1, \"arg2\": 2}}]}",
        "",
        "",
        TWO,
    ),
];

#[test]
fn reads_what_llama_cpp_reads_however_it_is_cut() {
    for &(format, prompt, text, reasoning, content, calls) in UPSTREAM {
        let answer = read_all_ways(format, prompt, text);
        assert_eq!(answer.reasoning, reasoning, "{text:?}");
        assert_eq!(answer.content, content, "{text:?}");
        assert_eq!(answer.unfinished, "", "{text:?}");
        let found: Vec<_> = answer
            .calls
            .iter()
            .map(|call| {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                (
                    call.id.clone().unwrap_or_default(),
                    call.name.clone(),
                    arguments,
                    call.complete,
                )
            })
            .collect();
        let expected: Vec<_> = calls
            .iter()
            .map(|&(id, name, arguments)| {
                let arguments = serde_json::from_str(arguments).unwrap();
                (id.to_owned(), name.to_owned(), arguments, Some(true))
            })
            .collect();
        assert_eq!(found, expected, "{text:?}");
    }
    let tested: Vec<&str> = UPSTREAM.iter().map(|case| case.0).collect();
    for name in Format::names() {
        assert!(tested.contains(&name), "{name}");
    }
}

/// Texts that only look like calls, which stay content.
#[test]
fn what_only_resembles_a_call_is_content() {
    let cases = [
        (
            "hermes",
            "Write <tool_call> around the call, then </tool_call>.",
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"unknown_tool\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_time\", \"arguments\": \"now\"}\n</tool_call>",
        ),
        ("hermes", "<tool_call>\nnot JSON\n</tool_call>"),
        ("hermes", "a <tool_cal b < c"),
        ("qwen-xml", "#include <functional> and <function=none>"),
        (
            "qwen-xml",
            "<tool_call>\n<function=get_time>\n<param=city>x",
        ),
        ("glm", "<tool_call>no tool</tool_call>"),
        ("deepseek", "<｜tool▁call▁begin｜>nothing<｜tool▁sep｜>{}"),
        ("gemma4", "<|tool_call>call:nothing{}<tool_call|>"),
        ("gemma4", "<|tool_call>get_time{}<tool_call|>"),
        ("lfm2", "<|tool_call_start|>[get_time(1)]<|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS] is the mark of Mistral's calls {"),
        ("llama3", "{\"city\": \"Paris\", \"time\": [1, 2]}"),
        ("llama3", "[1, 2, 3] is a list"),
        (
            "llama3",
            "[get_time] is a tool; {\"name\": \"get_time\", \"parameters\": {}}",
        ),
        (
            "kimi-k2",
            "<|tool_call_begin|>functions.nothing:0<|tool_call_argument_begin|>{}",
        ),
        ("minimax-m2", "<invoke name=\"nothing\"></invoke>"),
        ("command-r7b", "<|START_ACTION|>none<|END_ACTION|>"),
        ("granite", "<|tool_call|> is a token"),
        ("gpt-oss", "Plain text to=functions.get_time"),
        ("dsml", "<｜DSML｜invoke name=\"nothing\"></｜DSML｜invoke>"),
        ("nemotron-nano", "<TOOLCALL>none</TOOLCALL>"),
        (
            "apertus",
            "<|tools_prefix|>[{\"nothing\": {}}]<|tools_suffix|>",
        ),
        (
            "hy3",
            "<tool_call:opensource>get_time</tool_call:opensource>",
        ),
        ("muse-glimmer", "Plain text to=get_time, <atem:invoke>"),
        ("generic", "{\"response\": 1}"),
        ("generic", "Write {\"response\": \"text\"}."),
        (
            "generic",
            "{\"tool_calls\": [{\"name\": \"nothing\", \"arguments\": {}}]}",
        ),
    ];
    for (format, text) in cases {
        let answer = read_all_ways(format, "", text);
        assert_eq!(answer.content, text, "{format}");
        assert_eq!(
            (answer.calls.len(), answer.unfinished.as_str()),
            (0, ""),
            "{format}: {text}"
        );
    }
}

/// What Muse Glimmer sends to a tool stays text if it is no call, or a message that ends before the call does.
#[test]
fn messages_to_tools_without_calls_are_content() {
    const PARAMETER: &str = "<atem:parameter name=\"city\">Paris";
    let call = |name: &str| format!("<atem:function_calls>\n<atem:invoke name=\"{name}\">\n");
    let cases = [
        "no call".to_string(),
        "<atem:function_calls>\n</atem:function_calls>".to_string(),
        format!("{}</atem:invoke>\n</atem:function_calls>", call("unknown")),
        format!("{}{PARAMETER}", call("get_time")),
    ];
    for text in cases {
        let answer = format!(" to=get_time<|message|>{text}<|eot|>");
        let answer = read_all_ways("muse-glimmer", "<|start|>assistant", &answer);
        assert_eq!(answer.content, text);
        assert_eq!((answer.calls.len(), answer.unfinished.as_str()), (0, ""));
    }
    let text = format!("{}{PARAMETER}", call("get_time"));
    let answer = format!(" to=get_time<|message|>{text}");
    let answer = read_all_ways("muse-glimmer", "<|start|>assistant", &answer);
    assert_eq!(answer.unfinished, text);
    assert_eq!((answer.calls.len(), answer.content.as_str()), (0, ""));
}

/// An answer that ends within a call: with its name and part of its arguments, or as text.
#[test]
fn unfinished_calls_are_reported() {
    let streamed = [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"city\": \"Par",
        ),
        (
            "deepseek",
            "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"city\": \"Par",
        ),
        ("mistral", "[TOOL_CALLS]get_time[ARGS]{\"city\": \"Par"),
        (
            "kimi-k2",
            "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{\"city\": \"Par",
        ),
        (
            "gpt-oss",
            "<|channel|>commentary to=functions.get_time<|message|>{\"city\": \"Par",
        ),
        (
            "llama3",
            "{\"name\": \"get_time\", \"parameters\": {\"city\": \"Par",
        ),
        (
            "generic",
            "{\"tool_calls\": [{\"name\": \"get_time\", \"arguments\": {\"city\": \"Par",
        ),
    ];
    for (format, text) in streamed {
        let answer = read_all_ways(format, "", text);
        let call = &answer.calls[0];
        assert_eq!(
            (call.name.as_str(), call.complete),
            ("get_time", Some(false)),
            "{format}"
        );
        assert_eq!(call.arguments, "{\"city\": \"Par", "{format}");
        assert_eq!(
            (answer.content.as_str(), answer.unfinished.as_str()),
            ("", "")
        );
    }
    let held = [
        ("hermes", "<tool_call>\n{\"name\": \"get_t"),
        (
            "qwen-xml",
            "<tool_call>\n<function=get_time>\n<parameter=city>\nPar",
        ),
        (
            "glm",
            "<tool_call>get_time\n<arg_key>city</arg_key>\n<arg_val",
        ),
        ("gemma4", "<|tool_call>call:get_time{city:<|\"|>Par"),
        ("lfm2", "<|tool_call_start|>[get_time(city=\"Par"),
        ("llama3", "[get_time(city=\"Par"),
        (
            "minimax-m2",
            "<invoke name=\"get_time\">\n<parameter name=\"city\">Par",
        ),
        ("gpt-oss", "<|channel|>commentary to=functions.get_time"),
        ("muse-glimmer", " to=get_time"),
        (
            "dsml",
            "<｜DSML｜invoke name=\"get_time\">\n<｜DSML｜parameter name=\"city\" string=",
        ),
        (
            "apertus",
            "<|tools_prefix|>[{\"get_time\": {\"city\": \"Par",
        ),
        (
            "hy3",
            "<tool_call:opensource>get_time<tool_sep:opensource>\n<arg_key",
        ),
    ];
    for (format, text) in held {
        let answer = read_all_ways(format, "", text);
        assert_eq!(
            (answer.unfinished.as_str(), answer.content.as_str()),
            (text, ""),
            "{format}"
        );
        assert!(answer.calls.is_empty());
    }
    let bad = read_all_ways(
        "hermes",
        "",
        "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"city\" oops}} more",
    );
    assert_eq!(bad.calls[0].complete, Some(false));
    assert_eq!(bad.content, "oops}} more");
}

/// A text in JSON is passed on as it comes, but for escapes that are not complete.
#[test]
fn quoted_content_is_passed_on() {
    for (text, content) in [
        (r#"{"response": "a\n\ud83d\ude00 b"#, "a\n😀 b"),
        (r#"{"response": "a\ud83d\u"#, "a"),
        (r#"{"response" : "a"#, r#"{"response" : "a"#),
    ] {
        let answer = read_all_ways("generic", "", text);
        assert_eq!(answer.content, content);
        assert_eq!((answer.calls.len(), answer.unfinished.as_str()), (0, ""));
    }
    let mut parser = AnswerParser::new(Format::by_name("generic").unwrap(), "", tools());
    let deltas = parser.push(r#"{"response": "Hello "#);
    assert_eq!(deltas, [Delta::Content("Hello ".into())]);
}

/// Without tools, what looks like a call is content in every format that has no headers.
#[test]
fn without_tools_there_are_no_calls() {
    for (format, prompt, text, ..) in UPSTREAM {
        let mut parser = AnswerParser::new(Format::by_name(format).unwrap(), prompt, &[]);
        let mut answer = Answer::default();
        answer.add(parser.push(text));
        answer.add(parser.finish());
        assert!(answer.calls.is_empty(), "{format} {text:?}");
    }
    for (format, text) in [
        (
            "hermes",
            r#"<tool_call>{"name": "get_time", "arguments": {"city": "Rome"}}</tool_call>"#,
        ),
        ("llama3", r#"{"name": "get_time", "parameters": {"a": 1}}"#),
    ] {
        let mut parser = AnswerParser::new(Format::by_name(format).unwrap(), "", &[]);
        // All but what may begin a mark is passed on at once.
        let first = &text[..text.len() / 2];
        let mut answer = Answer::default();
        answer.add(parser.push(first));
        assert_eq!(answer.content, first, "{format}");
        answer.add(parser.push(&text[first.len()..]));
        answer.add(parser.finish());
        assert_eq!(answer.content, text, "{format}");
    }
}

/// Which marks end the reasoning that a template opens, and which would break it.
#[test]
fn knows_how_open_reasoning_ends() {
    let open = |format: &str, prompt: &str| {
        let marks = Format::by_name(format).unwrap().reasoning_marks(prompt)?;
        assert_eq!(marks.open, None);
        Some((marks.ends, marks.breaks))
    };
    assert_eq!(open("hermes", "<|im_start|>assistant\n"), None);
    assert_eq!(open("llama3", "<think>"), None);
    assert_eq!(
        open("hermes", "assistant\n<think>\n"),
        Some((vec!["</think>"], vec![]))
    );
    assert_eq!(
        open("qwen-xml", "<think>"),
        Some((vec!["</think>"], vec!["<tool_call>"]))
    );
    assert_eq!(
        open("command-r7b", "<|START_THINKING|>"),
        Some((
            vec!["<|END_THINKING|>", "<|START_RESPONSE|>", "<|START_TEXT|>"],
            vec!["<|START_ACTION|>"]
        ))
    );
}

/// A model whose template has marks of reasoning may open it by itself, unless the prompt has closed it.
#[test]
fn models_may_open_reasoning_by_themselves() {
    let open = |template: &str, prompt: &str| {
        let marks = Format::of_template(template).reasoning_marks(prompt)?;
        Some((marks.open, marks.ends))
    };
    let own = Some((Some("<think>"), vec!["</think>"]));
    for template in ["<tool_call> </think>", "{{ '<think>' }} </think>"] {
        assert_eq!(open(template, "assistant\n"), own, "{template}");
        assert_eq!(open(template, "<think>\n"), Some((None, vec!["</think>"])));
        assert_eq!(open(template, "<think>\n\n</think>\n\n"), None);
    }
    assert_eq!(open("<tool_call>", "assistant\n"), None);
    // Here messages have headers; that of the answer ends the reasoning.
    let (gpt_oss, hermes) = (
        "<|channel|> <|message|>",
        Format::by_name("hermes").unwrap(),
    );
    let marks = |prompt| Format::of_template(gpt_oss).reasoning_marks(prompt);
    let before = marks("<|start|>assistant").unwrap();
    assert_eq!(before.ends[0], "<|channel|>final<|message|>");
    assert_eq!(marks("<|start|>assistant<|channel|>final<|message|>"), None);
    let forced = Format::of_template(gpt_oss).with_calls_of(hermes);
    assert_eq!(forced.reasoning_marks("<|start|>assistant"), None);
}

/// Calls that are forced have a format of their own; the reasoning before them is in the model's.
#[test]
fn reasoning_and_calls_may_have_different_formats() {
    let hermes = Format::by_name("hermes").unwrap();
    for (name, open, close) in [
        ("mistral", "[THINK]", "[/THINK]"),
        ("deepseek", "<think>\n", "</think>"),
        ("qwen-xml", "<think>\n", "</think>"),
    ] {
        let format = Format::by_name(name).unwrap().with_calls_of(hermes);
        let mut parser = AnswerParser::new(format, open, tools());
        let mut answer = Answer::default();
        let call = r#"<tool_call>{"name": "get_time", "arguments": {"city": "Rome"}}</tool_call>"#;
        answer.add(parser.push(&format!("Hm.{close}\n{call}")));
        answer.add(parser.finish());
        assert_eq!(answer.reasoning, "Hm.", "{name}");
        assert_eq!((answer.calls.len(), &*answer.content), (1, ""), "{name}");
        assert_eq!(answer.calls[0].name, "get_time");
    }
}

/// White space and indentation of plain answers stay; that between the parts of an answer goes.
#[test]
fn keeps_white_space_of_content() {
    for format in Format::names() {
        for text in ["  indented\n\n  code  \n", "\n", " ", "a\n\nb"] {
            assert_eq!(read_all_ways(format, "", text).content, text, "{format}");
        }
    }
    let blank = "\u{3000}\n ".repeat(900);
    let answer = read_all_ways("qwen-xml", "", &format!("{blank}x{blank}"));
    assert_eq!(answer.content, format!("{blank}x{blank}"));
    let answer = read(
        "hermes",
        "<think>\n",
        ["\n\n a \n b \n", "</think>\n\n c \n"],
    );
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        ("a \n b", "c \n")
    );
}

/// Random mixtures of marks and text give the same answer for every cut, lose no content, and never panic.
#[test]
fn random_answers_do_not_depend_on_cuts() {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "{\"name\": \"get_time\", \"arguments\": {\"city\": \"é\"}}",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        " ",
        "\n",
        "<",
        "<function=get_time>",
        "<parameter=city>",
        "</parameter>",
        "</function>",
        "get_time",
        "<arg_key>",
        "city",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|tool_call>call:",
        "<tool_call|>",
        "<|\"|>",
        "<|channel>thought",
        "<channel|>",
        "<|channel>",
        "<|channel|>",
        "<|message|>",
        "<|start|>assistant",
        " to=functions.get_time",
        "analysis",
        "final",
        "<|end|>",
        "<|call|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "get_time(city=\"x\")",
        "<|tool_call_begin|>functions.",
        ":0",
        "<|tool_call_argument_begin|>",
        "<invoke name=\"",
        "\">",
        "</invoke>",
        "<parameter name=\"city",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "<|START_THINKING|>",
        "[THINK]",
        "[/THINK]",
        "<|tool_call|>",
        "\"id\": 7",
        "text",
        "x = 1",
        "```",
        " to=get_time<|message|>",
        " to=self<|message|>",
        "<|eom|>",
        "<｜DSML｜invoke name=\"get_time\">",
        "<｜DSML｜parameter name=\"city\" string=\"true\">",
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
        "<TOOLCALL>",
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        "<|inner_prefix|>",
        "<tool_call:opensource>",
        "<tool_sep:opensource>",
        "<atem:function_calls>",
        "</atem:function_calls>",
        "<atem:invoke name=\"get_time\">",
        "</atem:invoke>",
        "<atem:parameter name=\"city\">",
        "</atem:parameter>",
        "{\"response\": \"",
        "{\"tool_calls\": [",
        "\\ud83d\\ude",
        "\"",
    ];
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % n
    };
    for _ in first(100, 0..300) {
        let text: String = (0..random(14))
            .map(|_| parts[random(parts.len())])
            .collect();
        for format in Format::names() {
            read_all_ways(format, ["", "<think>"][random(2)], &text);
        }
    }
}

/// A hostile answer takes linear time and holds little: what a call may hold, and not more.
#[test]
fn long_answers_are_passed_on() {
    let units = [
        "<tool_call>",
        "<tool_call>{",
        "{\"a\":",
        "[",
        "<function=",
        "<tool_call>get_time<arg_key>",
        "<tool_call>get_time<arg_key>city</arg_key><arg_value>",
        "<|channel|>",
        "[TOOL_CALLS]a",
        "<|tool_call>call:get_time{",
        "<|tool_call_start|>[get_time(city=\"",
        "<invoke name=\"get_time\">",
        " to=get_time<|message|><atem:function_calls>",
        "<",
        " ",
        "a",
    ];
    for (turn, format) in Format::names().enumerate() {
        for unit in every_nth(2, turn, units) {
            let mut parser = AnswerParser::new(Format::by_name(format).unwrap(), "", tools());
            let (mut n_in, mut answer) = (0, Answer::default());
            for _ in 0..(3 << 19) / (64 * unit.len()) {
                let piece = unit.repeat(64);
                n_in += piece.len();
                answer.add(parser.push(&piece));
            }
            let n_out = answer.content.len()
                + answer.reasoning.len()
                + answer
                    .calls
                    .iter()
                    .map(|c| c.arguments.len())
                    .sum::<usize>();
            assert!(
                n_out + (1 << 20) + (1 << 18) >= n_in
                    || matches!(format, "gpt-oss" | "muse-glimmer"),
                "{format} {unit}: {n_out} of {n_in}"
            );
        }
    }
}

/// The parts of templates by which similar formats differ.
#[test]
fn tells_similar_formats_apart() {
    let cases = [
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            "gpt-oss",
        ),
        (
            "<|start|>assistant to=self<|message|>...<|eom|><atem:function_calls>",
            "muse-glimmer",
        ),
        (
            "<|start|>assistant<|channel|>x<|message|>...<atem:function_calls>",
            "muse-glimmer",
        ),
        ("<think>...'｜DSML｜'... + 'invoke name=\"'", "dsml"),
        ("<｜tool▁calls▁begin｜>", "deepseek"),
        ("<think>...<TOOLCALL>[", "nemotron-nano"),
        (
            "':opensource'...'<tool_sep{}>'.format(HYTK)...'<arg_key{}>'",
            "hy3",
        ),
        ("'<tool_call>' + name ... '<arg_key>'", "glm"),
        ("'<|inner_prefix|>'...'<|tools_prefix|>'", "apertus"),
    ];
    for (source, name) in cases {
        assert_eq!(Format::of_template(source).name(), name, "{source}");
    }
}

/// Templates of released models, where this machine has them.
#[test]
fn chooses_the_format_by_the_template() {
    let cases = [
        ("openai-gpt-oss-120b", "gpt-oss"),
        ("Qwen-Qwen2.5-7B-Instruct", "hermes"),
        ("Qwen-Qwen3-0.6B", "hermes"),
        ("Qwen-QwQ-32B", "hermes"),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"),
        ("Qwen3-Coder", "qwen-xml"),
        ("GLM-4.6", "glm"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek"),
        ("deepseek-ai-DeepSeek-V3.1", "deepseek"),
        ("Mistral-Small-3.2-24B-Instruct-2506", "mistral"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3"),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama3"),
        ("meta-llama-Llama-3.3-70B-Instruct", "llama3"),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite"),
        ("HuggingFaceTB-SmolLM3-3B", "plain"),
        ("google-gemma-2-2b-it", "plain"),
        ("microsoft-Phi-3.5-mini-instruct", "plain"),
    ];
    for (template, format) in cases {
        let Some(path) = conformance(&format!("data/templates/{template}.jinja")) else {
            return;
        };
        let source = std::fs::read_to_string(path).unwrap();
        assert_eq!(Format::of_template(&source).name(), format, "{template}");
    }
}
