//! Which rows are wanted: by a part of their name, or by a regular expression.

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

/// Memory that a pattern may take, in bytes: patterns are short.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// A pattern for names, in any case.
#[derive(Debug)]
pub struct Filter {
    text: String,
    lower: String,
    /// `None` if the text is no regular expression.
    regex: Option<Regex>,
}

impl Filter {
    pub fn new(text: &str) -> Filter {
        let config = Regex::config().nfa_size_limit(Some(MAX_REGEX_BYTES));
        let regex = Regex::builder()
            .configure(config)
            .syntax(syntax::Config::new().case_insensitive(true))
            .build(text);
        Filter {
            text: text.to_string(),
            lower: text.to_lowercase(),
            regex: regex.ok(),
        }
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the text is part of `name`, or matches a part of it.
    pub fn matches(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.lower)
            || self
                .regex
                .as_ref()
                .is_some_and(|regex| regex.is_match(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_patterns() {
        let name = "matmul/quantized/Q4_K/1x4096x4096/cpu";
        for (text, expected) in [
            ("q4_k", true),
            ("Q4_K/1x", true),
            ("q4_k/.*/cpu$", true),
            ("Q[45]_K", true),
            ("^matmul", true),
            ("", true),
            ("Q5_K", false),
            ("^Q4", false),
            // Neither is a regular expression.
            ("(", false),
            ("Q4_K)", false),
        ] {
            assert_eq!(Filter::new(text).matches(name), expected, "{text:?}");
        }
    }
}
