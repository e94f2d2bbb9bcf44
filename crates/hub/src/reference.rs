//! Names of models on the hub: `hf:OWNER/REPO`, optionally with `:QUANT` or `/FOLDER/FILE.gguf`, and `@REVISION`.

use std::fmt;
use std::str::FromStr;

use rocmforge_gguf::shown;

use crate::error::Error;
use crate::names::check_path;

/// The name of a model on the hub: `hf:OWNER/REPO[:QUANT][@REVISION]` or `hf:OWNER/REPO/FILE.gguf[@REVISION]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `OWNER/REPO`.
    pub repo: String,
    /// A branch, tag or commit; `None` means the main branch.
    pub revision: Option<String>,
    pub selection: Selection,
}

/// Which model of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// What the caller of a pull chooses, else a default quantization (Q4_K_M, else Q4_0), else the only model.
    Default,
    /// The model with this quantization.
    Quant(String),
    /// The file at this path.
    File(String),
}

/// Prefix of a reference.
pub(crate) const SCHEME: &str = "hf:";

/// Longest name of an owner, repository, revision or quantization.
const MAX_NAME_BYTES: usize = 128;

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Reference, Error> {
        // The prefix only tells a model from a file's path where both may stand.
        Reference::without_scheme(text.strip_prefix(SCHEME).unwrap_or(text))
    }
}

impl Reference {
    /// Parses a reference without its `hf:` prefix.
    pub(crate) fn without_scheme(text: &str) -> Result<Reference, Error> {
        let (model, revision) = match text.split_once('@') {
            Some((model, revision)) => (model, Some(revision)),
            None => (text, None),
        };
        let (model, quant) = match model.split_once(':') {
            Some((model, quant)) => (model, Some(quant)),
            None => (model, None),
        };
        // hf:OWNER/REPO@REVISION:QUANT means the same as hf:OWNER/REPO:QUANT@REVISION.
        let (revision, quant) = match revision.and_then(|text| text.split_once(':')) {
            Some((revision, late)) if quant.is_none() => (Some(revision), Some(late)),
            Some(_) => {
                return Err(Error::BadReference(
                    "the quantization is given twice".into(),
                ));
            }
            None => (revision, quant),
        };
        let mut path = model.splitn(3, '/');
        let owner = name("owner", path.next().unwrap_or_default())?;
        let repo = name("repository", path.next().unwrap_or_default())?;
        let selection = match (path.next(), quant) {
            (None, None) => Selection::Default,
            (None, Some(quant)) => Selection::Quant(name("quantization", quant)?.to_owned()),
            (Some(_), Some(_)) => {
                return Err(Error::BadReference(
                    "give a file or a quantization, not both".into(),
                ));
            }
            (Some(file), None) => {
                check_path(file).map_err(Error::BadReference)?;
                if !file.to_ascii_lowercase().ends_with(".gguf") {
                    return Err(Error::BadReference(format!(
                        "'{}' is not a .gguf file",
                        shown(file)
                    )));
                }
                Selection::File(file.to_owned())
            }
        };
        Ok(Reference {
            repo: format!("{owner}/{repo}"),
            revision: revision.map(check_revision).transpose()?,
            selection,
        })
    }
}

/// Checks one name of a reference.
fn name<'a>(what: &str, text: &'a str) -> Result<&'a str, Error> {
    let valid = !text.is_empty()
        && text.len() <= MAX_NAME_BYTES
        && !text.starts_with(['.', '-'])
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if valid {
        return Ok(text);
    }
    Err(Error::BadReference(format!(
        "'{}' is not a valid {what} name; write hf:OWNER/REPO[:QUANT]",
        shown(text)
    )))
}

fn check_revision(text: &str) -> Result<String, Error> {
    // Branch names may contain slashes: refs/pr/1.
    for part in text.split('/') {
        name("revision", part)?;
    }
    Ok(text.to_owned())
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repo)?;
        match &self.selection {
            Selection::Default => {}
            Selection::Quant(quant) => write!(f, ":{quant}")?,
            Selection::File(file) => write!(f, "/{file}")?,
        }
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_formats_references() {
        for (text, repo, revision, selection) in [
            ("hf:a/b", "a/b", None, Selection::Default),
            (
                "hf:a/b:Q4_K_M",
                "a/b",
                None,
                Selection::Quant("Q4_K_M".into()),
            ),
            ("hf:a/b.c-d@v1", "a/b.c-d", Some("v1"), Selection::Default),
            (
                "hf:a/b:Q8_0@refs/pr/1",
                "a/b",
                Some("refs/pr/1"),
                Selection::Quant("Q8_0".into()),
            ),
            (
                "hf:a/b/x y/c.gguf@main",
                "a/b",
                Some("main"),
                Selection::File("x y/c.gguf".into()),
            ),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.repo, repo);
            assert_eq!(reference.revision.as_deref(), revision);
            assert_eq!(reference.selection, selection);
            assert_eq!(reference.to_string(), text);
        }
        let without_prefix: Reference = "a/b:Q8_0".parse().unwrap();
        assert_eq!(without_prefix.to_string(), "hf:a/b:Q8_0");
        let swapped: Reference = "hf:a/b@v1:Q8_0".parse().unwrap();
        assert_eq!(swapped.to_string(), "hf:a/b:Q8_0@v1");
    }

    #[test]
    fn rejects_malformed_references() {
        for text in [
            "",
            "a",
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:a/..",
            "hf:../b",
            "hf:a/b:",
            "hf:a/b@",
            "hf:a/b@../x",
            "hf:a/b:Q4@v:Q5",
            "hf:a/b/c.gguf:Q4",
            "hf:a/b/c.txt",
            "hf:a/b/../c.gguf",
            "hf:a/b//c.gguf",
            "hf:a/b/c\\d.gguf",
            "hf:a b/c",
            "hf:a/b?x",
            "hf:a/-b",
            "hf:a/b\u{0}",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }
}
