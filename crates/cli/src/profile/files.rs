//! The files that `profile` writes. Each appears only when it is complete.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rocmforge_gguf::escape_control;
use rocmforge_gguf::{Existing, NewFile};
use rocmforge_profile::schema::Profile;
use rocmforge_report::{flamegraph, page, trace};

use crate::args::ProfileArgs;
use crate::output;

/// Writes a profile in a format.
type Render = fn(&Profile, &mut dyn Write) -> io::Result<()>;

/// Requested files, not written yet.
pub struct Files<'a> {
    all: Vec<(NewFile, &'a Path, Render)>,
}

impl<'a> Files<'a> {
    /// Creates the files, to report unwritable folders before the work.
    pub fn create(args: &'a ProfileArgs) -> Result<Files<'a>> {
        let wanted: [(&Option<PathBuf>, Render); 3] = [
            (&args.trace, |profile, out| trace::write(profile, out)),
            (&args.html, |profile, out| page::write(profile, out)),
            (&args.flamegraph, flame_graph(args.flamegraph.as_deref())),
        ];
        let mut all = Vec::new();
        for (path, render) in wanted {
            if let Some(path) = path {
                let file = NewFile::create(path, Existing::Replace);
                all.push((file.with_context(|| cannot(path))?, path.as_path(), render));
            }
        }
        Ok(Files { all })
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn write(self, profile: &Profile) -> Result<()> {
        for (mut file, path, render) in self.all {
            let mut buffered = BufWriter::new(&mut file);
            let written = render(profile, &mut buffered).and_then(|()| buffered.flush());
            drop(buffered);
            written
                .and_then(|()| file.commit())
                .with_context(|| cannot(path))?;
            output::note(&format!("wrote {}", shown(path)));
        }
        Ok(())
    }
}

/// Returns the format by the file's name.
fn flame_graph(path: Option<&Path>) -> Render {
    match path.and_then(Path::extension) {
        Some(end) if end == "folded" => |profile, out| flamegraph::collapsed(profile, out),
        _ => |profile, out| flamegraph::write(profile, out),
    }
}

fn shown(path: &Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}

fn cannot(path: &Path) -> String {
    format!("cannot write '{}'", shown(path))
}
