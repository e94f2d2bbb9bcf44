//! `rocmforge pull`: brings a model from a hub into the models folder.

use std::env;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rocmforge_gguf::{Gguf, LoadMode};

use super::LOCK_NAME;
use super::api::{self, Plan, RemoteFile};
use super::client::{Client, ClientConfig, Token};
use super::download::{self, Download};
use super::failure::Patience;
use super::reference::Reference;
use super::store::{Store, shown};
use crate::args::PullArgs;
use crate::exit::{self, usage};
use crate::output::{self, Out, size};

/// Room that must be left on the disk.
const SPARE_BYTES: u64 = 16 << 20;

/// Where users of other programs have their token.
const OTHER_TOKEN: &str = "HF_TOKEN";

pub fn run(args: &PullArgs) -> Result<()> {
    let reference = &args.model;
    let store = Store::open(args.store.models_dir.as_deref())?;
    let client = Client::new(ClientConfig {
        endpoint: &args.endpoint,
        token: token(args)?,
        ca_file: args.ca_file.as_deref(),
        timeout: Duration::from_secs(args.timeout),
    })?;
    let mut patience = Patience::new(args.retries);
    let plan = api::plan(&client, reference, &mut patience)?;
    let files: Vec<(PathBuf, &RemoteFile)> = plan
        .model
        .files
        .iter()
        .map(|file| (store.place(&reference.repo, &file.path), file))
        .collect();
    let dir = store.place(&reference.repo, "");
    for (to, _) in &files {
        let parent = to.parent().unwrap_or(&dir);
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", shown(parent)))?;
    }
    let _lock = Lock::take(&dir)?;
    let missing = missing(&files)?;
    check_room(&dir, &missing)?;
    stop_on_interrupt(reference)?;
    for (to, file) in missing {
        fetch(&client, reference, &plan, file, to, args.retries)?;
    }
    let (first, _) = files.first().context("a model has at least one file")?;
    check_opens(first)?;
    let mut out = Out::new();
    out.line(&first.to_string_lossy())?;
    out.finish()
}

fn token(args: &PullArgs) -> Result<Option<Token>> {
    if args.token.is_some() {
        return Ok(args.token.clone());
    }
    match env::var(OTHER_TOKEN) {
        Ok(text) if !text.trim().is_empty() => {
            let token = text.parse();
            Ok(Some(token.map_err(|error| {
                usage(format!("{OTHER_TOKEN}: {error}"))
            })?))
        }
        _ => Ok(None),
    }
}

/// The files that are not there yet.
fn missing<'a>(files: &'a [(PathBuf, &'a RemoteFile)]) -> Result<Vec<(&'a Path, &'a RemoteFile)>> {
    let mut missing = Vec::new();
    for (to, file) in files {
        if download::is_there(to, file)? {
            output::note(&format!("{} is there already", file.path));
        } else {
            missing.push((to.as_path(), *file));
        }
    }
    Ok(missing)
}

/// Refuses what would not fit on the disk.
fn check_room(dir: &Path, missing: &[(&Path, &RemoteFile)]) -> Result<()> {
    let mut needed = 0u64;
    for (to, file) in missing {
        let part = fs::metadata(download::part_path(to, file));
        let have = part.map_or(0, |facts| facts.len().min(file.bytes));
        needed = needed.saturating_add(file.bytes - have);
    }
    let disk = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot tell how much room {} has", shown(dir)))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if needed > 0 && needed.saturating_add(SPARE_BYTES) > free {
        bail!(
            "not enough room: {} are needed, {} are free in {}; make room or choose another folder with --models-dir",
            size(needed),
            size(free),
            shown(dir)
        );
    }
    Ok(())
}

fn fetch(
    client: &Client,
    reference: &Reference,
    plan: &Plan,
    file: &RemoteFile,
    to: &Path,
    retries: u32,
) -> Result<()> {
    output::note(&format!(
        "{}/{} ({})",
        reference.repo,
        rocmforge_gguf::escape_control(&file.path),
        size(file.bytes)
    ));
    let download = Download {
        client,
        repo: &reference.repo,
        from: api::file_path(&reference.repo, &plan.revision, &file.path),
        file,
        to,
    };
    download.run(&mut Patience::new(retries))
}

/// Ctrl-C ends the program at once: a part is good at every moment.
fn stop_on_interrupt(reference: &Reference) -> Result<()> {
    let note = format!("\nstopped; rocmforge pull {reference} goes on from here");
    ctrlc::set_handler(move || {
        output::note(&note);
        std::process::exit(i32::from(exit::INTERRUPTED));
    })
    .context("cannot take over Ctrl-C")
}

/// The file is what the hub has; whether this program can read it is another question.
fn check_opens(path: &Path) -> Result<()> {
    match Gguf::open(path, LoadMode::Mmap) {
        Ok(_) => Ok(()),
        Err(error) => Err(anyhow!(error).context(format!(
            "{} was downloaded and is as the hub has it, but cannot be opened",
            shown(path)
        ))),
    }
}

/// Only one pull at a time writes into the folder of a repository.
struct Lock {
    _file: File,
}

impl Lock {
    fn take(dir: &Path) -> Result<Lock> {
        let path = dir.join(LOCK_NAME);
        let io = || format!("cannot lock {}", shown(&path));
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .with_context(io)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => bail!(
                    "another rocmforge pull is writing to {}; wait for it",
                    shown(dir)
                ),
                Err(TryLockError::Error(error)) => return Err(error).with_context(io),
            }
            // Somebody may have removed the folder's files between opening and locking.
            let here = fs::metadata(&path).ok().map(|facts| facts.ino());
            if here == Some(file.metadata().with_context(io)?.ino()) {
                return Ok(Lock { _file: file });
            }
        }
    }
}
