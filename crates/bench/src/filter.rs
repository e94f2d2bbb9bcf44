//! Selects rows by a part of their name, a regular expression, or a list of names.

use std::collections::BTreeSet;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

/// Memory limit of a compiled pattern in bytes.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// A case-insensitive pattern for names, or a list of names.
#[derive(Debug)]
pub struct Filter {
    text: String,
    by: By,
}

#[derive(Debug)]
enum By {
    Pattern {
        lower: String,
        /// `None` if the text is not a valid regular expression.
        regex: Option<Regex>,
    },
    Names(BTreeSet<String>),
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
            by: By::Pattern {
                lower: text.to_lowercase(),
                regex: regex.ok(),
            },
        }
    }

    /// Selects only these rows.
    pub fn names(names: impl IntoIterator<Item = String>) -> Filter {
        let names = BTreeSet::from_iter(names);
        Filter {
            text: Vec::from_iter(names.iter().map(String::as_str)).join(", "),
            by: By::Names(names),
        }
    }

    /// Returns the filter as given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether `name` contains the text, matches the pattern, or is in the list.
    pub fn matches(&self, name: &str) -> bool {
        match &self.by {
            By::Pattern { lower, regex } => {
                name.to_lowercase().contains(lower)
                    || regex.as_ref().is_some_and(|regex| regex.is_match(name))
            }
            By::Names(names) => names.contains(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_texts_and_patterns() {
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
            // Neither is a valid regular expression.
            ("(", false),
            ("Q4_K)", false),
        ] {
            assert_eq!(Filter::new(text).matches(name), expected, "{text:?}");
        }
    }

    #[test]
    fn lists_match_whole_names_only() {
        let filter = Filter::names(["a/b".to_string(), "a.c".to_string()]);
        let found = ["a/b", "A/B", "a/b/c", "a", "abc", "a.c"].map(|name| filter.matches(name));
        assert_eq!(found, [true, false, false, false, false, true]);
    }
}
