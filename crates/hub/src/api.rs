//! Lists a repository of the hub: one request, `GET /api/models/OWNER/REPO/revision/REV?blobs=true`, for the commit
//! and its files with sizes and checksums.

use serde::Deserialize;

use crate::client::{Answer, Hub};
use crate::display::size;
use crate::error::{Available, Error};
use crate::event::Observer;
use crate::names::{self, ModelFiles, NoChoice};
use crate::reference::{Reference, Selection};
use crate::retry::{Failure, Retries};

/// Largest listing to read; one of a repository with thousands of files has about 1 MiB.
const MAX_ANSWER_BYTES: u64 = 32 << 20;

/// Characters besides letters and digits that need no escape in a URL's path.
const UNRESERVED: &[u8] = b"-_.~";

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// In lower-case hex. The hub knows it for every large file.
    pub(crate) sha256: Option<String>,
}

/// Chooses one of the models that are whole, by index, where the reference names none; `None` for the usual choice. An
/// error says why none should be downloaded.
pub type Choice<'a> = dyn Fn(&[Available]) -> Result<Option<usize>, String> + 'a;

/// The files to download.
pub(crate) struct Plan {
    /// The commit of the revision, so that all files are from the same one.
    pub(crate) revision: String,
    pub(crate) files: Vec<RemoteFile>,
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

/// Finds the files of the model that `reference` names.
pub(crate) fn plan(
    hub: &Hub,
    reference: &Reference,
    choice: &Choice<'_>,
    observe: &mut Observer<'_>,
) -> Result<Plan, Error> {
    let repo = &reference.repo;
    let revision = reference.revision.as_deref().unwrap_or("main");
    let path = format!(
        "/api/models/{repo}/revision/{}?blobs=true",
        encode(revision, b"")
    );
    let answer = Retries::new(hub.retries()).run(observe, || ask(hub, repo, &path))?;
    let info: Info = serde_json::from_slice(&answer).map_err(|error| bad_answer(repo, error))?;
    let is_commit = |sha: &String| sha.len() == 40 && is_hex(sha);
    let revision = info
        .sha
        .filter(is_commit)
        .unwrap_or_else(|| revision.to_owned());
    let files = info.siblings.into_iter().filter(|file| {
        let wanted =
            matches!(&reference.selection, Selection::File(path) if *path == file.rfilename);
        wanted || names::is_model(&file.rfilename)
    });
    let files: Vec<(String, Sibling)> = files.map(|file| (file.rfilename.clone(), file)).collect();
    let groups = names::group(files);
    let chosen = choose(&groups, reference, choice)?;
    if chosen.n_missing > 0 {
        return Err(Error::MissingParts {
            repo: repo.clone(),
            name: chosen.name.clone(),
            found: chosen.files.len(),
            expected: chosen.files.len() + chosen.n_missing,
        });
    }
    let files = chosen.files.iter().map(|file| checked(repo, file));
    Ok(Plan {
        revision,
        files: files.collect::<Result<_, Error>>()?,
    })
}

fn bad_answer(repo: &str, problem: impl ToString) -> Error {
    Error::BadAnswer {
        repo: repo.to_owned(),
        problem: problem.to_string(),
    }
}

fn ask(hub: &Hub, repo: &str, path: &str) -> Result<Vec<u8>, Failure> {
    let response = hub.get(repo, path, 0, Answer::Short)?;
    let body = response
        .into_body()
        .into_with_config()
        .limit(MAX_ANSWER_BYTES);
    body.read_to_vec().map_err(|error| match error {
        ureq::Error::BodyExceedsLimit(_) => Failure::Fatal(bad_answer(
            repo,
            format!("longer than {}", size(MAX_ANSWER_BYTES)),
        )),
        other => Failure::transient(format!("the hub's answer broke off: {other}")),
    })
}

/// Chooses the model that the reference names.
fn choose<'a>(
    groups: &'a [ModelFiles<Sibling>],
    reference: &Reference,
    choice: &Choice<'_>,
) -> Result<&'a ModelFiles<Sibling>, Error> {
    let choice = match &reference.selection {
        Selection::File(path) => {
            let has = |group: &&ModelFiles<Sibling>| {
                group.files.iter().any(|file| file.rfilename == *path)
            };
            groups.iter().find(has).ok_or(NoChoice::Missing)
        }
        Selection::Quant(quant) => names::choose(groups, Some(quant)),
        Selection::Default => {
            let whole = groups.iter().filter(|group| group.n_missing == 0);
            let whole: Vec<&ModelFiles<Sibling>> = whole.collect();
            let listed: Vec<Available> = whole.iter().map(|group| available(group)).collect();
            let chosen = choice(&listed).map_err(|reason| Error::NoChoice {
                repo: reference.repo.clone(),
                reason,
            })?;
            match chosen.and_then(|at| whole.get(at)) {
                Some(group) => Ok(*group),
                None => names::choose(groups, None),
            }
        }
    };
    choice.map_err(|problem| {
        let (repo, wanted) = (reference.repo.clone(), reference.selection.clone());
        let available = groups.iter().map(available).collect();
        match problem {
            NoChoice::Missing => Error::NotInRepository {
                repo,
                wanted,
                available,
            },
            NoChoice::Ambiguous => Error::AmbiguousSelection {
                repo,
                wanted,
                available,
            },
        }
    })
}

fn available(model: &ModelFiles<Sibling>) -> Available {
    let bytes = model.files.iter().map(bytes_of);
    Available {
        name: model.name.clone(),
        bytes: bytes.fold(0, u64::saturating_add),
    }
}

fn bytes_of(file: &Sibling) -> u64 {
    file.lfs
        .as_ref()
        .map_or(file.size.unwrap_or(0), |lfs| lfs.size)
}

/// Checks name, size and checksum of a file that the hub lists.
fn checked(repo: &str, file: &Sibling) -> Result<RemoteFile, Error> {
    let path = &file.rfilename;
    names::check_path(path).map_err(|problem| Error::UnsafeName { problem })?;
    let sha256 = match &file.lfs {
        Some(lfs) if lfs.sha256.len() == 64 && is_hex(&lfs.sha256) => {
            Some(lfs.sha256.to_ascii_lowercase())
        }
        Some(_) => {
            let problem = format!("the checksum of {path} is not a SHA-256");
            return Err(bad_answer(repo, problem));
        }
        None => None,
    };
    match bytes_of(file) {
        0 => Err(bad_answer(
            repo,
            format!("{path} is empty or has no known size"),
        )),
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

/// Returns the path of a file's content on the hub.
pub(crate) fn file_path(repo: &str, revision: &str, path: &str) -> String {
    format!(
        "/{repo}/resolve/{}/{}",
        encode(revision, b""),
        encode(path, b"/")
    )
}

/// Percent-encodes `text`, except unreserved characters and those in `also`.
fn encode(text: &str, also: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || UNRESERVED.contains(&byte) || also.contains(&byte) {
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
    fn percent_encodes_addresses() {
        assert_eq!(
            file_path("a/b", "refs/pr/1", "Q4 0/é#?.gguf"),
            "/a/b/resolve/refs%2Fpr%2F1/Q4%200/%C3%A9%23%3F.gguf"
        );
    }
}
