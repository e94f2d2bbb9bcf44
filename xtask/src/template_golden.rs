//! `cargo xtask template-golden`: records what Jinja2 makes of small templates, for the tests of chat templates.

use std::path::Path;

use anyhow::Result;

use crate::python;

const SCRIPT: &str = include_str!("template_snippets.py");

/// Writes the renderings to the fixtures of the text crate.
pub(crate) fn write(python: &Path) -> Result<()> {
    let rows = python::run(python, SCRIPT, [""; 0])?;
    python::write_fixture("crates/text/tests/fixtures/snippets.json", rows)
}
