//! The texts in quotes in a template: what it may look for in a conversation.

/// Longer texts are sentences, not marks that a template looks for.
const MAX_BYTES: usize = 128;

/// Released templates have up to 200.
const MAX_COUNT: usize = 1024;

/// Returns the texts in quotes in the tags of a template, with escapes replaced.
pub(super) fn literals(source: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        match rest.chars().next() {
            Some('#') => rest = rest.find("#}").map_or("", |end| &rest[end..]),
            Some('{' | '%') => rest = tag(rest, &mut literals),
            _ => {}
        }
        if literals.len() >= MAX_COUNT {
            break;
        }
    }
    literals
}

/// Adds the literals of one tag; returns what follows it.
fn tag<'s>(mut rest: &'s str, literals: &mut Vec<String>) -> &'s str {
    while let Some(at) = rest.find(['\'', '"', '}']) {
        let quote = rest.as_bytes()[at];
        if quote == b'}' {
            let ends = at > 0 && matches!(rest.as_bytes()[at - 1], b'%' | b'}');
            rest = &rest[at + 1..];
            if ends {
                return rest;
            }
            // The first of two braces: the second one ends the tag.
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            continue;
        }
        let (literal, after) = quoted(&rest[at + 1..], char::from(quote));
        if literal.len() <= MAX_BYTES && literals.len() < MAX_COUNT {
            literals.push(literal);
        }
        rest = after;
    }
    ""
}

/// Returns the text up to `quote`, and what follows it.
fn quoted(text: &str, quote: char) -> (String, &str) {
    let mut literal = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => return (literal, &text[at + c.len_utf8()..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => literal.push('\n'),
                Some((_, 't')) => literal.push('\t'),
                Some((_, c)) => literal.push(c),
                None => {}
            },
            c => literal.push(c),
        }
    }
    (literal, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_texts_in_quotes() {
        let source = "don't {# 'no' #}{{ 'a' ~ m['b'] ~ {'k': \"it's\"} }} 'x' {%- if '</t>' in c and '}}' -%}{{ 'l\\n\\'' }}{";
        assert_eq!(
            literals(source),
            ["a", "b", "k", "it's", "</t>", "}}", "l\n'"]
        );
        assert_eq!(literals("{{ 'open"), ["open"]);
        assert!(literals("{").is_empty() && literals("{#").is_empty());
    }
}
