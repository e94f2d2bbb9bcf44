//! Calls as Python writes them: `[name(key="text", other=[1, None])]`. Values are converted to JSON.

use serde_json::Value;

use crate::answer::cursor::{Cursor, Read, Stop, add_member, end_object};
use crate::answer::tools::Tools;

use super::WholeCall;

/// Reads a list of calls.
pub(super) fn calls(text: &mut Cursor<'_>, tools: &Tools) -> Read<Vec<WholeCall>> {
    text.space();
    text.expect("[")?;
    let mut calls = Vec::new();
    text.list(']', |text| {
        let name = word(text)?;
        text.space();
        if !tools.has(&name) {
            return Err(Stop::NotACall);
        }
        text.expect("(")?;
        let mut arguments = String::new();
        text.list(')', |text| {
            let key = word(text)?;
            text.space();
            text.expect("=")?;
            text.space();
            add_member(&mut arguments, &key, &value(text)?);
            Ok(())
        })?;
        calls.push(WholeCall {
            name,
            arguments: end_object(arguments),
        });
        Ok(())
    })?;
    match calls.is_empty() {
        true => Err(Stop::NotACall),
        false => Ok(calls),
    }
}

/// Reads a name, which may have dots.
fn word(text: &mut Cursor<'_>) -> Read<String> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
    let len = text.rest().find(|c| !is_part(c)).ok_or(Stop::Incomplete)?;
    let start = text.at();
    text.skip(len);
    match len {
        0 => Err(Stop::NotACall),
        _ => Ok(text.since(start).to_owned()),
    }
}

/// Reads a value; returns it as JSON.
fn value(text: &mut Cursor<'_>) -> Read<String> {
    match text.peek()? {
        quote @ ('"' | '\'') => string(text, quote),
        open @ ('[' | '(') => {
            text.skip(1);
            let mut items = Vec::new();
            text.list(if open == '[' { ']' } else { ')' }, |text| {
                items.push(value(text)?);
                Ok(())
            })?;
            Ok(format!("[{}]", items.join(",")))
        }
        '{' => {
            text.skip(1);
            let mut object = String::new();
            text.list('}', |text| {
                let quote = text.peek()?;
                let key = match quote {
                    '"' | '\'' => string(text, quote)?,
                    _ => return Err(Stop::NotACall),
                };
                text.space();
                text.expect(":")?;
                text.space();
                let key: String = serde_json::from_str(&key).map_err(|_| Stop::NotACall)?;
                add_member(&mut object, &key, &value(text)?);
                Ok(())
            })?;
            Ok(end_object(object))
        }
        _ => {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
            let len = text.rest().find(|c| !is_part(c)).ok_or(Stop::Incomplete)?;
            let start = text.at();
            text.skip(len);
            match text.since(start) {
                "True" | "true" => Ok("true".into()),
                "False" | "false" => Ok("false".into()),
                "None" | "null" => Ok("null".into()),
                number => match serde_json::from_str(number) {
                    Ok(Value::Number(_)) => Ok(number.into()),
                    _ => Err(Stop::NotACall),
                },
            }
        }
    }
}

/// Reads a string in quotes; returns it as JSON.
fn string(text: &mut Cursor<'_>, quote: char) -> Read<String> {
    let mut out = String::new();
    let mut chars = text.rest().char_indices();
    chars.next();
    let mut next = || chars.next().ok_or(Stop::Incomplete);
    let len = loop {
        let (at, c) = next()?;
        if c == quote {
            break at + 1;
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        let escape = next()?.1;
        let mut hex = |n_digits: usize| {
            let mut code = 0;
            for _ in 0..n_digits {
                let digit = next()?.1.to_digit(16).ok_or(Stop::NotACall)?;
                code = code << 4 | digit;
            }
            Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
        };
        match escape {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'x' => out.push(hex(2)?),
            'u' => out.push(hex(4)?),
            c @ ('\\' | '"' | '\'') => out.push(c),
            '\n' => {}
            other => out.extend(['\\', other]),
        }
    };
    text.skip(len);
    Ok(Value::from(out).to_string())
}
