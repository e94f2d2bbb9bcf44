//! The operation types of a profile sorted by time, and their colours in all charts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rocmforge_profile::schema::Profile;

use super::html::Escaped;
use super::tracks::Placed;

/// Number of colours in the style, `k0` to `k8`. The last is grey and shared by all further kinds.
const N_COLOURS: usize = 9;

#[derive(Debug)]
pub(super) struct Kinds<'a> {
    /// Largest time first.
    names: Vec<&'a str>,
    index: HashMap<&'a str, usize>,
}

impl<'a> Kinds<'a> {
    /// Collects the kinds of the operations by time, then those that occur only in the timeline and never enclose other
    /// spans.
    pub(super) fn of(profile: &'a Profile, placed: &[Placed<'a>]) -> Kinds<'a> {
        let mut of_ops: BTreeMap<&str, f64> = BTreeMap::new();
        for row in profile.phases.iter().flat_map(|phase| &phase.ops) {
            *of_ops.entry(&row.kind).or_default() += row.total_ms;
        }
        let around = placed.iter().filter(|placed| !placed.is_leaf);
        let around: BTreeSet<&str> = around.map(|outer| outer.span.kind.as_str()).collect();
        let mut of_spans: BTreeMap<&str, f64> = BTreeMap::new();
        for placed in placed {
            let kind = placed.span.kind.as_str();
            if !of_ops.contains_key(kind) && !around.contains(kind) {
                *of_spans.entry(kind).or_default() += placed.span.duration_us;
            }
        }
        let mut names = Vec::new();
        for group in [of_ops, of_spans] {
            let mut group: Vec<_> = group.into_iter().collect();
            group.sort_by(|a, b| b.1.total_cmp(&a.1));
            names.extend(group.into_iter().map(|(name, _)| name));
        }
        let index = names
            .iter()
            .enumerate()
            .map(|(i, name)| (*name, i))
            .collect();
        Kinds { names, index }
    }

    /// Returns the number of the colour; `None` for spans that enclose others, such as a step.
    pub(super) fn colour(&self, kind: &str) -> Option<usize> {
        self.index.get(kind).map(|i| (*i).min(N_COLOURS - 1))
    }

    /// Returns the CSS class that sets the colour.
    pub(super) fn class(&self, kind: &str) -> String {
        self.colour(kind)
            .map_or_else(|| "kn".to_owned(), |i| format!("k{i}"))
    }

    /// Returns a legend of the kinds for which `is_shown` is true.
    pub(super) fn legend(&self, is_shown: impl Fn(&str) -> bool) -> String {
        let (own, shared) = self.names.split_at(self.names.len().min(N_COLOURS - 1));
        let mut items = String::new();
        for (i, name) in own.iter().enumerate().filter(|(_, name)| is_shown(name)) {
            items += &format!("<li class=\"k{i}\">{}</li>", Escaped(name));
        }
        let shared: Vec<&str> = shared
            .iter()
            .copied()
            .filter(|name| is_shown(name))
            .collect();
        if !shared.is_empty() {
            items += &format!(
                "<li class=\"k{}\">{}</li>",
                N_COLOURS - 1,
                Escaped(&shared.join(", "))
            );
        }
        format!("<ul class=\"legend\" aria-label=\"Colours\">{items}</ul>\n")
    }
}
