//! How repositories name their files: which are models, which parts make one, which quantization it is, and
//! which names a folder of ours takes. Used on what a server says and on what lies in the models folder.

/// Bytes of a path, and of one name in it.
const MAX_PATH_BYTES: usize = 1024;
const MAX_NAME_BYTES: usize = 200;
/// Folders above a file.
const MAX_DEPTH: usize = 8;

/// What an unnamed quantization means, best first.
const USUAL: [&str; 2] = ["Q4_K_M", "Q4_0"];

/// Names that some systems take for devices, whatever follows the first dot.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "com", "lpt"];

/// Whether `path` is a plain path below a folder on any system: names between single slashes, none hidden,
/// none that leads elsewhere.
///
/// # Errors
/// Says what is wrong.
pub fn check_path(path: &str) -> Result<(), String> {
    let problem = |what: &str| {
        let shown: String = path.chars().take(80).collect();
        Err(format!("the file name '{}' {what}", shown.escape_debug()))
    };
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
            return problem("is the name of a device");
        }
        if name.contains(['\\', ':', '*', '?', '"', '<', '>', '|'])
            || name.contains(char::is_control)
        {
            return problem("has characters that no file name may have");
        }
    }
    Ok(())
}

/// Whether a file is a model, by its name: GGUF, and no companion of one (the vision part of a multimodal
/// model, an importance matrix).
pub fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.ends_with(".gguf") && !name.contains("mmproj") && !name.starts_with("imatrix")
}

/// A file that is one of several: `STEM-00001-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    pub stem: &'a str,
    /// Counted from 1.
    pub no: usize,
    pub count: usize,
}

/// Reads the name of a part.
pub fn part(path: &str) -> Option<Part<'_>> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    let number = |text: &str| match text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<usize>().ok(),
        false => None,
    };
    let (no, count) = (number(no)?, number(count)?);
    (1..=count)
        .contains(&no)
        .then_some(Part { stem, no, count })
}

/// A model: one file, or all its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<T> {
    /// Path of the file, or of the first part.
    pub name: String,
    /// In order.
    pub files: Vec<T>,
    /// Parts that are not there.
    pub n_missing: usize,
}

/// Puts the parts of each model together. The order is that of the names.
pub fn groups<T>(files: impl IntoIterator<Item = (String, T)>) -> Vec<Group<T>> {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    files.dedup_by(|a, b| a.0 == b.0);
    let mut groups: Vec<Group<T>> = Vec::new();
    for (name, file) in files {
        let this = part(&name);
        let same = |group: &&mut Group<T>| {
            let first = part(&group.name);
            this.is_some_and(|this| {
                first.is_some_and(|first| (first.stem, first.count) == (this.stem, this.count))
            })
        };
        if let Some(group) = groups.iter_mut().rev().find(same) {
            group.files.push(file);
            group.n_missing -= 1;
            continue;
        }
        let n_missing = this.map_or(0, |part| part.count - 1);
        groups.push(Group {
            name,
            files: vec![file],
            n_missing,
        });
    }
    groups
}

impl<T> Group<T> {
    /// Whether the name says this quantization: `MODEL-Q4_K_M.gguf`, `Q4_K_M/MODEL-00001-of-00002.gguf`.
    pub fn is_quant(&self, quant: &str) -> bool {
        let name = self.name.to_ascii_lowercase();
        let quant = quant.to_ascii_lowercase();
        name.match_indices(&quant).any(|(at, _)| {
            let before = name[..at].chars().next_back();
            let after = name[at + quant.len()..].chars().next();
            // An underscore goes on with the name of a quantization: Q4_K is not Q4_K_M.
            !before.is_some_and(char::is_alphanumeric)
                && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    }
}

/// Why no model could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoChoice {
    /// None is of the wanted quantization.
    Missing,
    /// More than one could be meant.
    Ambiguous,
}

/// The model of the wanted quantization; without one the usual quantization, or the only model.
pub fn choose<'a, T>(
    groups: &'a [Group<T>],
    quant: Option<&str>,
) -> Result<&'a Group<T>, NoChoice> {
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
    for quant in USUAL {
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
    fn paths_stay_below_their_folder() {
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

    fn of(names: &[&str]) -> Vec<Group<()>> {
        groups(names.iter().map(|name| (name.to_string(), ())))
    }

    #[test]
    fn parts_make_one_model() {
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

    #[test]
    fn a_quantization_is_a_word_of_the_name() {
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
    fn the_choice_is_the_usual_one_or_the_only_one() {
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
    fn companions_are_no_models() {
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
