//! `cargo xtask shift-golden`: what llama.cpp goes on with in contexts that shift, which the tests of the engine compare
//! with. Its context is one that it does not round up to another size of its own.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::gen_model::{self, prompt};

const N_CTX: usize = 64;
const N_SINKS: usize = 4;
/// What the engine forgets of such a context with pages of 16 tokens.
const N_FORGOTTEN: usize = 32;
/// Three shifts.
const N: usize = 140;

/// Random models whose cache llama.cpp moves as it should: all rotate all layers, and none scales its rotations, which
/// llama.cpp would do again with each move.
const RANDOM: [&str; 5] = ["llama", "qwen2", "qwen3", "gemma2", "gemma3"];

/// "Once upon a time" and what forge-mini goes on with, up to where its choices become clear.
#[rustfmt::skip]
const STORY: [u32; 62] = [
    594, 677, 265, 507, 20, 547, 417, 265, 1455, 671, 413, 1630, 22, 1252, 591, 327,
    326, 265, 768, 370, 265, 1435, 22, 478, 327, 898, 316, 486, 300, 1224, 280, 1062,
    22, 1630, 578, 265, 1014, 1724, 20, 653, 324, 1663, 407, 265, 1014, 1773, 343, 530,
    660, 20, 1630, 568, 300, 280, 820, 1053, 22, 358, 1496, 1530, 337, 2274,
];

/// Writes the engine's fixture.
pub(crate) fn write(python: &Path) -> Result<()> {
    let folder = crate::root().join("target/gen-model");
    let forge_mini = crate::root().join("models/forge-mini-Q4_K_M.gguf");
    let mut cases = vec![("forge-mini", forge_mini, STORY.to_vec(), "F16")];
    for name in RANDOM {
        let path = folder.join(format!("{name}-F32.gguf"));
        std::fs::create_dir_all(&folder)?;
        gen_model::write(name, "F32", &path)?;
        cases.push((name, path, prompt(40, 512), "F32"));
    }
    let mut json = String::from("{\n");
    for (i, (name, path, prompt, kv_type)) in cases.iter().enumerate() {
        let ids: Vec<String> = prompt.iter().map(u32::to_string).collect();
        let ids = ids.join(",");
        let numbers = [N, N_CTX, N_SINKS, N_FORGOTTEN].map(|n| n.to_string());
        let output = Command::new(python)
            .arg(crate::root().join("xtask/src/llama_shift.py"))
            .arg(path)
            .arg(&ids)
            .args(numbers)
            .arg(kv_type)
            .output()
            .with_context(|| format!("running {}", python.display()))?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let found = String::from_utf8(output.stdout)?;
        let comma = if i == 0 { "" } else { ",\n" };
        write!(
            json,
            "{comma}\"{name}\": {{\"prompt_ids\":[{ids}],\"n_ctx\":{N_CTX},\"kv_type\":\"{kv_type}\",\"llama_cpp\":{}}}",
            found.trim()
        )?;
    }
    json.push_str("\n}\n");
    let path = crate::root().join("crates/engine/tests/fixtures/context_shift.json");
    std::fs::write(&path, json).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
