//! The tools of a conversation: their names, and the types of their parameters.

use std::collections::HashMap;

use serde_json::Value;

/// Tools by name, with the schemas of their parameters.
pub(super) struct Tools(HashMap<String, Value>);

impl Tools {
    /// Reads `{"function": {"name": ..., "parameters": {"properties": ...}}}`, with or without the outer object.
    pub(super) fn new(tools: &[Value]) -> Self {
        let entry = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            let properties = function.get("parameters").and_then(|p| p.get("properties"));
            Some((name, properties.cloned().unwrap_or_default()))
        };
        Tools(tools.iter().filter_map(entry).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a call may have this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the JSON of a parameter's text, for formats that do not mark strings: a string if the parameter is one, or
    /// if the text is no JSON of another type.
    pub(super) fn json(&self, tool: &str, parameter: &str, text: &str) -> String {
        let schema = self
            .0
            .get(tool)
            .and_then(|properties| properties.get(parameter));
        let trimmed = text.trim();
        let is_other = || match serde_json::from_str::<Value>(trimmed) {
            Ok(Value::String(_)) | Err(_) => false,
            Ok(value) => schema.is_none_or(|schema| allows(schema, &value)),
        };
        match is_other() {
            true => trimmed.to_owned(),
            false => Value::from(text).to_string(),
        }
    }
}

/// Returns whether a schema names the type of a value; one without types allows any.
fn allows(schema: &Value, value: &Value) -> bool {
    let of_value: &[&str] = match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(n) if n.is_f64() => &["number"],
        Value::Number(_) => &["integer", "number"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    };
    let any = schema.get("anyOf").or_else(|| schema.get("oneOf"));
    if let Some(Value::Array(choices)) = any {
        return choices.iter().any(|choice| allows(choice, value));
    }
    match schema.get("type") {
        Some(Value::String(name)) => of_value.contains(&name.as_str()),
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(Value::as_str)
            .any(|name| of_value.contains(&name)),
        _ => true,
    }
}
