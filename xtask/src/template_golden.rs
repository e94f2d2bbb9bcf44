//! `cargo xtask template-golden`: records what Jinja2 makes of small templates, and of those that llama.cpp ships, for the
//! tests of chat templates.

use std::path::Path;

use anyhow::Result;

use crate::python;

const SNIPPETS: &str = include_str!("template_snippets.py");
const RELEASED: &str = include_str!("template_released.py");

/// Writes the renderings of small templates to the fixtures of the text crate; of those in `folder`, hashes.
pub(crate) fn write(folder: Option<&Path>, python: &Path) -> Result<()> {
    let rows = python::run(python, SNIPPETS, [""; 0])?;
    python::write_fixture("crates/text/tests/fixtures/snippets.json", rows)?;
    if let Some(folder) = folder {
        let rows = python::run(python, RELEASED, [folder])?;
        python::write_fixture("crates/text/tests/fixtures/released.json", rows)?;
    }
    Ok(())
}
