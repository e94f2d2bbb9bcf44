//! docs/MODELS.md is what the registry and the models of the tests say.

use std::process::Command;

#[test]
fn the_committed_table_of_models_is_current() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["models-md", "--check"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
