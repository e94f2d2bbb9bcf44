//! Metadata values as text and as JSON.

use rocmforge_gguf::{Array, Value, escape_control};
use serde_json::{Value as Json, json};

/// Most elements of an array that is shown in full, in JSON and in text.
const WHOLE_ARRAY: (usize, usize) = (64, 6);
/// Elements shown of a longer array, in JSON and in text.
const ARRAY_START: (usize, usize) = (8, 4);
/// Characters shown of a string in text.
const STRING_CHARS: usize = 100;

/// Writes a value on one line, long ones cut.
pub fn text_of(value: &Value<'_>) -> String {
    match value {
        Value::String(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let cut: String = text.chars().take(STRING_CHARS).collect();
            let left = text.chars().count() - cut.chars().count();
            let more = if left > 0 {
                format!("... ({left} more characters)")
            } else {
                String::new()
            };
            format!("\"{}\"{more}", escape_control(&cut))
        }
        Value::Array(array) => {
            let (start, all) = start_of(array, WHOLE_ARRAY.1, ARRAY_START.1);
            let mut items: Vec<String> = start.iter().map(text_of).collect();
            if !all {
                items.push(format!(
                    "... {} {} in all",
                    array.len(),
                    array.element_type().name()
                ));
            }
            format!("[{}]", items.join(", "))
        }
        Value::Bool(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        int => int
            .as_int()
            .map_or_else(|| "n/a".to_string(), |int| int.to_string()),
    }
}

/// Returns the elements to show, and whether they are all.
fn start_of<'a>(array: &Array<'a>, whole: usize, start: usize) -> (Vec<Value<'a>>, bool) {
    let all = array.len() <= whole;
    (
        array.iter().take(if all { whole } else { start }).collect(),
        all,
    )
}

/// Converts a value: strings in full, long arrays as `{"type", "len", "start"}`.
pub fn json_of(value: &Value<'_>) -> Json {
    match value {
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Bool(value) => (*value).into(),
        Value::Array(array) => {
            let (start, all) = start_of(array, WHOLE_ARRAY.0, ARRAY_START.0);
            let start: Vec<Json> = start.iter().map(json_of).collect();
            if all {
                start.into()
            } else {
                json!({ "type": array.element_type().name(), "len": array.len(), "start": start })
            }
        }
        // The shortest form: 1e-5 instead of 0.000009999999747, its value as f64.
        Value::F32(value) => value
            .to_string()
            .parse::<f64>()
            .map_or(Json::Null, Json::from),
        Value::F64(value) => (*value).into(),
        Value::U64(value) => (*value).into(),
        int => int
            .as_int()
            .and_then(|int| i64::try_from(int).ok())
            .map_or(Json::Null, Json::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters() {
        assert_eq!(
            text_of(&Value::String(b"\x1b[31mred\n")),
            "\"\\u{1b}[31mred\\n\""
        );
        assert_eq!(text_of(&Value::String(&[b'a', 0xff])), "\"a\u{fffd}\"");
        let long = "x".repeat(STRING_CHARS + 5);
        assert!(text_of(&Value::String(long.as_bytes())).ends_with("\"... (5 more characters)"));
    }
}
