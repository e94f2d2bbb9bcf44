//! The seeds of every target. `cargo xtask fuzz-seeds` writes them to `fuzz/seeds`.

use rocmforge_gguf::{GgmlType, OwnedArray, OwnedValue, Writer};
use rocmforge_text::answer::Format;

use crate::adapter::{N_EMBD, N_VOCAB};
use crate::tokenizer::{Description, build};

type Seeds = Vec<(String, Vec<u8>)>;

const NORMAL: u8 = 1;
const UNKNOWN: u8 = 2;
const CONTROL: u8 = 3;
const USER_DEFINED: u8 = 4;
const BYTE: u8 = 6;

fn named<const N: usize>(seeds: [(&str, Vec<u8>); N]) -> Seeds {
    seeds
        .into_iter()
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .collect()
}

fn bytes(writer: &Writer<'_>) -> Vec<u8> {
    writer.to_vec().expect("seeds are valid files")
}

fn with_tensor<'a>(writer: &mut Writer<'a>, name: &str, ty: GgmlType) {
    let data = vec![0x5a; 2 * ty.block_bytes()];
    writer
        .add_tensor(name, &[ty.block_len() as u64, 2], ty, data)
        .expect("two rows of one block");
}

pub(crate) fn gguf() -> Seeds {
    let mut values = Writer::new("llama");
    values.set("u8", 1u8).set("i8", -1i8).set("u16", 2u16);
    values.set("i16", -2i16).set("u32", 3u32).set("i32", -3i32);
    values.set("u64", 4u64).set("i64", -4i64).set("f32", 0.5f32);
    values
        .set("f64", 0.25f64)
        .set("bool", true)
        .set("s", "text");
    let strings = OwnedArray::String(vec![b"a".to_vec(), b"".to_vec(), b"\xff".to_vec()]);
    let nested = OwnedArray::Array(vec![OwnedArray::U8(vec![1, 2]), strings.clone()]);
    values.set("strings", strings).set("nested", nested);
    values.set("f32s", vec![1.0f32, f32::NAN]);
    let mut tensors = Writer::new("llama");
    tensors.set("general.alignment", 64u32);
    for ty in [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q4_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::IQ4_NL,
        GgmlType::MXFP4,
    ] {
        with_tensor(&mut tensors, ty.name(), ty);
    }
    let mut long = Writer::new("llama");
    for ty in [
        GgmlType::Q1_0,
        GgmlType::Q2_0,
        GgmlType::Q2_K,
        GgmlType::Q6_K,
        GgmlType::IQ4_XS,
        GgmlType::NVFP4,
        GgmlType::TQ1_0,
        GgmlType::IQ1_M,
        GgmlType::IQ2_XXS,
        GgmlType::IQ3_S,
    ] {
        with_tensor(&mut long, ty.name(), ty);
    }
    let mut version2 = bytes(&values);
    version2[4] = 2;
    named([
        ("empty", bytes(&Writer::new("llama"))),
        ("values", bytes(&values)),
        ("version-2", version2),
        ("short-blocks", bytes(&tensors)),
        ("long-blocks", bytes(&long)),
    ])
}

pub(crate) fn split() -> Seeds {
    let part = |no: u16, names: [&str; 2], extra: Option<(&str, OwnedValue)>| {
        let mut writer = Writer::new("llama");
        writer.set("split.no", no).set("split.count", 2u16);
        writer.set("split.tensors.count", 4i32);
        if let Some((key, value)) = extra {
            writer.set(key, value);
        }
        for name in names {
            with_tensor(&mut writer, name, GgmlType::Q8_0);
        }
        bytes(&writer)
    };
    let both = |first: Vec<u8>, second: Vec<u8>| {
        let mut data = (first.len() as u16).to_le_bytes().to_vec();
        data.extend(first);
        data.extend(second);
        data
    };
    let name = || Some(("general.name", OwnedValue::from("x")));
    let first = || part(0, ["a", "b"], name());
    named([
        ("whole", both(first(), part(1, ["c", "d"], None))),
        ("same-name", both(first(), part(1, ["b", "d"], None))),
        ("wrong-number", both(first(), part(0, ["c", "d"], None))),
        (
            "other-model",
            both(
                first(),
                part(1, ["c", "d"], Some(("general.name", "y".into()))),
            ),
        ),
    ])
}

pub(crate) fn adapter() -> Seeds {
    let file = |alpha: Option<f32>, tensors: &[(&str, [u64; 2], GgmlType)]| {
        let mut writer = Writer::new("llama");
        writer
            .set("general.type", "adapter")
            .set("adapter.type", "lora");
        if let Some(alpha) = alpha {
            writer.set("adapter.lora.alpha", alpha);
        }
        for (name, dims, ty) in tensors {
            let n_values = dims.iter().product::<u64>() as usize;
            let data = vec![0x3a; n_values / ty.block_len() * ty.block_bytes()];
            writer
                .add_tensor(name, dims, *ty, data)
                .expect("whole rows");
        }
        bytes(&writer)
    };
    let matrix = |name: [&'static str; 2], [n_in, rank, n_out]: [u64; 3], types: [GgmlType; 2]| {
        let [a, b] = name;
        [(a, [n_in, rank], types[0]), (b, [rank, n_out], types[1])]
    };
    let q = ["blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"];
    let table = ["token_embd.weight.lora_a", "token_embd.weight.lora_b"];
    let (f32, f16, q8_0) = (GgmlType::F32, GgmlType::F16, GgmlType::Q8_0);
    let high = matrix(q, [N_EMBD, 1 << 9, N_EMBD], [q8_0, q8_0]);
    named([
        (
            "attention",
            file(Some(4.0), &matrix(q, [N_EMBD, 2, N_EMBD], [f32, f16])),
        ),
        (
            "blocks",
            file(None, &matrix(q, [N_EMBD, 32, N_EMBD], [q8_0, q8_0])),
        ),
        (
            "embedding",
            file(
                Some(1.0),
                &[(table[0], [2, N_VOCAB], f16), (table[1], [2, N_EMBD], f16)],
            ),
        ),
        ("one-half", file(None, &high[..1])),
        ("high-rank", file(None, &high)),
    ])
}

pub(crate) fn tuning() -> Seeds {
    let shapes = "matvec Q4_K 4096x14336\nmatvec F16 1+2+3x4\nmatmul MXFP4 128256x4096 rows 512\n\
                  attention F8E4M3 8/1x256 rows 8\n";
    let choices = "rows 1 split 8\nlarge tiles outputs first\nsmall tiles rows first\nheads 8\n";
    named([("shapes", shapes.into()), ("choices", choices.into())])
}

/// Returns a SentencePiece vocabulary with tokens for every byte.
pub(crate) fn spm() -> Vec<u8> {
    let mut vocab = Description::new("llama", "default", 0b101, [1, 2, 0, 255]);
    vocab.token("<unk>", UNKNOWN, 0);
    vocab.token("<s>", CONTROL, 0);
    vocab.token("</s>", CONTROL, 0);
    byte_tokens(&mut vocab);
    let words = [
        "\u{2581}",
        "a",
        "b",
        "l",
        "o",
        "ll",
        "llo",
        "\u{2581}a",
        "ab",
        "aa",
        "aaaa",
    ];
    for (i, text) in words.iter().enumerate() {
        vocab.token(text, NORMAL, -(i as i8));
    }
    vocab.into_bytes()
}

/// Returns a vocabulary of PLaMo: special tokens, bytes and a few words.
fn plamo() -> Vec<u8> {
    let mut vocab = Description::new("plamo2", "default", 0, [1, 2, 0, 4]);
    vocab.token("<|plamo:unk|>", UNKNOWN, 0);
    for name in ["bos", "eos", "pad", "op"] {
        vocab.token(&format!("<|plamo:{name}|>"), CONTROL, 0);
    }
    byte_tokens(&mut vocab);
    for (text, score) in [("a", -3), ("aa", -5), ("aaaa", -10), ("lo", -1), (" b", 1)] {
        vocab.token(text, NORMAL, score);
    }
    vocab.into_bytes()
}

fn byte_tokens(vocab: &mut Description) {
    for byte in 0..=255u8 {
        vocab.token(&format!("<0x{byte:02X}>"), BYTE, 0);
    }
}

/// Returns a byte-level vocabulary: GPT-2's 256 letters and a few merges.
pub(crate) fn bpe() -> Vec<u8> {
    let mut vocab = Description::new("gpt2", "gpt-2", 0, [0, 1, 255, 255]);
    vocab.token("<|endoftext|>", CONTROL, 0);
    vocab.token("<|im_end|>", CONTROL, 0);
    for letter in letters() {
        vocab.token(&letter.to_string(), NORMAL, 0);
    }
    for (merge, token) in [
        ("a a", "aa"),
        ("l l", "ll"),
        ("ll o", "llo"),
        ("Ġ a", "Ġa"),
        ("Ċ Ċ", "ĊĊ"),
    ] {
        vocab.token(token, NORMAL, 0);
        vocab.merge(merge);
    }
    vocab.into_bytes()
}

/// Returns GPT-2's letters for bytes: printable Latin-1 as itself, then the others from U+0100 on.
fn letters() -> impl Iterator<Item = char> {
    let plain = |b: &u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(move |b| !plain(b)).count() as u32;
    let others = (0..others).filter_map(|i| char::from_u32(0x100 + i));
    (0..=255u8).filter(plain).map(char::from).chain(others)
}

pub(crate) fn tokenizer() -> Seeds {
    let mut small = Description::new("gpt2", "llama-bpe", 0b11, [3, 4, 255, 4]);
    for text in ["a", "b", "ab"] {
        small.token(text, NORMAL, 1);
    }
    small.token("<s>", CONTROL, 0);
    small.token("</s>", CONTROL, 0);
    small.token("  ", USER_DEFINED, 0);
    small.merge("a b");
    let mut gemma = Description::new("gemma4", "gemma4", 0, [0, 1, 2, 255]);
    for (text, kind) in [("<bos>", CONTROL), ("<eos>", CONTROL), ("<unk>", UNKNOWN)] {
        gemma.token(text, kind, 0);
    }
    for text in ["\u{2581}", "a", "\u{2581}a", "é", "<0x0A>"] {
        gemma.token(text, NORMAL, 0);
    }
    gemma.merge("\u{2581} a");
    let small = small.into_bytes();
    let file = build(&small);
    named([
        ("small", small),
        ("gemma4", gemma.into_bytes()),
        ("spm", spm()),
        ("bpe", bpe()),
        ("plamo", plamo()),
        ("file", file),
    ])
}

pub(crate) fn text() -> Seeds {
    let texts = [
        "Hello, world! It's 12345 o'clock.\n\n\n  Indented\tby   spaces ",
        "naïve café 模型 🙂👩‍👩‍👧 \u{2581}\u{a0}\u{2028}ÅÅ",
        "<|im_start|>user\n<s>[INST] </s><|endoftext|>",
        "x = {\"a\": [1, 2.5e-3]}; // aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    let seed = |choice: u8, text: &str| [&[choice], text.as_bytes()].concat();
    let mut seeds: Seeds = texts
        .iter()
        .enumerate()
        .map(|(i, text)| (format!("text-{i}"), seed(i as u8, text)))
        .collect();
    seeds.push((
        "bytes".into(),
        b"\x01caf\xe9 \xf0\x9f\x99 \xff\xfe\0".to_vec(),
    ));
    seeds
}

/// Answers, each in its format.
pub(crate) fn answer() -> Seeds {
    let answers = [
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>",
        ),
        (
            "gemma4",
            "<|channel>thought\na<channel|>b<|tool_call>call:f{n:1,s:<|\"|>x<|\"|>,l:[true]}<tool_call|>",
        ),
        (
            "kimi-k2",
            "<think>a</think>b<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
        ),
        (
            "deepseek",
            "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "minimax-m2",
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">1</parameter>\n</invoke>\n</minimax:tool_call>",
        ),
        (
            "command-r7b",
            "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\": 1}}]<|END_ACTION|>",
        ),
        (
            "lfm2",
            "a<|tool_call_start|>[f(n=1, s='x\\n', d={\"k\": None})]<|tool_call_end|>",
        ),
        (
            "mistral",
            "[THINK]a[/THINK][TOOL_CALLS]f[CALL_ID]000000001[ARGS]{\"n\": 1}",
        ),
        (
            "glm",
            "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        ),
        (
            "qwen-xml",
            "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "granite",
            "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]",
        ),
        (
            "hermes",
            "<think>\na\n</think>\n\n<tool_call>\n{\"arguments\": {\"n\": 1}, \"name\": \"f\"}\n</tool_call>",
        ),
        (
            "llama3",
            "{\"name\": \"f\", \"parameters\": {\"n\": 1}}; {\"name\": \"f\", \"parameters\": {}}",
        ),
        ("generic", "{\"response\": \"a\\n\\ud83d\\ude00\"}"),
    ];
    let seed = |(name, answer): (&str, &str)| {
        let format = Format::names().position(|format| format == name);
        let format = format.expect("it is a format") as u8;
        let mut bytes = vec![format, 4];
        bytes.extend(answer.as_bytes());
        (name.to_owned(), bytes)
    };
    answers.into_iter().map(seed).collect()
}

pub(crate) fn grammar() -> Seeds {
    let sources = [
        (
            "schema",
            0,
            r##"{"type": "object", "properties": {"a": {"$ref": "#/$defs/s"}, "n": {"type": "integer", "minimum": -3, "multipleOf": 2}}, "required": ["a"], "$defs": {"s": {"type": "string", "pattern": "^a+$", "maxLength": 9}}}"##,
        ),
        (
            "schema-any",
            0,
            r##"{"anyOf": [{"enum": [1, "x", null]}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 3}], "allOf": [{"not": {}}]}"##,
        ),
        ("regex", 1, r"^(a|b{2,5})*[^x-z\d]+?\w$"),
        ("choice", 2, "yes\nno\n\"quoted\"\\"),
        (
            "lark",
            3,
            "start: (x | Y)+ \"!\"?\nx[lazy]: /a.*b/\nY: \"c\"{2,3} & /c+/\n%ignore / +/\nz: <[3]> %json {\"type\": \"null\"}",
        ),
        (
            "gbnf",
            4,
            "root ::= (\"[\" root \"]\" | w) ws # comment\nw ::= [a-z\\x41]+ . {1,3} \"\\u00e9\"?\nws ::= | \" \" ws",
        ),
    ];
    let seed = |(name, kind, source): (&str, u8, &str)| {
        let mut bytes = vec![kind, 7];
        bytes.extend(source.as_bytes());
        (name.to_owned(), bytes)
    };
    sources.into_iter().map(seed).collect()
}

pub(crate) fn http() -> Seeds {
    let bodies = [
        (
            "chat",
            r##"{"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "b"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"$defs": {"d": {}}}}}], "tool_choice": {"type": "function", "function": {"name": "f"}}, "n": 2, "stop": ["x"], "logit_bias": {"3": -1}, "temperature": 0.5, "stream_options": {"include_usage": true}}"##,
        ),
        (
            "completion",
            r##"{"prompt": [[1, 2], [3]], "logit_bias": [[1, false]], "structured_outputs": {"regex": "a+"}, "samplers": ["top_k", "temperature"], "mirostat": 2, "dry_sequence_breakers": ["\n"], "max_tokens": 3, "seed": -1}"##,
        ),
        (
            "messages",
            r##"{"max_tokens": 5, "system": [{"type": "text", "text": "a"}], "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "b"}, {"type": "text", "text": "c"}]}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "d"}, {"type": "tool_use", "id": "1", "name": "f", "input": {}}]}], "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}"##,
        ),
        (
            "responses",
            r##"{"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "reasoning", "content": [{"text": "b"}]}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "1", "output": "c"}], "tools": [{"type": "function", "name": "f"}], "text": {"format": {"type": "json_schema", "schema": {}}}}"##,
        ),
    ];
    let seed = |(name, body): (&str, &str)| (name.to_owned(), body.as_bytes().to_vec());
    bodies.into_iter().map(seed).collect()
}

pub(crate) fn template() -> Seeds {
    let templates = [
        (
            "chatml",
            "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | string | trim + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        ),
        (
            "tools",
            "{%- if tools %}{{- tools | tojson(indent=2) }}{% for tool in tools %}{{ tool.function.name | upper }}{% endfor %}{%- endif %}{{ bos_token }}{{ strftime_now('%d %B %Y') }}",
        ),
        (
            "macros",
            "{%- macro show(m, depth=0) -%}{{ m.role if m is mapping else m }}:{{ caller is defined }}{%- endmacro -%}{% for m in messages[1:] | reverse %}{% if loop.index0 % 2 == 0 %}{% continue %}{% endif %}{{ show(m) }}{{ m.items() | list | length }}{% endfor %}",
        ),
        (
            "namespace",
            "{% set ns = namespace(found=false, n=1) %}{% for m in messages %}{% set ns.n = ns.n + 2 %}{% if m.content is string and m.content.startswith('H') and not ns.found %}{% set ns.found = true %}{{ m.content.split('i')[-1].strip() ~ m.content[::-1] }}{% endif %}{% endfor %}{{ ns.n // 3 }} {{ -7 % 3 }}",
        ),
        (
            "refusal",
            "{% if messages[0]['role'] != 'user' %}{{ raise_exception('roles must alternate: ' + messages[0].role) }}{% endif %}{% generation %}x{% endgeneration %}\0[{\"role\": \"tool\", \"content\": null}]",
        ),
    ];
    templates
        .iter()
        .map(|(name, source)| (name.to_string(), source.as_bytes().to_vec()))
        .collect()
}
