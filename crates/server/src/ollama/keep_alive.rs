//! `keep_alive`: how long a model stays in the memory after a request.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::Value;

use crate::app::App;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::fields::Fields;
use crate::http::keys::Scope;
use crate::serving::slot::KeepAlive;

const NAME: &str = "keep_alive";

/// Takes the field from those who may unload models: the server's owner, and anyone without keys. Others leave it unread,
/// so that its name is reported.
///
/// # Errors
/// It is no time.
pub(super) fn take(
    app: &App,
    caller: &Caller,
    fields: &mut Fields,
) -> Result<Option<KeepAlive>, ApiError> {
    let is_owner = match &caller.key {
        None => app.keys().is_empty(),
        Some(key) => key.may(Scope::Admin),
    };
    if !is_owner {
        return Ok(None);
    }
    let value = fields.take::<Value>(NAME)?;
    let wrong = || ApiError::field(NAME, "use seconds, or a time such as \"5m\" or \"1h30m\"");
    value
        .map(|value| parse(&value).ok_or_else(wrong))
        .transpose()
}

/// Parses seconds, or a time in Go's form. Negative ones are for ever.
fn parse(value: &Value) -> Option<KeepAlive> {
    let seconds = match value {
        Value::Number(seconds) => seconds.as_f64()?,
        Value::String(text) => match text.trim().parse::<f64>() {
            Ok(seconds) => seconds,
            Err(_) => text.trim().parse::<SignedDuration>().ok()?.as_secs_f64(),
        },
        _ => return None,
    };
    match seconds {
        ..0.0 => Some(KeepAlive::Forever),
        seconds => {
            // Longer than any server runs.
            let time = Duration::try_from_secs_f64(seconds).ok();
            Some(time.map_or(KeepAlive::Forever, KeepAlive::For))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_seconds_and_times() {
        let of = |seconds| Some(KeepAlive::For(Duration::from_secs(seconds)));
        for (value, expected) in [
            (json!(0), of(0)),
            (json!(30), of(30)),
            (json!("0"), of(0)),
            (json!("5m"), of(300)),
            (json!("1h30m"), of(5400)),
            (json!("90s"), of(90)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!(1e300), Some(KeepAlive::Forever)),
            (json!("soon"), None),
            (json!(true), None),
        ] {
            assert_eq!(parse(&value), expected, "{value}");
        }
    }
}
