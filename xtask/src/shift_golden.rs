//! `cargo xtask shift-golden`: records what llama.cpp generates past a context shift, for the engine's tests.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::gen_model::{self, prompt};
use crate::python;

const SCRIPT: &str = include_str!("llama_shift.py");

/// A size that llama.cpp does not round up.
const N_CTX: usize = 64;
const N_SINKS: usize = 4;
/// Tokens that the engine drops per shift of such a context, with pages of 16 tokens.
const N_FORGOTTEN: usize = 32;
/// Tokens to generate: enough for three shifts.
const N: usize = 140;

/// Random models whose KV cache llama.cpp shifts correctly: RoPE in all layers, and no RoPE scaling, which llama.cpp
/// would apply again with each shift.
const RANDOM: [&str; 5] = ["llama", "qwen2", "qwen3", "gemma2", "gemma3"];

/// "Once upon a time" and forge-mini's continuation, up to where its choices become clear.
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
        let mut arguments = vec![path.clone().into_os_string(), ids.clone().into()];
        arguments.extend([N, N_CTX, N_SINKS, N_FORGOTTEN].map(|n| n.to_string().into()));
        arguments.push(kv_type.into());
        let found = String::from_utf8(python::run(python, SCRIPT, arguments)?)?;
        let comma = if i == 0 { "" } else { ",\n" };
        write!(
            json,
            "{comma}\"{name}\": {{\"prompt_ids\":[{ids}],\"n_ctx\":{N_CTX},\"kv_type\":\"{kv_type}\",\"llama_cpp\":{}}}",
            found.trim()
        )?;
    }
    json.push_str("\n}\n");
    python::write_fixture("crates/engine/tests/fixtures/context_shift.json", json)
}
