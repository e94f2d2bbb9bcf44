//! What a user calls a model of the hub: `hf:OWNER/REPO`, with `:QUANT`, `/FOLDER/FILE.gguf` and `@REVISION`
//! where wanted.

use std::fmt;
use std::str::FromStr;

use super::names::check_path;

/// A model of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `OWNER/REPO`.
    pub repo: String,
    /// A branch, tag or commit; `None` is the main branch.
    pub revision: Option<String>,
    pub want: Want,
}

/// Which file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// The usual quantization.
    Any,
    /// The file of this quantization.
    Quant(String),
    /// The file at this path.
    File(String),
}

/// What marks a reference.
pub const SCHEME: &str = "hf:";

/// Bytes of an owner's, repository's or revision's name.
const MAX_NAME_BYTES: usize = 128;

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Reference, String> {
        let text = text.strip_prefix(SCHEME).ok_or_else(|| {
            format!("a model of the hub is written hf:OWNER/REPO[:QUANT] or hf:OWNER/REPO/FILE.gguf, not '{}'", text.escape_debug())
        })?;
        Reference::without_scheme(text)
    }
}

impl Reference {
    /// Reads what follows `hf:`.
    pub fn without_scheme(text: &str) -> Result<Reference, String> {
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
            Some(_) => return Err("the quantization is given twice".into()),
            None => (revision, quant),
        };
        let mut path = model.splitn(3, '/');
        let owner = name("owner", path.next().unwrap_or_default())?;
        let repo = name("repository", path.next().unwrap_or_default())?;
        let want = match (path.next(), quant) {
            (None, None) => Want::Any,
            (None, Some(quant)) => Want::Quant(name("quantization", quant)?.to_owned()),
            (Some(_), Some(_)) => {
                return Err("give a file or a quantization, not both".into());
            }
            (Some(file), None) => {
                check_path(file)?;
                if !file.to_ascii_lowercase().ends_with(".gguf") {
                    return Err(format!("'{}' is no .gguf file", file.escape_debug()));
                }
                Want::File(file.to_owned())
            }
        };
        Ok(Reference {
            repo: format!("{owner}/{repo}"),
            revision: revision.map(check_revision).transpose()?,
            want,
        })
    }
}

/// Checks one name of a reference.
fn name<'a>(what: &str, text: &'a str) -> Result<&'a str, String> {
    let valid = !text.is_empty()
        && text.len() <= MAX_NAME_BYTES
        && !text.starts_with(['.', '-'])
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if valid {
        return Ok(text);
    }
    Err(format!(
        "'{}' is no name of a {what}; a model of the hub is written hf:OWNER/REPO[:QUANT]",
        text.escape_debug()
    ))
}

fn check_revision(text: &str) -> Result<String, String> {
    // Branches may be called as paths are: refs/pr/1.
    for part in text.split('/') {
        name("revision", part)?;
    }
    Ok(text.to_owned())
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repo)?;
        match &self.want {
            Want::Any => {}
            Want::Quant(quant) => write!(f, ":{quant}")?,
            Want::File(file) => write!(f, "/{file}")?,
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
    fn references_are_read_and_written() {
        for (text, repo, revision, want) in [
            ("hf:a/b", "a/b", None, Want::Any),
            ("hf:a/b:Q4_K_M", "a/b", None, Want::Quant("Q4_K_M".into())),
            ("hf:a/b.c-d@v1", "a/b.c-d", Some("v1"), Want::Any),
            (
                "hf:a/b:Q8_0@refs/pr/1",
                "a/b",
                Some("refs/pr/1"),
                Want::Quant("Q8_0".into()),
            ),
            (
                "hf:a/b/x y/c.gguf@main",
                "a/b",
                Some("main"),
                Want::File("x y/c.gguf".into()),
            ),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.repo, repo);
            assert_eq!(reference.revision.as_deref(), revision);
            assert_eq!(reference.want, want);
            assert_eq!(reference.to_string(), text);
        }
        let swapped: Reference = "hf:a/b@v1:Q8_0".parse().unwrap();
        assert_eq!(swapped.to_string(), "hf:a/b:Q8_0@v1");
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "",
            "a/b",
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
