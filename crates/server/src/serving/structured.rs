//! Answers of a given structure: the grammars that they follow.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rocmforge_engine::Constraint;
use rocmforge_grammar::{Grammar, GrammarError, Marks, Preamble, Source, Vocabulary};
use rocmforge_text::answer::{Format, ReasoningMarks};
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::compilers::{Compilers, Place, busy};
use super::model::Served;
use super::reader::Calls;
use crate::http::error::ApiError;
use crate::http::fields::Fields;

/// Grammars of a model that are kept for further requests.
const MAX_KEPT: usize = 64;

/// The grammars of a model.
#[derive(Default)]
pub(crate) struct Grammars {
    /// Made once, though many requests may come at once: that of a large vocabulary takes half a second.
    vocabulary: Mutex<Option<Arc<Vocabulary>>>,
    /// Those used last, the last one at the end.
    kept: Mutex<VecDeque<(Source, Grammar)>>,
    /// Those that were too slow last. They would be too slow again.
    slow: Mutex<VecDeque<(Source, ApiError)>>,
    /// What may come before an answer; a model writes its reasoning in few ways.
    preambles: Mutex<Vec<(ReasoningMarks, Arc<Preamble>)>>,
}

/// What an answer must be.
#[derive(Clone)]
pub(crate) struct Structure {
    grammar: Grammar,
    /// What comes before.
    preamble: Option<Arc<Preamble>>,
}

impl Structure {
    /// Returns the constraint of an answer, before its first token.
    pub(crate) fn constraint(&self) -> Box<dyn Constraint> {
        let constraint = Box::new(self.grammar.start());
        match &self.preamble {
            None => constraint,
            Some(preamble) => preamble.before(constraint),
        }
    }
}

impl Grammars {
    /// Returns the grammar of a source that was compiled before.
    ///
    /// # Errors
    /// It took too long.
    fn known(&self, source: &Source) -> Result<Option<Grammar>, ApiError> {
        if let Some(error) = take_again(&self.slow, source) {
            return Err(error);
        }
        Ok(take_again(&self.kept, source))
    }

    /// Compiles `source`. Takes up to seconds; not for a thread that others wait for.
    ///
    /// # Errors
    /// The source is invalid or too complex, or uses what is not supported.
    fn compile(
        &self,
        tokenizer: &Arc<Tokenizer>,
        source: Source,
        place: Place,
    ) -> Result<Grammar, ApiError> {
        // Another request may have compiled it meanwhile.
        if let Some(grammar) = self.known(&source)? {
            return Ok(grammar);
        }
        let vocabulary = self.vocabulary(tokenizer)?;
        match Grammar::compile_holding(&vocabulary, &source, place) {
            Ok(grammar) => {
                keep(&self.kept, source, grammar.clone());
                Ok(grammar)
            }
            Err(error @ GrammarError::TooSlow { .. }) => {
                let error = ApiError::from(error);
                keep(&self.slow, source, error.clone());
                Err(error)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn vocabulary(&self, tokenizer: &Arc<Tokenizer>) -> Result<Arc<Vocabulary>, GrammarError> {
        let made = self.vocabulary.lock();
        let mut made = made.unwrap_or_else(PoisonError::into_inner);
        if let Some(vocabulary) = &*made {
            return Ok(Arc::clone(vocabulary));
        }
        Ok(Arc::clone(made.insert(Vocabulary::new(tokenizer)?)))
    }

    fn preamble(&self, tokenizer: &Arc<Tokenizer>, reasoning: ReasoningMarks) -> Arc<Preamble> {
        let preambles = self.preambles.lock();
        let mut preambles = preambles.unwrap_or_else(PoisonError::into_inner);
        if let Some((_, preamble)) = preambles.iter().find(|(other, _)| *other == reasoning) {
            return Arc::clone(preamble);
        }
        let marks = Marks {
            open: reasoning.open,
            ends: &reasoning.ends,
            never: &reasoning.breaks,
        };
        let preamble = Preamble::new(tokenizer, marks);
        preambles.push((reasoning, Arc::clone(&preamble)));
        preamble
    }
}

/// Returns what is kept for a source, which is then the one used last.
fn take_again<T: Clone>(kept: &Mutex<VecDeque<(Source, T)>>, source: &Source) -> Option<T> {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let at = kept.iter().position(|(other, _)| other == source)?;
    let used = kept.remove(at)?;
    let value = used.1.clone();
    kept.push_back(used);
    Some(value)
}

fn keep<T>(kept: &Mutex<VecDeque<(Source, T)>>, source: Source, value: T) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push_back((source, value));
    if kept.len() > MAX_KEPT {
        kept.pop_front();
    }
}

impl Served {
    /// Returns what an answer must be, if it must be anything. Where there is reasoning, or may be, the structure begins after
    /// its end.
    ///
    /// # Errors
    /// The source is invalid or too complex, uses what is not supported, or finds no place in time.
    pub(crate) async fn structure(
        self: &Arc<Served>,
        source: Option<Source>,
        reasoning: Option<ReasoningMarks>,
        (compilers, tenant): (&Compilers, &Arc<str>),
    ) -> Result<Option<Structure>, ApiError> {
        let Some(source) = source else {
            return Ok(None);
        };
        let grammar = match self.grammars.known(&source)? {
            Some(grammar) => grammar,
            None => {
                let (model, place) = (Arc::clone(self), compilers.place(tenant).await?);
                let compile = move || model.grammars.compile(&model.tokenizer, source, place);
                let compiled = tokio::task::spawn_blocking(compile).await;
                // A panic is a bug of this program, and harms this request only.
                let failed = |_| ApiError::internal("compiling failed; please report this");
                compiled.map_err(failed)??
            }
        };
        let preamble = |reasoning| self.grammars.preamble(&self.tokenizer, reasoning);
        let preamble = reasoning.map(preamble);
        Ok(Some(Structure { grammar, preamble }))
    }
}

impl From<GrammarError> for ApiError {
    fn from(error: GrammarError) -> ApiError {
        match error {
            GrammarError::Busy | GrammarError::Thread(_) => busy(),
            GrammarError::Vocabulary { .. } => ApiError::internal(error.to_string()),
            _ => ApiError::bad(error.to_string()).code("invalid_grammar"),
        }
    }
}

/// Reads what an answer must be: OpenAI's `response_format`, llama-server's `json_schema` and `grammar`, and vLLM's
/// `structured_outputs` and `guided_*`.
///
/// # Errors
/// A field has a wrong form, or there are several.
pub(crate) fn source(fields: &mut Fields) -> Result<Option<Source>, ApiError> {
    let mut found = Vec::new();
    if let Some(format) = fields.take::<Map<String, Value>>("response_format")? {
        found.extend(of_format(&format, "response_format")?);
    }
    let mut options: Map<String, Value> = fields.take("structured_outputs")?.unwrap_or_default();
    for (ours, name, guided) in [
        ("json_schema", "json", "guided_json"),
        ("", "regex", "guided_regex"),
        ("", "choice", "guided_choice"),
        ("grammar", "grammar", "guided_grammar"),
    ] {
        let inner = options.remove(name).filter(|value| !value.is_null());
        let outer = match ours {
            "" => fields.take(guided)?,
            ours => fields.take_any(&[ours, guided])?,
        };
        for value in inner.into_iter().chain(outer) {
            found.push(of_value(name, value)?);
        }
    }
    if found.len() > 1 {
        let what = "an answer can follow one structure only; leave the other fields out";
        return Err(ApiError::field("response_format", what));
    }
    Ok(found.pop())
}

/// Returns the structure of `{"type": "json_schema", ...}`, in the form of chat completions or of responses; `None` for
/// text.
///
/// # Errors
/// The type is unknown, or a schema is missing.
pub(crate) fn of_format(
    format: &Map<String, Value>,
    name: &str,
) -> Result<Option<Source>, ApiError> {
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => match format.get("schema") {
            Some(schema) => Ok(Some(Source::JsonSchema(schema.to_string()))),
            None => Ok(Some(Source::JsonObject)),
        },
        Some("json_schema") => {
            let of_chat = format
                .get("json_schema")
                .and_then(|json| json.get("schema"));
            let schema = of_chat.or(format.get("schema"));
            let schema = schema.ok_or_else(|| ApiError::field(name, "the schema is missing"))?;
            Ok(Some(Source::JsonSchema(schema.to_string())))
        }
        _ => Err(ApiError::field(
            name,
            "use the type text, json_object or json_schema",
        )),
    }
}

fn of_value(kind: &str, value: Value) -> Result<Source, ApiError> {
    let wrong = |what: &str| ApiError::field(kind, what);
    match (kind, value) {
        ("json", Value::String(schema)) => Ok(Source::JsonSchema(schema)),
        ("json", schema) => Ok(Source::JsonSchema(schema.to_string())),
        ("regex", Value::String(text)) => Ok(Source::Regex(text)),
        ("grammar", Value::String(text)) => Ok(Source::from_grammar_file("", text)),
        ("choice", Value::Array(texts)) => {
            let texts: Option<Vec<String>> = texts
                .iter()
                .map(|text| text.as_str().map(String::from))
                .collect();
            let texts = texts.ok_or_else(|| wrong("use a list of texts"))?;
            Ok(Source::Choice(texts))
        }
        ("choice", _) => Err(wrong("use a list of texts")),
        _ => Err(wrong("use a text")),
    }
}

/// Which tools an answer must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Forced {
    Any,
    /// The one with this name.
    Named(String),
}

/// Returns the format in which forced calls are written, whatever the model's own is: JSON between marks.
pub(crate) fn forced_format() -> Format {
    Format::by_name("hermes").expect("the format is in the table")
}

/// Returns the format of answers of models that have none for calls: one JSON object.
pub(crate) fn generic_format() -> Format {
    Format::by_name("generic").expect("the format is in the table")
}

/// Returns the grammar of an answer that calls tools and says nothing else.
///
/// # Errors
/// There is no such tool, or definitions of two schemas have the same name.
pub(crate) fn calls(tools: &[Value], forced: &Forced, calls: Calls) -> Result<Source, ApiError> {
    let schema = schema_of_call(tools, forced)?;
    let more = match calls {
        Calls::One => "",
        Calls::Any => r#" ("\n" call)*"#,
    };
    let lark = format!(
        "start: call{more}\ncall: \"<tool_call>\\n\" object \"\\n</tool_call>\"\nobject: %json {schema}\n"
    );
    Ok(Source::Lark(lark))
}

/// Returns the grammar of an answer in the generic form: calls of tools or, unless calls are forced, a text.
///
/// # Errors
/// As [`calls`].
pub(crate) fn generic(
    tools: &[Value],
    forced: Option<&Forced>,
    calls: Calls,
) -> Result<Source, ApiError> {
    let schema = schema_of_call(tools, forced.unwrap_or(&Forced::Any))?;
    let more = match calls {
        Calls::One => "",
        Calls::Any => r#" (", " call)*"#,
    };
    let response = match forced {
        Some(_) => "",
        None => " | \"{\\\"response\\\": \" text \"}\"\ntext: %json {\"type\": \"string\"}",
    };
    let lark = format!(
        "start: \"{{\\\"tool_calls\\\": [\" call{more} \"]}}\"{response}\ncall: %json {schema}\n"
    );
    Ok(Source::Lark(lark))
}

/// Returns the schema of a call in JSON.
fn schema_of_call(tools: &[Value], forced: &Forced) -> Result<Value, ApiError> {
    let mut definitions = Map::new();
    let mut choices = Vec::new();
    for tool in tools {
        let function = &tool["function"];
        let name = &function["name"];
        if matches!(forced, Forced::Named(only) if name != only.as_str()) {
            continue;
        }
        let mut arguments = match function.get("parameters") {
            Some(schema @ Value::Object(_)) => schema.clone(),
            _ => json!({ "type": "object" }),
        };
        // References begin at the root, so definitions go there.
        for key in ["$defs", "definitions"] {
            let inner = arguments
                .as_object_mut()
                .and_then(|schema| schema.remove(key));
            let Some(Value::Object(inner)) = inner else {
                continue;
            };
            let of_key = definitions.entry(key).or_insert_with(|| json!({}));
            for (name, schema) in inner {
                if of_key.get(&name).is_some_and(|other| *other != schema) {
                    let what = format!("two tools define '{name}' differently; rename one");
                    return Err(ApiError::field("tools", what));
                }
                of_key[&name] = schema;
            }
        }
        choices.push(json!({
            "type": "object",
            "properties": { "name": { "const": name }, "arguments": arguments },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        }));
    }
    if choices.is_empty() {
        return Err(ApiError::field("tool_choice", "there is no such tool"));
    }
    let mut schema = match choices.len() {
        1 => choices.remove(0),
        _ => json!({ "anyOf": choices }),
    };
    for (key, value) in definitions {
        schema[&key] = value;
    }
    Ok(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Option<Source>, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        source(&mut fields).map_err(|error| error.message)
    }

    #[test]
    fn reads_the_fields_of_three_servers() {
        let schema = json!({"type": "object"});
        let expected = Some(Source::JsonSchema(schema.to_string()));
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"json_schema": schema}),
            json!({"guided_json": schema}),
            json!({"guided_json": schema.to_string()}),
            json!({"structured_outputs": {"json": schema, "regex": null}}),
        ] {
            assert_eq!(read(body.clone()).unwrap(), expected, "{body}");
        }
        assert_eq!(
            read(json!({"response_format": {"type": "text"}})).unwrap(),
            None
        );
        assert_eq!(read(json!({})).unwrap(), None);
        assert_eq!(
            read(json!({"guided_regex": "a+"})).unwrap(),
            Some(Source::Regex("a+".into()))
        );
        let choice = Source::Choice(vec!["a".into(), "b".into()]);
        assert_eq!(
            read(json!({"guided_choice": ["a", "b"]})).unwrap(),
            Some(choice)
        );
        let gbnf = "root ::= \"a\"";
        assert_eq!(
            read(json!({"grammar": gbnf})).unwrap(),
            Some(Source::Gbnf(gbnf.into()))
        );
    }

    /// What is not the client's fault may be tried again.
    #[test]
    fn a_busy_compiler_is_no_wrong_grammar() {
        let error = ApiError::from(GrammarError::Busy);
        assert_eq!(
            (error.status.as_u16(), error.code),
            (503, Some("grammar_busy"))
        );
        assert!(error.retry_after.is_some());
        let slow = ApiError::from(GrammarError::TooSlow { what: "choice" });
        assert_eq!(
            (slow.status.as_u16(), slow.code),
            (400, Some("invalid_grammar"))
        );
    }

    #[test]
    fn sources_that_were_slow_are_refused_at_once() {
        let grammars = Grammars::default();
        let source = |i: usize| Source::Regex(i.to_string());
        assert!(matches!(grammars.known(&source(0)), Ok(None)));
        for i in 0..=MAX_KEPT {
            let slow = ApiError::from(GrammarError::TooSlow { what: "choice" });
            keep(&grammars.slow, source(i), slow);
        }
        assert!(matches!(grammars.known(&source(0)), Ok(None)));
        let error = grammars.known(&source(MAX_KEPT)).err().unwrap();
        assert_eq!(error.code, Some("invalid_grammar"));
    }

    #[test]
    fn wrong_forms_are_refused() {
        for body in [
            json!({"response_format": {"type": "xml"}}),
            json!({"response_format": {"type": "json_schema"}}),
            json!({"response_format": "json"}),
            json!({"guided_choice": [1]}),
            json!({"guided_choice": "a"}),
            json!({"guided_regex": 1}),
            json!({"guided_regex": "a", "guided_choice": ["a"]}),
        ] {
            assert!(read(body.clone()).is_err(), "{body}");
        }
    }

    #[test]
    fn definitions_of_tools_go_to_the_root() {
        let tool = |name: &str, schema: Value| {
            let parameters = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": schema}});
            json!({"type": "function", "function": {"name": name, "parameters": parameters}})
        };
        let same = [
            tool("f", json!({"type": "string"})),
            tool("g", json!({"type": "string"})),
        ];
        let Source::Lark(lark) = calls(&same, &Forced::Any, Calls::Any).unwrap() else {
            panic!("it is Lark");
        };
        assert_eq!(lark.matches("$defs\":").count(), 1);
        let other = [
            tool("f", json!({"type": "string"})),
            tool("g", json!({"type": "number"})),
        ];
        assert!(calls(&other, &Forced::Any, Calls::Any).is_err());
        assert!(calls(&other, &Forced::Named("g".into()), Calls::One).is_ok());
        assert!(calls(&other, &Forced::Named("h".into()), Calls::One).is_err());
    }
}
