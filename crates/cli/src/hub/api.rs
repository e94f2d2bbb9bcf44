//! What a repository of the hub holds: one request for the commit and its files, with sizes and checksums.
//! Fields as the hub's `GET /api/models/OWNER/REPO/revision/REV?blobs=true` gives them.

use anyhow::{Result, anyhow, bail};
use rocmforge_gguf::escape_control;
use serde::Deserialize;

use super::client::{Answer, Client};
use super::failure::{Failure, Patience};
use super::names::{self, Group, NoChoice};
use super::reference::{Reference, Want};
use crate::output::{self, size};

/// The largest answer that is read; a repository of thousands of files takes about one.
const MAX_ANSWER_BYTES: u64 = 32 << 20;

/// Models that are listed where the user has to choose.
const MAX_LISTED: usize = 50;

/// Characters that stand for themselves in the path of an address.
const PLAIN: &[u8] = b"-_.~";

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    pub path: String,
    pub bytes: u64,
    /// In lower-case hex, where the hub knows it: for every large file.
    pub sha256: Option<String>,
}

/// The files to fetch.
pub struct Plan {
    /// The commit that the revision meant, so that all files are of one.
    pub revision: String,
    pub model: Group<RemoteFile>,
}

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

/// Finds the files that `reference` means.
pub fn plan(client: &Client, reference: &Reference, patience: &mut Patience) -> Result<Plan> {
    let repo = &reference.repo;
    let revision = reference.revision.as_deref().unwrap_or("main");
    let path = format!(
        "/api/models/{repo}/revision/{}?blobs=true",
        encode(revision, b"")
    );
    let answer = patience.retry(|| ask(client, repo, &path))?;
    let info: Info = serde_json::from_slice(&answer)
        .map_err(|error| anyhow!("the hub's answer about {repo} is not understood: {error}"))?;
    let is_commit = |sha: &String| sha.len() == 40 && is_hex(sha);
    let revision = info
        .sha
        .filter(is_commit)
        .unwrap_or_else(|| revision.to_owned());
    let files = info.siblings.into_iter().filter(|file| {
        let wanted = matches!(&reference.want, Want::File(path) if *path == file.rfilename);
        wanted || names::is_model(&file.rfilename)
    });
    let files: Vec<(String, Sibling)> = files.map(|file| (file.rfilename.clone(), file)).collect();
    let groups = names::groups(files);
    let chosen = choose(&groups, reference)?;
    if chosen.n_missing > 0 {
        bail!(
            "{repo} has only {} of the {} parts of {}",
            chosen.files.len(),
            chosen.files.len() + chosen.n_missing,
            escape_control(&chosen.name)
        );
    }
    Ok(Plan {
        revision,
        model: Group {
            name: chosen.name.clone(),
            files: chosen.files.iter().map(checked).collect::<Result<_>>()?,
            n_missing: 0,
        },
    })
}

fn ask(client: &Client, repo: &str, path: &str) -> Result<Vec<u8>, Failure> {
    let response = client.get(repo, path, 0, Answer::Short)?;
    let body = response
        .into_body()
        .into_with_config()
        .limit(MAX_ANSWER_BYTES);
    body.read_to_vec().map_err(|error| match error {
        ureq::Error::BodyExceedsLimit(_) => Failure::fatal(format!(
            "the hub's answer about {repo} is longer than {}",
            size(MAX_ANSWER_BYTES)
        )),
        other => Failure::again(format!("the hub's answer broke off: {other}")),
    })
}

/// The model that the reference means; lists what there is if that is not one.
fn choose<'a>(groups: &'a [Group<Sibling>], reference: &Reference) -> Result<&'a Group<Sibling>> {
    let quant = match &reference.want {
        Want::File(path) => {
            let has =
                |group: &&Group<Sibling>| group.files.iter().any(|file| file.rfilename == *path);
            return groups.iter().find(has).ok_or_else(|| {
                list(groups);
                anyhow!("{} has no file {}", reference.repo, escape_control(path))
            });
        }
        Want::Quant(quant) => Some(quant.as_str()),
        Want::Any => None,
    };
    names::choose(groups, quant).map_err(|problem| {
        list(groups);
        let repo = &reference.repo;
        match (problem, quant) {
            (NoChoice::Missing, None) => anyhow!("{repo} has no GGUF files; look for a repository with GGUF in its name"),
            (NoChoice::Missing, Some(quant)) => anyhow!("{repo} has no {quant}"),
            (NoChoice::Ambiguous, Some(quant)) => anyhow!(
                "more than one model of {repo} is {quant}; name the file, as in hf:{repo}/FILE.gguf"
            ),
            (NoChoice::Ambiguous, None) => anyhow!(
                "{repo} has more than one model and none is the usual one; choose with hf:{repo}:QUANT or hf:{repo}/FILE.gguf"
            ),
        }
    })
}

fn list(groups: &[Group<Sibling>]) {
    for group in groups.iter().take(MAX_LISTED) {
        let bytes = group
            .files
            .iter()
            .fold(0, |sum: u64, file| sum.saturating_add(bytes_of(file)));
        output::note(&format!(
            "  {:>10}  {}",
            size(bytes),
            escape_control(&group.name)
        ));
    }
    if groups.len() > MAX_LISTED {
        output::note(&format!("  and {} more", groups.len() - MAX_LISTED));
    }
}

fn bytes_of(file: &Sibling) -> u64 {
    file.lfs
        .as_ref()
        .map_or(file.size.unwrap_or(0), |lfs| lfs.size)
}

/// A file as the hub describes it, if that can be.
fn checked(file: &Sibling) -> Result<RemoteFile> {
    let path = &file.rfilename;
    names::check_path(path)
        .map_err(|error| anyhow!("the hub's answer is not safe to use: {error}"))?;
    let sha256 = match &file.lfs {
        Some(lfs) if lfs.sha256.len() == 64 && is_hex(&lfs.sha256) => {
            Some(lfs.sha256.to_ascii_lowercase())
        }
        Some(_) => bail!("the hub's checksum of {path} is no SHA-256"),
        None => None,
    };
    match bytes_of(file) {
        0 => bail!("{path} is empty on the hub, or its size is not known"),
        bytes => Ok(RemoteFile {
            path: path.clone(),
            bytes,
            sha256,
        }),
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Where the bytes of a file are.
pub fn file_path(repo: &str, revision: &str, path: &str) -> String {
    format!(
        "/{repo}/resolve/{}/{}",
        encode(revision, b""),
        encode(path, b"/")
    )
}

/// `text` with `%XX` for all that is not plain or in `also`.
fn encode(text: &str, also: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || PLAIN.contains(&byte) || also.contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(
            file_path("a/b", "refs/pr/1", "Q4 0/é#?.gguf"),
            "/a/b/resolve/refs%2Fpr%2F1/Q4%200/%C3%A9%23%3F.gguf"
        );
    }
}
