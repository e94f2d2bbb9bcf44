//! The fields of a request's body, read one by one.
//!
//! A field that nothing reads is not an error: clients send more than any server knows. Its name is reported in a header.

use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;

/// Names in the header, at most.
const MAX_NAMES: usize = 16;
/// Longest name in the header.
const MAX_NAME_BYTES: usize = 48;

/// Header that names the fields of a request that the server does not know.
pub(crate) const IGNORED: &str = "x-ignored-fields";

/// The fields of a JSON object that are not read yet.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Fields {
        Fields(map)
    }

    /// Parses a body.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            ApiError::bad(format!("the body is not valid JSON: {error}")).code("invalid_json")
        })?;
        match value {
            Value::Object(map) => Ok(Fields(map)),
            _ => Err(ApiError::bad("the body is not a JSON object").code("invalid_json")),
        }
    }

    /// Takes a field. One that is null counts as missing.
    ///
    /// # Errors
    /// It has another type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.0.swap_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match serde_json::from_value(value) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(ApiError::field(name, error.to_string())),
            },
        }
    }

    /// Takes the fields of an object; none if it is missing.
    ///
    /// # Errors
    /// It is not an object.
    pub(crate) fn take_fields(&mut self, name: &str) -> Result<Fields, ApiError> {
        Ok(Fields(self.take(name)?.unwrap_or_default()))
    }

    /// Gives a field the name that another API has for it.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        if let Some(value) = self.0.swap_remove(from) {
            self.0.insert(to.to_string(), value);
        }
    }

    /// Takes a field if it has this value; returns whether it had.
    pub(crate) fn take_if(&mut self, name: &str, value: &Value) -> bool {
        let has_it = self.0.get(name) == Some(value);
        if has_it {
            self.0.swap_remove(name);
        }
        has_it
    }

    /// Whether the client asks for a stream; `None` if it does not say.
    pub(crate) fn asks_for_stream(&self) -> Option<bool> {
        self.0.get("stream").and_then(Value::as_bool)
    }

    /// Sets a field, unless it is there. One that is null counts as missing.
    pub(crate) fn put_default(&mut self, name: &str, value: Value) {
        let field = self.0.entry(name).or_insert(Value::Null);
        if field.is_null() {
            *field = value;
        }
    }

    /// Takes the first of these fields that is there.
    ///
    /// # Errors
    /// One of them has another type.
    pub(crate) fn take_any<T: DeserializeOwned>(
        &mut self,
        names: &[&str],
    ) -> Result<Option<T>, ApiError> {
        let mut found = None;
        for name in names {
            found = found.or(self.take(name)?);
        }
        Ok(found)
    }

    /// Takes a field that must be there.
    ///
    /// # Errors
    /// It is missing or has another type.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?
            .ok_or_else(|| ApiError::field(name, "this field is required"))
    }

    /// Refuses a field that is known but not supported, unless it has a value that changes nothing.
    ///
    /// # Errors
    /// It has another value.
    pub(crate) fn refuse(&mut self, name: &str, harmless: &[Value]) -> Result<(), ApiError> {
        match self.take::<Value>(name)? {
            Some(value) if !harmless.contains(&value) => {
                let error = ApiError::field(name, "this server does not support it; leave it out");
                Err(ApiError {
                    status: StatusCode::BAD_REQUEST,
                    ..error.code("unsupported_parameter")
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the names of the fields that nothing has read, as far as they may stand in a header.
    pub(crate) fn unread(&self) -> Option<String> {
        let is_name = |name: &&String| {
            let is_part = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
            name.len() <= MAX_NAME_BYTES && !name.is_empty() && name.bytes().all(is_part)
        };
        let names: Vec<&str> = self
            .0
            .keys()
            .filter(is_name)
            .take(MAX_NAMES)
            .map(String::as_str)
            .collect();
        (!names.is_empty()).then(|| names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn reads_fields_by_type() {
        let mut all = fields(json!({"a": 1, "b": null, "c": "x", "d": [1]}));
        assert_eq!(all.take::<f32>("a").unwrap(), Some(1.0));
        assert_eq!(all.take::<u32>("b").unwrap(), None);
        let error = all.take::<u32>("c").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("c"));
        assert!(all.need::<u32>("e").is_err());
        assert_eq!(all.unread().as_deref(), Some("d"));
    }

    #[test]
    fn refuses_what_is_not_an_object() {
        for body in ["", "[]", "1", "{", "{\"a\": }", "\u{feff}{}"] {
            assert!(Fields::parse(body.as_bytes()).is_err(), "{body}");
        }
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(Fields::parse(format!("{{\"a\": {deep}}}").as_bytes()).is_err());
    }

    #[test]
    fn names_in_headers_are_plain() {
        let names = fields(json!({"a\r\nset-cookie: x": 1, "good": 1, "": 1, "ä": 1}));
        assert_eq!(names.unread().as_deref(), Some("good"));
    }

    #[test]
    fn refuses_known_fields_unless_they_change_nothing() {
        let mut all = fields(json!({"a": false, "b": true}));
        assert!(all.refuse("a", &[json!(false)]).is_ok());
        assert!(all.refuse("b", &[json!(false)]).is_err());
        assert!(all.refuse("c", &[]).is_ok());
    }
}
