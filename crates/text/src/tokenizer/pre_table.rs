//! Pre-tokenizers: how text is cut into pieces before byte-pair merging, by the names in `tokenizer.ggml.pre`.
//!
//! The names are llama.cpp's (`llama-vocab.cpp`). The expressions are those of the models' own `tokenizer.json`, with
//! case-insensitive contractions spelt out. llama.cpp approximates some of them (upper and lower case in `gpt-4o` and
//! similar ones, digits in `tiny_aya` and `afmoe`, wide spaces in `deepseek-llm`); here they are as the models were
//! trained. A new pre-tokenizer is a name in an existing row, or a new row.

/// How one family of vocabularies cuts text.
pub(super) struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre`.
    pub(super) names: &'static [&'static str],
    /// Stages; each cuts the pieces of the one before.
    pub(super) stages: &'static [Stage],
    /// The symbols where merging starts.
    pub(super) alphabet: Alphabet,
    /// Which pieces become one token without merging, if such a token exists.
    pub(super) whole: Whole,
    /// Whether to add a start token if the file does not say.
    pub(super) add_bos: bool,
}

/// One way to cut a piece.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// Every match is a piece, and so is the text between matches.
    Regex(&'static str),
    /// Every run that matches is cut into groups of three, counted from the right.
    Threes(&'static str),
    /// Every match is dropped.
    Drop(&'static str),
}

/// The symbols where merging starts, and how tokens spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Bytes, spelt with the 256 printable characters of GPT-2.
    Bytes,
    /// Characters, with `▁` for a space and `<0xHH>` for bytes without a token.
    Chars,
    /// Characters as they are, and `<0xHH>` for bytes without a token; those without either are dropped.
    Plain,
}

/// Pieces that become one token without merging, if such a token exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// No piece.
    None,
    /// Runs of line feeds.
    LineFeeds,
    /// Every piece.
    All,
}

use Stage::{Drop, Regex, Threes};

const BYTE_LEVEL: PreTokenizer = PreTokenizer {
    names: &[],
    stages: &[],
    alphabet: Alphabet::Bytes,
    whole: Whole::None,
    add_bos: false,
};

const GPT2: Stage =
    Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+");

/// llama3: contractions in any case, up to three digits.
const LLAMA3: Stage = Regex(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// As llama3, with single digits.
const QWEN2: Stage = Regex(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// o200k: words end where an upper-case letter follows a lower-case one.
const GPT4O: Stage = Regex(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The last stage of deepseek-v3.
const DEEPSEEK3: Stage = Regex(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
);

const CJK_KANA: Stage = Regex(r"[一-龥\u{3040}-ゟ゠-ヿ]+");

const BLOOM: Stage = Regex(r" ?[^(\s|.,!?…。，、।۔،)]+");

const LINES: Stage = Regex(r"[^\n]+|\n+");

const ONE_DIGIT: Stage = Regex(r"\p{N}");

/// The pre-tokenizer that llama.cpp uses if a vocabulary names none.
pub(super) const DEFAULT: &str = "default";

/// All pre-tokenizers.
pub(super) static TABLE: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[DEFAULT],
        stages: &[
            Regex(r"[\p{P}$+<=>^~|]+"),
            GPT2,
            Regex(r"\p{N}+"),
            Regex(r"[0-9][0-9][0-9]"),
        ],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
        ],
        stages: &[GPT2],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        stages: &[LLAMA3],
        whole: Whole::All,
        add_bos: true,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        stages: &[LLAMA3],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["glm4", "glm5"],
        stages: &[LLAMA3],
        whole: Whole::All,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "kormo",
            "f2llmv2",
        ],
        stages: &[QWEN2],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["qwen35"],
        stages: &[Regex(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["ufakzeka"],
        stages: &[Regex(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["laguna"],
        stages: &[LINES, QWEN2],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["minicpm5"],
        stages: &[
            Regex(r"\p{N}{1,3}"),
            Regex(
                r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        whole: Whole::All,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["jais-2"],
        stages: &[Regex(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        )],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        stages: &[
            Regex(r"[\r\n]"),
            Regex(
                r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
            ),
            Regex(r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+"),
            Regex(r"\s+$"),
            Regex(r"[一-龥ࠀ-一가-\u{D7FF}]+"),
            Regex(r"\p{N}+"),
        ],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        stages: &[
            Regex(r"[\r\n]"),
            Regex(r"\s?\p{L}+"),
            Regex(r"\s?\p{P}+"),
            Regex(r"[一-龥ࠀ-一가-\u{D7FF}]+"),
            ONE_DIGIT,
        ],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        stages: &[Regex(r"\p{N}{1,3}"), CJK_KANA, DEEPSEEK3],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["spark2_5"],
        stages: &[
            Regex(r"\p{N}{1,3}"),
            CJK_KANA,
            Regex(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            ),
            ONE_DIGIT,
        ],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["afmoe"],
        stages: &[
            Threes(r"\p{N}+"),
            Regex(
                r"[一-鿿㐀-䶿\u{F900}-\u{FAFF}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2FDF}เ-\u{0E7F}\u{0E80}-\u{0EFF}ក-\u{17FF}က-႟ꩠ-ꩿꧠ-\u{A9FF}가-\u{D7AF}ᄀ-ᇿ]+",
            ),
            DEEPSEEK3,
        ],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["youtu"],
        stages: &[
            Regex(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+"),
            Regex(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        whole: Whole::All,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["falcon"],
        stages: &[Regex(r"[\p{P}$+<=>^~|`]+"), GPT2, Regex(r"[0-9][0-9][0-9]")],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        stages: &[ONE_DIGIT, GPT2],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        stages: &[BLOOM],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["viking"],
        stages: &[BLOOM, ONE_DIGIT],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["tekken"],
        stages: &[Regex(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        whole: Whole::All,
        add_bos: true,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["chameleon"],
        stages: &[
            Regex(r"<sentinel:[0-9]+>"),
            Regex(r"IMGIMG[A-I]{1,4}Z"),
            Regex(r"[\t\n]|    |  "),
            ONE_DIGIT,
            Regex(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ],
        add_bos: true,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        stages: &[GPT4O],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["granite-embed-multi-97m"],
        stages: &[GPT4O],
        whole: Whole::All,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["tiny_aya", "cohere2moe"],
        stages: &[Threes(r"\d+\b"), GPT4O],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["superbpe"],
        stages: &[Regex(r"\p{N}+"), Threes(r"\d+")],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["kimi-k2"],
        stages: &[Regex(
            r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: &[Regex(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["seed-coder"],
        stages: &[Regex(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &["exaone-moe"],
        stages: &[Regex(
            r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &[GEMMA4, "granite-embed-multi-311m"],
        stages: &[LINES],
        alphabet: Alphabet::Chars,
        whole: Whole::LineFeeds,
        add_bos: true,
    },
    PreTokenizer {
        names: &["sarvam-moe"],
        stages: &[LINES],
        alphabet: Alphabet::Chars,
        ..BYTE_LEVEL
    },
    PreTokenizer {
        names: &[WHITESPACE],
        stages: &[Drop(r"\s+")],
        alphabet: Alphabet::Plain,
        ..BYTE_LEVEL
    },
];

/// The pre-tokenizer of the tokenizer model `whitespace`.
pub(super) const WHITESPACE: &str = "whitespace";

/// The pre-tokenizer of the tokenizer model `gemma4`.
pub(super) const GEMMA4: &str = "gemma4";

/// Returns the row with this name.
pub(super) fn find(name: &str) -> Option<&'static PreTokenizer> {
    TABLE.iter().find(|row| row.names.contains(&name))
}

/// Returns every name, in table order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|row| row.names.iter().copied())
}
