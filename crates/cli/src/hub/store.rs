//! The models folder: `OWNER/REPO/FILE.gguf` below one root. Lists what is there and finds a model by the name
//! that a user gives it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use rocmforge_gguf::escape_control;

use super::names::{self, Group, NoChoice, check_path};
use super::reference::{Reference, SCHEME, Want};
use crate::folders;

/// What ends the name of a file that is not complete.
pub const PART_SUFFIX: &str = ".part";

/// Files and folders that are looked at; a models folder that is by mistake a whole disk ends here.
const MAX_ENTRIES: usize = 20_000;
const MAX_DEPTH: usize = 10;

/// The models folder.
pub struct Store {
    root: PathBuf,
}

/// A file of the folder.
pub struct File {
    /// Below the root, with slashes.
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
    pub modified: Option<std::time::SystemTime>,
}

/// What lies in the folder.
#[derive(Default)]
pub struct Contents {
    /// Models, by name.
    pub models: Vec<Group<File>>,
    /// Files that were not downloaded to their end.
    pub incomplete: Vec<File>,
}

impl Store {
    /// The folder `dir`, or the user's. It need not exist.
    pub fn open(dir: Option<&Path>) -> Result<Store> {
        let root = match dir {
            Some(dir) => dir.to_owned(),
            None => folders::data()
                .context(
                    "cannot tell where models are kept, since HOME is not set; say it with --models-dir",
                )?
                .join("models"),
        };
        Ok(Store { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Everything in the folder.
    pub fn contents(&self) -> Result<Contents> {
        let mut files = Vec::new();
        let mut left = MAX_ENTRIES;
        self.walk(&self.root, "", 0, &mut left, &mut files)?;
        let is_part = |file: &File| file.name.ends_with(PART_SUFFIX);
        let (mut incomplete, files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_part);
        incomplete.sort_by(|a, b| a.name.cmp(&b.name));
        let models = files.into_iter().filter(|file| names::is_model(&file.name));
        Ok(Contents {
            models: names::groups(models.map(|file| (file.name.clone(), file))),
            incomplete,
        })
    }

    fn walk(
        &self,
        dir: &Path,
        prefix: &str,
        depth: usize,
        left: &mut usize,
        files: &mut Vec<File>,
    ) -> Result<()> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound && depth == 0 => return Ok(()),
            other => other.with_context(|| format!("cannot read the folder {}", shown(dir)))?,
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read the folder {}", shown(dir)))?;
            *left = left.checked_sub(1).with_context(|| {
                format!(
                    "{} holds more than {MAX_ENTRIES} files; is it a models folder?",
                    shown(&self.root)
                )
            })?;
            let file_name = entry.file_name();
            // Only what a name on the command line can say.
            let Some(name) = file_name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            let name = format!("{prefix}{name}");
            // A link to a file counts as the file; a link to a folder could lead in a circle.
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && depth < MAX_DEPTH {
                self.walk(&entry.path(), &format!("{name}/"), depth + 1, left, files)?;
            } else if let Ok(facts) = fs::metadata(entry.path())
                && facts.is_file()
            {
                files.push(File {
                    name,
                    path: entry.path(),
                    bytes: facts.len(),
                    modified: facts.modified().ok(),
                });
            }
        }
        Ok(())
    }

    /// Where a file of a repository lies. `path` was checked by [`check_path`].
    #[cfg(feature = "pull")]
    pub fn place(&self, repo: &str, path: &str) -> PathBuf {
        self.root.join(repo).join(path)
    }
}

impl Contents {
    /// The model that `name` says: its path below the folder, `OWNER/REPO[:QUANT]`, or a file name that only
    /// one has. `None` if none fits.
    ///
    /// # Errors
    /// More than one fits.
    pub fn find(&self, name: &str) -> Result<Option<&Group<File>>> {
        if let Some(model) = self.models.iter().find(|model| model.name == name) {
            return Ok(Some(model));
        }
        if let Ok(reference) = Reference::without_scheme(name)
            && let Some(model) = self.of_repo(&reference)?
        {
            return Ok(Some(model));
        }
        let named = |model: &&Group<File>| {
            let file = model.name.rsplit('/').next().unwrap_or(&model.name);
            file == name || file.strip_suffix(".gguf") == Some(name)
        };
        let found: Vec<_> = self.models.iter().filter(named).collect();
        match found[..] {
            [] => Ok(None),
            [model] => Ok(Some(model)),
            _ => bail!(
                "more than one model is called '{}': {}",
                escape_control(name),
                list(found)
            ),
        }
    }

    /// The downloaded model that a reference means.
    fn of_repo(&self, reference: &Reference) -> Result<Option<&Group<File>>> {
        let prefix = format!("{}/", reference.repo);
        let mut models = self.models.iter();
        if let Want::File(file) = &reference.want {
            let name = prefix + file;
            return Ok(models.find(|model| {
                model.name == name || model.files.iter().any(|file| file.name == name)
            }));
        }
        // The repository's name may hold that of a quantization.
        let local: Vec<Group<&Group<File>>> = models
            .filter_map(|model| {
                let name = model.name.strip_prefix(&prefix)?.to_owned();
                Some(Group {
                    name,
                    files: vec![model],
                    n_missing: 0,
                })
            })
            .collect();
        let quant = match &reference.want {
            Want::Quant(quant) => Some(quant.as_str()),
            _ => None,
        };
        match names::choose(&local, quant) {
            Ok(group) => Ok(group.files.first().copied()),
            Err(NoChoice::Missing) => Ok(None),
            Err(NoChoice::Ambiguous) => bail!(
                "more than one model in {} could be '{}': {}",
                reference.repo,
                reference,
                list(local.iter().flat_map(|group| group.files.iter().copied()))
            ),
        }
    }

    /// The shortest name that finds `model`.
    pub fn name_of<'a>(&self, model: &'a Group<File>) -> std::borrow::Cow<'a, str> {
        let mut parts = model.name.splitn(3, '/');
        if let (Some(owner), Some(repo), Some(rest)) = (parts.next(), parts.next(), parts.next()) {
            let local = Group::<()> {
                name: rest.to_owned(),
                files: Vec::new(),
                n_missing: 0,
            };
            for quant in QUANTS.iter().filter(|quant| local.is_quant(quant)) {
                let name = format!("{owner}/{repo}:{quant}");
                if let Ok(Some(found)) = self.find(&name)
                    && found.name == model.name
                {
                    return name.into();
                }
            }
        }
        model.name.as_str().into()
    }
}

/// What repositories call their quantizations, the longer names first.
const QUANTS: [&str; 31] = [
    "UD-Q4_K_XL",
    "MXFP4_MOE",
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ2_M",
    "IQ3_XXS",
    "IQ3_XS",
    "IQ3_S",
    "IQ3_M",
    "IQ4_XS",
    "IQ4_NL",
    "Q2_K_S",
    "Q2_K",
    "Q3_K_S",
    "Q3_K_M",
    "Q3_K_L",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "F16",
    "BF16",
];

fn list<'a>(models: impl IntoIterator<Item = &'a Group<File>>) -> String {
    let names = models
        .into_iter()
        .map(|model| escape_control(&model.name).into_owned());
    names.collect::<Vec<_>>().join(", ")
}

/// A path, safe to print.
pub fn shown(path: &Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}

/// The file that `-m` means: a path, else a model of the folder. A name that is neither stays a path, so that
/// opening it says what is wrong.
pub fn resolve(given: &Path, models_dir: Option<&Path>) -> Result<PathBuf> {
    let Some(name) = given.to_str().filter(|_| !given.exists()) else {
        return Ok(given.to_owned());
    };
    let reference = match name.starts_with(SCHEME) {
        true => Some(name.parse::<Reference>().map_err(|error| anyhow!(error))?),
        false => None,
    };
    // A reference without its scheme, or a path below the models folder.
    let local = name.strip_prefix(SCHEME).unwrap_or(name);
    if reference.is_none() && check_path(&local.replace([':', '@'], "-")).is_err() {
        return Ok(given.to_owned());
    }
    let store = match (Store::open(models_dir), &reference) {
        (Err(_), None) => return Ok(given.to_owned()),
        (store, _) => store?,
    };
    let contents = match (store.contents(), &reference) {
        (Err(_), None) => return Ok(given.to_owned()),
        (contents, _) => contents?,
    };
    if let Some(model) = contents.find(local)?
        && let Some(first) = model.files.first()
    {
        return Ok(first.path.clone());
    }
    match reference {
        Some(reference) => bail!(
            "{reference} has not been downloaded to {}; fetch it with: rocmforge pull {reference}",
            shown(store.root())
        ),
        None => match Reference::without_scheme(name) {
            Ok(reference) if !name.ends_with(".gguf") => bail!(
                "No such file or model: '{name}' is neither a path nor in {}; fetch it with: rocmforge pull {reference}",
                shown(store.root())
            ),
            _ => Ok(given.to_owned()),
        },
    }
}
