//! How repositories name their files: which are models, which parts belong together, which quantization a name
//! states, and which names are safe to write. Applies to the hub's listings and to the models folder.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rocmforge_gguf::shown;

/// Longest path, and longest name in it.
const MAX_PATH_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 200;
/// Most folders above a file.
const MAX_DEPTH: usize = 8;

/// Quantizations to choose when none is named, best first.
const DEFAULT_QUANTS: [&str; 2] = ["Q4_K_M", "Q4_0"];

/// Names that Windows reserves for devices, with any extension.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "com", "lpt"];

/// Checks that `path` is safe to create below a folder on any system: relative, without `..`, hidden names,
/// reserved names or reserved characters.
///
/// # Errors
/// States the problem.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let problem = |what: &str| Err(format!("the file name '{}' {what}", shown(path)));
    if path.len() > MAX_PATH_BYTES || path.split('/').count() > MAX_DEPTH + 1 {
        return problem("is too long");
    }
    for name in path.split('/') {
        let stem = name.split('.').next().unwrap_or(name).to_ascii_lowercase();
        let is_device = DEVICES.iter().any(|device| {
            stem.strip_prefix(device).is_some_and(|n| {
                let numbered = matches!(*device, "com" | "lpt");
                n.is_empty() && !numbered
                    || numbered && n.len() == 1 && n.as_bytes()[0].is_ascii_digit()
            })
        });
        if name.is_empty() || name.starts_with('.') || name.ends_with(['.', ' ']) {
            return problem("leads out of its folder or is hidden");
        }
        if name.len() > MAX_NAME_BYTES {
            return problem("is too long");
        }
        if is_device {
            return problem("is reserved for a device");
        }
        if name.contains(['\\', ':', '*', '?', '"', '<', '>', '|'])
            || name.contains(char::is_control)
        {
            return problem("has characters that file names may not contain");
        }
    }
    Ok(())
}

/// Returns whether the name is that of a model: GGUF, and neither a vision projector (`mmproj`) nor an importance
/// matrix.
pub(crate) fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.ends_with(".gguf") && !name.contains("mmproj") && !name.starts_with("imatrix")
}

/// The name of one file of a split model: `STEM-00001-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    stem: &'a str,
    count: usize,
}

/// Parses the name of a part.
fn part(path: &str) -> Option<Part<'_>> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    let number = |text: &str| match text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<usize>().ok(),
        false => None,
    };
    let (no, count) = (number(no)?, number(count)?);
    (1..=count).contains(&no).then_some(Part { stem, count })
}

/// The files of one model: a single file, or all parts of a split model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles<T> {
    /// Path of the file or of the first part, below the folder or repository.
    pub name: String,
    /// In the order of the parts.
    pub files: Vec<T>,
    /// Parts that are missing.
    pub n_missing: usize,
}

/// Groups files by model and sorts the models by name.
pub(crate) fn group<T>(files: impl IntoIterator<Item = (String, T)>) -> Vec<ModelFiles<T>> {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    files.dedup_by(|a, b| a.0 == b.0);
    let mut groups: Vec<ModelFiles<T>> = Vec::new();
    // Indices of `groups` by stem and number of parts.
    let mut split: HashMap<(String, usize), usize> = HashMap::new();
    for (name, file) in files {
        let this = part(&name);
        if let Some(part) = this {
            match split.entry((part.stem.to_owned(), part.count)) {
                Entry::Occupied(at) => {
                    let group = &mut groups[*at.get()];
                    group.files.push(file);
                    group.n_missing -= 1;
                    continue;
                }
                Entry::Vacant(new) => {
                    new.insert(groups.len());
                }
            }
        }
        let n_missing = this.map_or(0, |part| part.count - 1);
        groups.push(ModelFiles {
            name,
            files: vec![file],
            n_missing,
        });
    }
    groups
}

impl<T> ModelFiles<T> {
    /// Returns whether the name states this quantization: `MODEL-Q4_K_M.gguf`, `Q4_K_M/MODEL-00001-of-00002.gguf`.
    pub(crate) fn is_quant(&self, quant: &str) -> bool {
        states_quant(&self.name, quant)
    }
}

/// Returns whether a model's name states this quantization.
pub(crate) fn states_quant(name: &str, quant: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let quant = quant.to_ascii_lowercase();
    name.match_indices(&quant).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + quant.len()..].chars().next();
        // An underscore continues the name: Q4_K does not match Q4_K_M.
        !before.is_some_and(char::is_alphanumeric)
            && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// Why no model could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoChoice {
    /// No model matches.
    Missing,
    /// More than one model matches.
    Ambiguous,
}

/// Chooses the model with the given quantization; without one, with a default quantization, else the only model.
pub(crate) fn choose<'a, T>(
    groups: &'a [ModelFiles<T>],
    quant: Option<&str>,
) -> Result<&'a ModelFiles<T>, NoChoice> {
    let only = |quant: &str| {
        let mut found = groups.iter().filter(|group| group.is_quant(quant));
        match (found.next(), found.next()) {
            (Some(group), None) => Ok(group),
            (None, _) => Err(NoChoice::Missing),
            (Some(_), Some(_)) => Err(NoChoice::Ambiguous),
        }
    };
    if let Some(quant) = quant {
        return only(quant);
    }
    for quant in DEFAULT_QUANTS {
        match only(quant) {
            Err(NoChoice::Missing) => {}
            other => return other,
        }
    }
    match groups {
        [] => Err(NoChoice::Missing),
        [group] => Ok(group),
        _ => Err(NoChoice::Ambiguous),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_paths_below_the_folder() {
        for good in [
            "a.gguf",
            "Q4_K_M/model-00001-of-00002.gguf",
            "modèle v1.gguf",
            "console.gguf",
            "com.gguf",
        ] {
            assert_eq!(check_path(good), Ok(()), "{good:?}");
        }
        let deep = "a/".repeat(20) + "b.gguf";
        let long = "a".repeat(300);
        for bad in [
            "",
            "/a",
            "a/",
            "a//b",
            "..",
            "../a",
            "a/../b",
            "./a",
            ".hidden",
            "a\\b",
            "C:a",
            "a\0b",
            "a\nb",
            "nul",
            "NUL.gguf",
            "x/Con.txt",
            "com1.gguf",
            "LPT9",
            "a.",
            "a ",
            "a?b",
            &deep,
            &long,
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
    }

    fn of(names: &[&str]) -> Vec<ModelFiles<()>> {
        group(names.iter().map(|name| (name.to_string(), ())))
    }

    #[test]
    fn groups_parts_into_one_model() {
        let found = of(&[
            "m-Q8_0-00002-of-00002.gguf",
            "m-Q4_0.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "m-F16-00002-of-00003.gguf",
            "m-F16-00002-of-00003.gguf",
            "m-Q8_0-00001-of-00003.gguf",
        ]);
        let summary: Vec<_> = found
            .iter()
            .map(|group| (group.name.as_str(), group.files.len(), group.n_missing))
            .collect();
        assert_eq!(
            summary,
            [
                ("m-F16-00002-of-00003.gguf", 1, 2),
                ("m-Q4_0.gguf", 1, 0),
                ("m-Q8_0-00001-of-00002.gguf", 2, 0),
                ("m-Q8_0-00001-of-00003.gguf", 1, 2),
            ]
        );
        for no_part in [
            "m-0001-of-0002.gguf",
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
            "of-.gguf",
        ] {
            assert_eq!(part(no_part), None, "{no_part}");
        }
    }

    /// Would take minutes if each part were compared with all groups.
    #[test]
    fn groups_many_split_models() {
        let n = 200_000;
        let files = (0..n).map(|i| (format!("m{i:06}-00001-of-00002.gguf"), ()));
        let groups = group(files);
        assert_eq!(groups.len(), n);
        assert!(groups.iter().all(|group| group.n_missing == 1));
    }

    #[test]
    fn matches_quantizations_as_whole_words() {
        for (name, quant, expected) in [
            ("m-Q4_K_M.gguf", "q4_k_m", true),
            ("m.q4_k_m.gguf", "Q4_K_M", true),
            ("m_Q4_K_M-imat.gguf", "Q4_K_M", true),
            ("Q4_K_M/m-00001-of-00002.gguf", "Q4_K_M", true),
            ("m-Q4_K_M.gguf", "Q4_K", false),
            ("m-Q4_0_4_4.gguf", "Q4_0", false),
            ("m-IQ4_XS.gguf", "Q4_XS", false),
            ("m-BF16.gguf", "F16", false),
        ] {
            assert_eq!(of(&[name])[0].is_quant(quant), expected, "{name} {quant}");
        }
    }

    #[test]
    fn chooses_the_named_default_or_only_model() {
        let choice =
            |names: &[&str], quant| choose(&of(names), quant).map(|group| group.name.clone());
        let all = ["m-F16.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf"];
        assert_eq!(choice(&all, None).unwrap(), "m-Q4_K_M.gguf");
        assert_eq!(choice(&all[..2], None).unwrap(), "m-Q4_0.gguf");
        assert_eq!(choice(&all[..1], None).unwrap(), "m-F16.gguf");
        assert_eq!(choice(&all, Some("f16")).unwrap(), "m-F16.gguf");
        assert_eq!(choice(&all, Some("Q8_0")), Err(NoChoice::Missing));
        assert_eq!(
            choice(&["a.gguf", "b.gguf"], None),
            Err(NoChoice::Ambiguous)
        );
        assert_eq!(
            choice(&["a-Q4_0.gguf", "b-Q4_0.gguf"], Some("Q4_0")),
            Err(NoChoice::Ambiguous)
        );
        assert_eq!(choice(&[], None), Err(NoChoice::Missing));
    }

    #[test]
    fn excludes_projectors_and_importance_matrices() {
        for (name, expected) in [
            ("a/m.gguf", true),
            ("m.GGUF", true),
            ("mmproj-F16.gguf", false),
            ("m-mmproj-F16.gguf", false),
            ("imatrix.gguf", false),
            ("README.md", false),
        ] {
            assert_eq!(is_model(name), expected, "{name}");
        }
    }
}
