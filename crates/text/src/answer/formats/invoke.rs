//! Calls as tags `invoke` and `parameter` with names, which several families write with marks of their own.

use crate::answer::cursor::{Cursor, Read, Stop, add_member, end_object};
use crate::answer::tools::Tools;

use super::WholeCall;

/// The marks of a call.
pub(super) struct Tags {
    pub(super) close: &'static str,
    /// Up to the name of a parameter.
    pub(super) parameter: &'static str,
    pub(super) parameter_close: &'static str,
}

/// Reads a call from its name on. After a parameter's name may stand whether its text is a string.
pub(super) fn call(text: &mut Cursor<'_>, tools: &Tools, tags: &Tags) -> Read<WholeCall> {
    let name = text.label(&["\">"])?.to_owned();
    if !tools.has(&name) {
        return Err(Stop::NotACall);
    }
    text.skip(2);
    let mut arguments = String::new();
    loop {
        text.space();
        if text.take(tags.close)? {
            break;
        }
        text.expect(tags.parameter)?;
        let key = text.label(&["\""])?.to_owned();
        text.skip(1);
        let is_string = text.take(" string=\"true\"")?;
        if !is_string {
            text.take(" string=\"false\"")?;
        }
        text.expect(">")?;
        let value = text.until(&[tags.parameter_close])?;
        text.expect(tags.parameter_close)?;
        let json = match is_string {
            true => serde_json::Value::from(value).to_string(),
            false => tools.json(&name, &key, value),
        };
        add_member(&mut arguments, &key, &json);
    }
    Ok(WholeCall {
        name,
        arguments: end_object(arguments),
    })
}
