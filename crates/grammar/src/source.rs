//! What a user writes: a schema, an expression or a grammar.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::error::GrammarError;
use crate::gbnf;
use crate::limits::MAX_SOURCE_BYTES;

/// The whitespace between the parts of JSON, at most once each. Bounded, so that a model cannot go on with it for ever.
const JSON_WHITESPACE: &str = r" |\r?\n[ \t]{0,64}";

/// What an answer must be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Any JSON object.
    JsonObject,
    /// JSON that a JSON schema allows, with the properties of objects in the schema's order. Supported keywords are
    /// llguidance's; another keyword of the schema's draft is an error.
    JsonSchema(String),
    /// A text that matches a regular expression as a whole. The syntax is that of the crate `regex`, without anchors
    /// other than the outermost and without word boundaries.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's dialect of Lark, with the rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's notation, with the rule `root`.
    ///
    /// Parts without recursion become expressions, which match as much text as they can: where text could end such a part
    /// or continue it, it continues.
    Gbnf(String),
}

impl Source {
    /// Returns the grammar in a file: GBNF if it has `::=` or its name ends in `.gbnf`, otherwise Lark.
    pub fn from_grammar_file(name: &str, text: String) -> Source {
        let is = |extension: &str| {
            let found = name.rsplit_once('.').map(|(_, found)| found);
            found.is_some_and(|found| found.eq_ignore_ascii_case(extension))
        };
        match is("gbnf") || !is("lark") && text.contains("::=") {
            true => Source::Gbnf(text),
            false => Source::Lark(text),
        }
    }

    /// Returns what the source is, for messages.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Source::JsonObject | Source::JsonSchema(_) => "JSON schema",
            Source::Regex(_) => "regular expression",
            Source::Choice(_) => "choice",
            Source::Lark(_) => "Lark grammar",
            Source::Gbnf(_) => "GBNF grammar",
        }
    }

    /// Returns the grammar for llguidance.
    pub(crate) fn grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        let n_bytes = match self {
            Source::JsonObject => 0,
            Source::JsonSchema(text)
            | Source::Regex(text)
            | Source::Lark(text)
            | Source::Gbnf(text) => text.len(),
            Source::Choice(texts) => texts.iter().map(|text| text.len() + 1).sum(),
        };
        if n_bytes > MAX_SOURCE_BYTES {
            return Err(GrammarError::TooLong {
                what: self.what(),
                n_bytes,
                limit: MAX_SOURCE_BYTES,
            });
        }
        Ok(match self {
            Source::JsonObject => schema(json!({ "type": "object" }))?,
            Source::JsonSchema(text) => {
                schema(serde_json::from_str(text).map_err(GrammarError::Json)?)?
            }
            Source::Regex(text) => regex(text),
            Source::Choice(texts) => choice(texts)?,
            Source::Lark(text) => lark(text.clone()),
            Source::Gbnf(text) => lark(gbnf::to_lark(text)?),
        })
    }
}

fn schema(mut schema: Value) -> Result<TopLevelGrammar, GrammarError> {
    let options = json!({
        "whitespace_pattern": JSON_WHITESPACE,
        "json_allow_general_unicode_escapes": true,
    });
    let found = match &mut schema {
        // llguidance's own options, which could make the check of keywords lenient.
        Value::Object(keywords) if keywords.contains_key("x-guidance") => {
            return Err(GrammarError::Keyword {
                keywords: "x-guidance".into(),
            });
        }
        Value::Object(keywords) => {
            keywords.insert("x-guidance".into(), options);
            return Ok(TopLevelGrammar::from_json_schema(schema));
        }
        Value::Bool(true) => {
            let any = json!({ "x-guidance": options });
            return Ok(TopLevelGrammar::from_json_schema(any));
        }
        Value::Bool(false) => return Ok(TopLevelGrammar::from_json_schema(schema)),
        Value::Null => "null",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
    };
    Err(GrammarError::NotASchema { found })
}

fn regex(text: &str) -> TopLevelGrammar {
    // The whole text must match anyway.
    let text = text.strip_prefix('^').unwrap_or(text);
    let is_escaped = |before: &str| {
        let n_backslashes = before.len() - before.trim_end_matches('\\').len();
        n_backslashes % 2 == 1
    };
    let text = match text.strip_suffix('$') {
        Some(before) if !is_escaped(before) => before,
        _ => text,
    };
    match text {
        // In Lark, two slashes begin a comment.
        "" => lark("start: \"\"".into()),
        text => TopLevelGrammar::from_regex(text),
    }
}

fn choice(texts: &[String]) -> Result<TopLevelGrammar, GrammarError> {
    if texts.is_empty() {
        return Err(GrammarError::NoChoice);
    }
    let texts: Vec<String> = texts.iter().map(|text| gbnf::literal(text)).collect();
    // One terminal, so that a text may begin with another.
    Ok(lark(format!("start: TEXT\nTEXT: {}", texts.join(" | "))))
}

fn lark(text: String) -> TopLevelGrammar {
    let mut grammar = GrammarWithLexer::from_lark(text);
    grammar.name = None;
    TopLevelGrammar::from_grammar(grammar)
}
