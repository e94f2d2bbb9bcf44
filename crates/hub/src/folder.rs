//! The models folder: files at `OWNER/REPO/FILE.gguf` below one root. Lists them and finds models by name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::Error;
use crate::names::{self, ModelFiles, NoChoice, check_path};
use crate::reference::{Reference, SCHEME, Selection};
use crate::{LOCK_NAME, dirs};

/// Suffix of incomplete files.
pub(crate) const PART_SUFFIX: &str = ".part";

/// Most entries to read, so that a wrong folder such as a whole disk ends with an error.
const MAX_ENTRIES: usize = 20_000;
const MAX_DEPTH: usize = 10;

/// The models folder. It need not exist.
#[derive(Clone, Debug)]
pub struct ModelsFolder {
    root: PathBuf,
}

/// A file of the models folder.
#[derive(Clone, Debug)]
pub struct LocalFile {
    /// Path below the root, with slashes.
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
    pub modified: Option<SystemTime>,
}

/// A model of the models folder.
pub type LocalModel = ModelFiles<LocalFile>;

/// The contents of the models folder.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Sorted by name.
    pub models: Vec<LocalModel>,
    /// Unfinished downloads, sorted by name.
    pub incomplete: Vec<LocalFile>,
}

impl ModelsFolder {
    /// Opens the folder `dir`, or the user's default one: `$XDG_DATA_HOME/rocmforge/models`.
    ///
    /// # Errors
    /// No folder is given and HOME is not set.
    pub fn open(dir: Option<&Path>) -> Result<ModelsFolder, Error> {
        let root = match dir {
            Some(dir) => dir.to_owned(),
            None => dirs::data().ok_or(Error::NoHome)?.join("models"),
        };
        Ok(ModelsFolder { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Lists the folder. A folder that does not exist is empty.
    ///
    /// # Errors
    /// A folder cannot be read, or there are more than 20,000 entries.
    pub fn list(&self) -> Result<Listing, Error> {
        let mut files = Vec::new();
        let mut left = MAX_ENTRIES;
        self.walk(&self.root, "", 0, &mut left, &mut files)?;
        let is_part = |file: &LocalFile| file.name.ends_with(PART_SUFFIX);
        let (mut incomplete, files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_part);
        incomplete.sort_by(|a, b| a.name.cmp(&b.name));
        let models = files.into_iter().filter(|file| names::is_model(&file.name));
        Ok(Listing {
            models: names::group(models.map(|file| (file.name.clone(), file))),
            incomplete,
        })
    }

    fn walk(
        &self,
        dir: &Path,
        prefix: &str,
        depth: usize,
        left: &mut usize,
        files: &mut Vec<LocalFile>,
    ) -> Result<(), Error> {
        const READ: &str = "read the folder";
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound && depth == 0 => return Ok(()),
            other => other.map_err(Error::io(READ, dir))?,
        };
        for entry in entries {
            let entry = entry.map_err(Error::io(READ, dir))?;
            *left = left.checked_sub(1).ok_or_else(|| Error::TooManyFiles {
                root: self.root.clone(),
                limit: MAX_ENTRIES,
            })?;
            let file_name = entry.file_name();
            // Other names could not be given on a command line.
            let Some(name) = file_name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            let name = format!("{prefix}{name}");
            // Links to files are followed; links to folders are not, as they could form a loop.
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && depth < MAX_DEPTH {
                self.walk(&entry.path(), &format!("{name}/"), depth + 1, left, files)?;
            } else if let Ok(facts) = fs::metadata(entry.path())
                && facts.is_file()
            {
                files.push(LocalFile {
                    name,
                    path: entry.path(),
                    bytes: facts.len(),
                    modified: facts.modified().ok(),
                });
            }
        }
        Ok(())
    }

    /// Removes a file, and the folders above it that this leaves empty.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, file: &LocalFile) -> Result<(), Error> {
        fs::remove_file(&file.path).map_err(Error::io("remove", &file.path))?;
        let mut parent = file.path.parent();
        while let Some(dir) = parent
            && dir.starts_with(&self.root)
            && dir != self.root
            && remove_if_empty(dir)
        {
            parent = dir.parent();
        }
        Ok(())
    }

    /// Returns the path of a repository's file; `path` was checked by [`check_path`].
    #[cfg(feature = "download")]
    pub(crate) fn path_of(&self, repo: &str, path: &str) -> PathBuf {
        self.root.join(repo).join(path)
    }
}

/// Removes a folder that holds at most a pull's lock file; returns whether it did.
fn remove_if_empty(dir: &Path) -> bool {
    let only_lock = fs::read_dir(dir).is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOCK_NAME))
    });
    if !only_lock {
        return false;
    }
    let _ = fs::remove_file(dir.join(LOCK_NAME));
    fs::remove_dir(dir).is_ok()
}

impl Listing {
    /// Finds the model that `name` means: a path below the folder, `OWNER/REPO[:QUANT]`, or a unique file name, with
    /// or without `.gguf`.
    ///
    /// # Errors
    /// More than one model matches.
    pub fn find(&self, name: &str) -> Result<Option<&LocalModel>, Error> {
        if let Some(model) = self.models.iter().find(|model| model.name == name) {
            return Ok(Some(model));
        }
        if let Ok(reference) = Reference::without_scheme(name)
            && let Some(model) = self.find_in_repo(&reference)?
        {
            return Ok(Some(model));
        }
        let named = |model: &&LocalModel| {
            let file = model.name.rsplit('/').next().unwrap_or(&model.name);
            file == name || file.strip_suffix(".gguf") == Some(name)
        };
        let found: Vec<_> = self.models.iter().filter(named).collect();
        match found[..] {
            [] => Ok(None),
            [model] => Ok(Some(model)),
            _ => Err(ambiguous(name, found)),
        }
    }

    /// Finds the files that `name` means: an unfinished download, or a model as by [`Listing::find`].
    ///
    /// # Errors
    /// More than one model matches.
    pub fn find_files(&self, name: &str) -> Result<Option<Vec<&LocalFile>>, Error> {
        if let Some(file) = self.incomplete.iter().find(|file| file.name == name) {
            return Ok(Some(vec![file]));
        }
        Ok(self.find(name)?.map(|model| model.files.iter().collect()))
    }

    /// Finds the downloaded model of a reference.
    fn find_in_repo(&self, reference: &Reference) -> Result<Option<&LocalModel>, Error> {
        let prefix = format!("{}/", reference.repo);
        let mut models = self.models.iter();
        let quant = match &reference.selection {
            Selection::File(file) => {
                let name = prefix + file;
                return Ok(models.find(|model| {
                    model.name == name || model.files.iter().any(|file| file.name == name)
                }));
            }
            Selection::Quant(quant) => Some(quant.as_str()),
            Selection::Default => None,
        };
        // Without the prefix: the repository's name may contain that of a quantization.
        let local: Vec<ModelFiles<&LocalModel>> = models
            .filter_map(|model| {
                let name = model.name.strip_prefix(&prefix)?.to_owned();
                Some(ModelFiles {
                    name,
                    files: vec![model],
                    n_missing: 0,
                })
            })
            .collect();
        match names::choose(&local, quant) {
            Ok(group) => Ok(group.files.first().copied()),
            Err(NoChoice::Missing) => Ok(None),
            Err(NoChoice::Ambiguous) => {
                let models = local.iter().flat_map(|group| group.files.iter().copied());
                Err(ambiguous(&reference.to_string(), models))
            }
        }
    }

    /// Returns the shortest name that finds each model, in the order of `models`.
    pub fn names(&self) -> Vec<Cow<'_, str>> {
        let quants: Vec<Vec<&str>> = self.models.iter().map(quants_of).collect();
        // Models of each repository and quantization.
        let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
        for (model, quants) in self.models.iter().zip(&quants) {
            for quant in quants {
                *counts.entry((repo_of(model), quant)).or_default() += 1;
            }
        }
        let name = |(model, quants): (&'_ LocalModel, &Vec<&str>)| {
            let repo = repo_of(model);
            let unique = quants.iter().find(|quant| counts[&(repo, **quant)] == 1)?;
            let name = format!("{repo}:{unique}");
            let reference = Reference::without_scheme(&name).ok()?;
            let wanted = Selection::Quant((*unique).to_owned());
            (reference.repo == repo && reference.selection == wanted).then_some(name)
        };
        let models = self.models.iter().zip(&quants);
        models
            .map(|pair| match name(pair) {
                Some(name) => Cow::Owned(name),
                None => Cow::Borrowed(pair.0.name.as_str()),
            })
            .collect()
    }
}

/// `OWNER/REPO` of a model; empty for one that is not in a repository's folder.
fn repo_of(model: &LocalModel) -> &str {
    let mut slashes = model.name.match_indices('/');
    match slashes.nth(1) {
        Some((end, _)) => &model.name[..end],
        None => "",
    }
}

/// The quantizations that a model's name states, in the order of [`QUANTS`].
fn quants_of(model: &LocalModel) -> Vec<&'static str> {
    let repo = repo_of(model);
    if repo.is_empty() {
        return Vec::new();
    }
    let local = ModelFiles::<()> {
        name: model.name[repo.len() + 1..].to_owned(),
        files: Vec::new(),
        n_missing: 0,
    };
    let quants = QUANTS.into_iter();
    quants.filter(|quant| local.is_quant(quant)).collect()
}

/// Quantization names in repositories, longer ones first.
const QUANTS: [&str; 36] = [
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
    "NVFP4",
    "TQ1_0",
    "TQ2_0",
    "Q1_0",
    "Q2_0",
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

fn ambiguous<'a>(name: &str, models: impl IntoIterator<Item = &'a LocalModel>) -> Error {
    Error::AmbiguousName {
        name: name.to_owned(),
        models: models.into_iter().map(|model| model.name.clone()).collect(),
    }
}

/// Resolves what a user gave as a model: an existing path, else an `hf:` reference or a name in the models folder
/// (`models_dir`, else the user's default one). Anything else is returned as a path, so that opening it reports the
/// problem.
///
/// # Errors
/// The reference is malformed or not downloaded, the name is ambiguous, or the folder cannot be read.
pub fn resolve(given: &Path, models_dir: Option<&Path>) -> Result<PathBuf, Error> {
    let Some(name) = given.to_str().filter(|_| !given.exists()) else {
        return Ok(given.to_owned());
    };
    if let Some(plain) = name.strip_prefix(SCHEME) {
        let reference: Reference = name.parse()?;
        let folder = ModelsFolder::open(models_dir)?;
        return match find_path(&folder.list()?, plain)? {
            Some(path) => Ok(path),
            None => Err(Error::NotDownloaded {
                reference,
                root: folder.root,
            }),
        };
    }
    let as_path = || Ok(given.to_owned());
    if check_path(&name.replace([':', '@'], "-")).is_err() {
        return as_path();
    }
    // A name that needs no models folder must not fail for the lack of one.
    let Ok(folder) = ModelsFolder::open(models_dir) else {
        return as_path();
    };
    let Ok(listing) = folder.list() else {
        return as_path();
    };
    if let Some(path) = find_path(&listing, name)? {
        return Ok(path);
    }
    match Reference::without_scheme(name) {
        Ok(reference) if !name.ends_with(".gguf") => Err(Error::NoSuchModel {
            given: given.to_owned(),
            root: folder.root,
            reference: reference.into(),
        }),
        _ => as_path(),
    }
}

fn find_path(listing: &Listing, name: &str) -> Result<Option<PathBuf>, Error> {
    let model = listing.find(name)?;
    Ok(model
        .and_then(|model| model.files.first())
        .map(|file| file.path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a folder with these files.
    fn folder(files: &[&str]) -> (tempfile::TempDir, ModelsFolder) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "GGUF").unwrap();
        }
        let folder = ModelsFolder::open(Some(dir.path())).unwrap();
        (dir, folder)
    }

    #[test]
    fn finds_models_by_name() {
        let (_dir, folder) = folder(&[
            "o/r/m-Q4_K_M.gguf",
            "o/r/m-Q8_0.gguf",
            "o/r/mmproj-F16.gguf",
            "p/s/big-00001-of-00002.gguf",
            "p/s/big-00002-of-00002.gguf",
            "q/t/m-Q8_0.gguf",
        ]);
        let listing = folder.list().unwrap();
        assert_eq!(listing.models.len(), 4);
        let found = |name: &str| {
            let model = listing.find(name).ok()?;
            Some(model?.name.as_str())
        };
        for (name, expected) in [
            ("o/r", Some("o/r/m-Q4_K_M.gguf")),
            ("o/r:q8_0", Some("o/r/m-Q8_0.gguf")),
            ("o/r/m-Q8_0.gguf", Some("o/r/m-Q8_0.gguf")),
            ("m-Q4_K_M", Some("o/r/m-Q4_K_M.gguf")),
            ("p/s", Some("p/s/big-00001-of-00002.gguf")),
            ("o/r:Q2_K", None),
            // Ambiguous.
            ("m-Q8_0", None),
        ] {
            assert_eq!(found(name), expected, "{name}");
        }
        assert!(matches!(
            listing.find("m-Q8_0"),
            Err(Error::AmbiguousName { models, .. }) if models.len() == 2
        ));
    }

    /// Would take minutes if each model were looked up among all others.
    #[test]
    fn names_many_models() {
        let model = |name: String| LocalModel {
            name,
            files: Vec::new(),
            n_missing: 0,
        };
        let names = (0..20_000).map(|i| model(format!("o/r/m{i:05}-Q4_0.gguf")));
        let others = ["p/s/m-BF16.gguf", "p/s/m-Q4_0.gguf", "x.gguf"];
        let listing = Listing {
            models: names
                .chain(others.map(|name| model(name.to_owned())))
                .collect(),
            incomplete: Vec::new(),
        };
        let names = listing.names();
        assert_eq!(names[19_999], "o/r/m19999-Q4_0.gguf");
        assert_eq!(names[20_000..], ["p/s:BF16", "p/s:Q4_0", "x.gguf"]);
        for name in &names[19_998..] {
            let found = listing.find(name).unwrap().unwrap();
            let at = names.iter().position(|other| other == name).unwrap();
            assert_eq!(found.name, listing.models[at].name);
        }
    }

    #[test]
    fn resolves_paths_names_and_references() {
        let (dir, folder) = folder(&["o/r/m-Q4_K_M.gguf"]);
        let path = dir.path().join("o/r/m-Q4_K_M.gguf");
        let resolved = |name: &str| resolve(Path::new(name), Some(folder.root()));
        for name in [path.to_str().unwrap(), "o/r", "hf:o/r", "hf:o/r:Q4_K_M"] {
            assert_eq!(resolved(name).unwrap(), path, "{name}");
        }
        assert!(matches!(
            resolved("hf:o/r:Q8_0"),
            Err(Error::NotDownloaded { .. })
        ));
        assert!(matches!(resolved("o/x"), Err(Error::NoSuchModel { .. })));
        assert!(matches!(resolved("hf:.."), Err(Error::BadReference(_))));
        for path in ["missing.gguf", "/nowhere/m.gguf", "../o/r"] {
            assert_eq!(resolved(path).unwrap(), Path::new(path));
        }
    }

    #[test]
    fn removes_files_and_empty_folders() {
        let (dir, folder) = folder(&["o/r/a.gguf", "o/r/b.gguf", "o/r/.pull.lock"]);
        let listing = folder.list().unwrap();
        folder.remove(&listing.models[0].files[0]).unwrap();
        assert!(dir.path().join("o/r/b.gguf").exists());
        folder.remove(&listing.models[1].files[0]).unwrap();
        assert!(!dir.path().join("o").exists() && dir.path().exists());
    }
}
