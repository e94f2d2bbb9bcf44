//! Reads calls after their mark, and what follows their arguments.
//!
//! Every function answers "more text is needed", "no call", or what it read, and never changes its mind when more text
//! comes.

use super::MAX_CALL_BYTES;
use super::cursor::{Cursor, Read, Stop};
use super::formats::{Call, Syntax, WholeCall};
use super::tools::Tools;

/// What stands before the arguments of a call in JSON is at most as long.
pub(super) const MAX_HEAD_BYTES: usize = 1 << 14;

const NAMES: [&str; 2] = ["name", "tool_name"];
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
const IDS: [&str; 2] = ["id", "tool_call_id"];

/// What a syntax made of the text after a mark.
pub(super) enum Found {
    /// The name; arguments in JSON follow.
    Head {
        len: usize,
        name: String,
        id: Option<String>,
        is_list: bool,
    },
    /// Complete calls, and where the next text is.
    Calls {
        len: usize,
        calls: Vec<WholeCall>,
        id: Option<String>,
        /// Whether the call is in a list; `None` if nothing belongs to the call after `len` bytes.
        list: Option<bool>,
    },
}

/// Reads the text after a call's mark, or the next object of a list.
pub(super) fn read(call: &Call, is_next: bool, body: &str, tools: &Tools) -> Read<Found> {
    let mut text = Cursor::new(body);
    match &call.syntax {
        Syntax::Whole(calls) => {
            let calls = calls(&mut text, tools)?;
            // The same for every way to cut the text.
            match text.at() <= MAX_CALL_BYTES {
                true => Ok(Found::Calls {
                    len: text.at(),
                    calls,
                    id: None,
                    list: None,
                }),
                false => Err(Stop::NotACall),
            }
        }
        Syntax::Headed { head, .. } => {
            let head = head(&mut text)?;
            text.space();
            if text.peek()? != '{' || !tools.has(&head.name) || text.at() > MAX_HEAD_BYTES {
                return Err(Stop::NotACall);
            }
            Ok(Found::Head {
                len: text.at(),
                name: head.name,
                id: head.id,
                is_list: false,
            })
        }
        Syntax::Objects { .. } => {
            text.space();
            let is_list = is_next || text.take("[")?;
            text.space();
            object(&mut text, is_list, tools)
        }
    }
}

/// Reads an object up to its arguments, or all of it if they come before the name.
fn object(text: &mut Cursor<'_>, is_list: bool, tools: &Tools) -> Read<Found> {
    text.expect("{")?;
    let (mut name, mut id, mut arguments) = (None, None, None);
    text.space();
    while text.peek()? != '}' {
        let key = text.string()?;
        text.space();
        text.expect(":")?;
        text.space();
        if NAMES.contains(&key.as_str()) && name.is_none() {
            name = Some(text.string()?).filter(|name| tools.has(name));
            if name.is_none() {
                return Err(Stop::NotACall);
            }
        } else if ARGUMENTS.contains(&key.as_str()) {
            if text.peek()? != '{' || text.at() > MAX_HEAD_BYTES {
                return Err(Stop::NotACall);
            }
            if let Some(name) = name {
                return Ok(Found::Head {
                    len: text.at(),
                    name,
                    id,
                    is_list,
                });
            }
            arguments = Some(text.json()?.to_owned());
        } else {
            let value = text.json()?;
            if IDS.contains(&key.as_str()) {
                id = Some(label(value));
            }
        }
        text.space();
        if text.peek()? != '}' {
            text.expect(",")?;
            text.space();
        }
    }
    text.skip(1);
    let name = name
        .filter(|_| text.at() <= MAX_HEAD_BYTES)
        .ok_or(Stop::NotACall)?;
    Ok(Found::Calls {
        len: text.at(),
        calls: vec![WholeCall {
            name,
            arguments: arguments.unwrap_or_else(|| "{}".into()),
        }],
        id,
        list: Some(is_list),
    })
}

/// Returns the text of an id, which may be a number.
fn label(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|_| json.to_owned())
}

/// Reads what follows the arguments; returns whether another object does, and an id. The text is read as far as it fits.
pub(super) fn tail(
    call: &Call,
    in_object: bool,
    is_list: bool,
    text: &mut Cursor<'_>,
) -> Read<(bool, Option<String>)> {
    let mut id = None;
    let close: &[&str] = match &call.syntax {
        Syntax::Headed { close, .. } => close,
        Syntax::Objects { close } => {
            if in_object {
                id = members(text)?;
            }
            if is_list && separator(text)? {
                return Ok((true, id));
            }
            std::slice::from_ref(close)
        }
        Syntax::Whole(_) => &[],
    };
    for mark in close.iter().filter(|mark| !mark.is_empty()) {
        let mut ahead = text.clone();
        ahead.space();
        if ahead.take(mark)? {
            *text = ahead;
        }
    }
    Ok((false, id))
}

/// Reads the other members and the end of an object.
fn members(text: &mut Cursor<'_>) -> Read<Option<String>> {
    let mut ahead = text.clone();
    let mut id = None;
    ahead.space();
    while ahead.take(",")? {
        ahead.space();
        let key = ahead.string()?;
        ahead.space();
        ahead.expect(":")?;
        ahead.space();
        let value = ahead.json()?;
        if IDS.contains(&key.as_str()) {
            id = Some(label(value));
        }
        ahead.space();
    }
    ahead.expect("}")?;
    *text = ahead;
    Ok(id)
}

/// Reads a comma, or the end of the list; returns whether it was a comma.
fn separator(text: &mut Cursor<'_>) -> Read<bool> {
    let mut ahead = text.clone();
    ahead.space();
    let goes_on = ahead.take(",")?;
    if !goes_on {
        ahead.expect("]")?;
    }
    *text = ahead;
    Ok(goes_on)
}
