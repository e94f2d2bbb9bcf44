//! Commands on a model whose layers keep states of sequences.

use std::fs;
use std::path::PathBuf;

use rocmforge_gguf::{GgmlType, Gguf, LoadMode, Writer};
use rocmforge_quantize::imatrix::Imatrix;
use rocmforge_testkit::models::families;
use rocmforge_testkit::sweep::first;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::run;
use crate::serve::Served;

/// Architectures with a gated delta net and with Mamba-2.
const MODELS: [&str; 2] = ["qwen35", "granitehybrid"];

/// A projection of a recurrent layer.
const PROJECTION: &str = "blk.0.ssm_out.weight";

struct Folder(TempDir);

impl Folder {
    fn with(name: &str) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        let model = families::model(name, GgmlType::F16).unwrap().unwrap();
        fs::write(folder.path("model.gguf"), model.to_vec().unwrap()).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_string()
    }

    fn open(&self, name: &str) -> Gguf {
        Gguf::open(&self.path(name), LoadMode::Mmap).unwrap()
    }

    fn ids(&self, model: &str, more: &[&str]) -> Value {
        let model = self.name(model);
        let args = [
            "generate", "-m", &model, "-p", "One two", "-n", "12", "--json",
        ];
        run(&[&args[..], &["--temp", "0", "--ignore-eos"], more].concat()).json()["ids"].clone()
    }
}

/// Adapters change recurrent layers through their projections.
#[test]
fn an_adapter_changes_a_recurrent_projection() {
    for name in MODELS {
        let folder = Folder::with(name);
        let dims = folder
            .open("model.gguf")
            .tensor(PROJECTION)
            .unwrap()
            .dims
            .clone();
        let mut writer = Writer::new(name);
        writer.set("general.type", "adapter");
        writer.set("adapter.type", "lora");
        writer.set("adapter.lora.alpha", 2f32);
        for (suffix, dims) in [("lora_a", [dims[0], 2]), ("lora_b", [2, dims[1]])] {
            let values = (0..dims[0] * dims[1]).map(|i| ((i * 37 % 11) as f32 - 5.0) / 5.0);
            let values: Vec<f32> = values.collect();
            let tensor = format!("{PROJECTION}.{suffix}");
            writer
                .add_tensor_f32(&tensor, &dims, GgmlType::F32, &values)
                .unwrap();
        }
        fs::write(folder.path("adapter.gguf"), writer.to_vec().unwrap()).unwrap();
        let adapter = folder.name("adapter.gguf");
        let plain = folder.ids("model.gguf", &[]);
        assert_ne!(
            folder.ids("model.gguf", &["--lora", &adapter]),
            plain,
            "{name}"
        );
        let nothing = ["--lora-scaled", &format!("{adapter}:0")];
        assert_eq!(folder.ids("model.gguf", &nothing), plain, "{name}");
    }
}

/// The importance matrix has the inputs of recurrent projections, and their convolutions and rates stay exact.
#[test]
fn quantizes_recurrent_layers_by_importance() {
    for name in MODELS {
        let folder = Folder::with(name);
        fs::write(folder.path("text"), "one two three ".repeat(60)).unwrap();
        let (model, text, imatrix) = (
            folder.name("model.gguf"),
            folder.name("text"),
            folder.name("imatrix.gguf"),
        );
        let args = [
            "imatrix", "-m", &model, "-f", &text, "-o", &imatrix, "--ctx", "64",
        ];
        run(&args).ok();
        let sums = Imatrix::open(&folder.path("imatrix.gguf")).unwrap();
        let entry = &sums.entries[PROJECTION];
        let before = folder.open("model.gguf");
        let n_in = before.tensor(PROJECTION).unwrap().row_len();
        assert_eq!(entry.sums.len() as u64, n_in, "{name}");
        assert!(entry.sums.iter().any(|&sum| sum > 0.0), "{name}");

        let quantized = folder.name("q8.gguf");
        let args = [
            "quantize",
            "--imatrix",
            &imatrix,
            &model,
            &quantized,
            "Q8_0",
        ];
        run(&args).ok();
        let made = folder.open("q8.gguf");
        assert_eq!(
            made.tensor(PROJECTION).unwrap().ty,
            GgmlType::Q8_0,
            "{name}"
        );
        for of_state in ["ssm_conv1d.weight", "ssm_a"] {
            let of_state = format!("blk.0.{of_state}");
            let ty = |file: &Gguf| file.tensor(&of_state).unwrap().ty;
            assert_eq!(ty(&made), ty(&before), "{name}: {of_state}");
        }
        // 8 bits: the first tokens are those of the file.
        let (plain, eight) = (folder.ids("model.gguf", &[]), folder.ids("q8.gguf", &[]));
        assert_eq!(plain[0], eight[0], "{name}: {plain} {eight}");
    }
}

/// A profile has the operations of recurrent layers, and the checks pass them.
#[test]
fn profiles_benches_and_checks_recurrent_layers() {
    for name in first(1, MODELS) {
        let folder = Folder::with(name);
        let model = folder.name("model.gguf");
        let profile = run(&[
            "profile", "-m", &model, "-p", "One two", "-n", "4", "--json",
        ])
        .json();
        assert!(
            profile.to_string().contains("linear_attention"),
            "{name}: {profile}"
        );
        let args = [
            "bench", "-m", &model, "-p", "8", "-n", "4", "-b", "1,3", "-r", "1", "-o", "json",
        ];
        let rows = run(&args).json();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 4, "{name}");
        assert!(
            rows.iter().all(|row| row["avg_ts"].as_f64() > Some(0.0)),
            "{name}"
        );
        run(&["check", "-m", &model, "--depth", "0"]).ok();
    }
}

/// A turn begins from the snapshot that the one before left, and `/metrics` counts the slots.
#[test]
fn serves_turns_from_snapshots() {
    let folder = Folder::with("qwen35");
    let model = folder.name("model.gguf");
    let served = Served::start(&["-m", &model, "--max-seqs", "2", "--device", "cpu"]);
    let ask = |prompt: &str| {
        let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": true});
        served.post("/v1/completions", &body)
    };
    let question = "one two three ".repeat(8);
    let first = ask(&question);
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let again = ask(&format!("{question} four"));
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    // Whole pages of 16 tokens.
    assert!(cached > Some(n_prompt - 18), "{cached:?} of {n_prompt}");
    let slots = |of: &str| {
        let (_, text) = served.send("GET /metrics HTTP/1.1\r\n", "");
        let begin = "rocmforge_state_slots{";
        let of = format!("of=\"{of}\"");
        let mut lines = text
            .lines()
            .filter(|line| line.starts_with(begin) && line.contains(&of));
        let line = lines.next().unwrap_or_else(|| panic!("{text}"));
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(slots("requests"), 0);
    assert!(slots("snapshots") > 0);
    let (code, _, stderr) = served.end("-TERM");
    assert_eq!(code, Some(0), "{stderr}");
}
