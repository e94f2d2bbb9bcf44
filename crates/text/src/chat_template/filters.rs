//! Filters and tests that differ between minijinja and Jinja2, and how values are written.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, Output, State, escape_formatter, filters};

use super::python::number;

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("replace", replace);
    env.add_filter("string", |value: &Value| match value.as_str() {
        Some(_) => value.clone(),
        None => text(value).into(),
    });
    env.add_filter("safe", |value: &Value| Value::from_safe_string(text(value)));
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_filter("trim", trim);
    env.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
}

/// Writes a value of `{{ }}`.
pub(super) fn write(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let is_plain = matches!(state.auto_escape(), AutoEscape::None);
    match is_float(value) || (is_plain && has_float(value, 0)) {
        true => Ok(out.write_str(&text(value))?),
        false => escape_formatter(out, state, value),
    }
}

/// Lists nested deeper are written by minijinja.
const MAX_DEPTH: usize = 32;

/// Returns whether a list or mapping contains a float, which minijinja writes without an exponent.
fn has_float(value: &Value, depth: usize) -> bool {
    let within = |item: &Value| is_float(item) || has_float(item, depth + 1);
    if depth >= MAX_DEPTH {
        return false;
    }
    match value.kind() {
        ValueKind::Seq => value
            .try_iter()
            .is_ok_and(|mut items| items.any(|item| within(&item))),
        ValueKind::Map => value.try_iter().is_ok_and(|mut keys| {
            keys.any(|key| within(&key) || value.get_item(&key).is_ok_and(|item| within(&item)))
        }),
        _ => false,
    }
}

/// Writes Python's `repr` of a value.
fn repr(value: &Value, depth: usize, out: &mut String) {
    let one = |value: &Value| Value::from(vec![value.clone()]).to_string();
    let items: Vec<Value> = match value.kind() {
        ValueKind::Seq | ValueKind::Map if has_float(value, depth) => {
            value.try_iter().map(Iterator::collect).unwrap_or_default()
        }
        _ if is_float(value) => return out.push_str(&text(value)),
        // Between the brackets of a list.
        _ => {
            let list = one(value);
            let inner = list
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'));
            return out.push_str(inner.unwrap_or(&list));
        }
    };
    let (open, close) = match value.kind() {
        ValueKind::Map => ('{', "}"),
        _ if value.to_string().starts_with('(') && items.len() == 1 => ('(', ",)"),
        _ if value.to_string().starts_with('(') => ('(', ")"),
        _ => ('[', "]"),
    };
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        repr(item, depth + 1, out);
        if value.kind() == ValueKind::Map {
            out.push_str(": ");
            repr(&value.get_item(item).unwrap_or_default(), depth + 1, out);
        }
    }
    out.push_str(close);
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// Returns Python's `str` of a value.
fn text(value: &Value) -> String {
    if has_float(value, 0) {
        let mut out = String::new();
        repr(value, 0, &mut out);
        return out;
    }
    if !is_float(value) {
        return value.to_string();
    }
    match number(value).as_str() {
        "NaN" => "nan".into(),
        "Infinity" => "inf".into(),
        "-Infinity" => "-inf".into(),
        text => text.into(),
    }
}

/// Returns the integer in a value, or `default` if there is none.
fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => kwargs.get::<Option<Value>>("default")?.unwrap_or(0.into()),
    };
    let base = match base {
        Some(base) => Some(base),
        None => kwargs.get("base")?,
    };
    kwargs.assert_all_used()?;
    let none = Kwargs::from_iter([("default", default.clone())]);
    Ok(filters::int(state, value, None, base, none).unwrap_or(default))
}

/// Returns the float in a value, or `default` if there is none.
fn float(
    state: &State,
    value: &Value,
    default: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => kwargs
            .get::<Option<Value>>("default")?
            .unwrap_or(0.0.into()),
    };
    kwargs.assert_all_used()?;
    let none = Kwargs::from_iter([("default", default.clone())]);
    Ok(filters::float(state, value, None, none).unwrap_or(default))
}

/// Replaces all occurrences, or the first `count`.
fn replace(
    value: &Value,
    from: &Value,
    to: &Value,
    count: Option<i64>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let count = match count {
        Some(count) => Some(count),
        None => kwargs.get("count")?,
    };
    kwargs.assert_all_used()?;
    let (value, from, to) = (text(value), text(from), text(to));
    Ok(match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => value.replacen(&from, &to, count),
        None => value.replace(&from, &to),
    })
}

/// Removes `chars`, or white space, at both ends. `none` is the text `None`.
fn trim(value: &Value, chars: Option<String>) -> String {
    let text = text(value);
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).into(),
        None => text.trim().into(),
    }
}

/// Escapes for HTML, as Python's markupsafe.
fn escape(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let mut out = String::new();
    for c in text(value).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(out)
}
