//! Parts that run whole models: comparisons with the CPU backend, speed, memory and profiles.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rocmforge_quantize::synthetic;

use super::archs::all_types;
use super::proof::{Proof, Words as _, output};
use super::{programs, records};

const SHAPES: [&str; 4] = ["llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "qwen3-8b"];

pub(super) fn devices(proof: &mut Proof) -> Result<()> {
    proof.step(proof.program("rocmforge").arg("devices"));
    Ok(())
}

/// Types of fewer bits than these follow llama.cpp's golden results only in llama.cpp's own files, since the quantizers
/// differ.
const GOLDEN_TYPES: [&str; 3] = ["Q8_0", "Q6_K", "BF16"];

pub(super) fn golden(proof: &mut Proof) -> Result<()> {
    let data = proof.work.join("golden");
    let models = data.join("models");
    fs::create_dir_all(&models)?;
    for entry in fs::read_dir(proof.pack.join("models"))? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            fs::copy(&path, models.join(path.file_name().unwrap_or_default()))?;
        }
    }
    let f16 = models.join("forge-mini-F16.gguf");
    for ty in types(proof, &GOLDEN_TYPES) {
        let file = models.join(format!("forge-mini-{ty}.gguf"));
        if f16.exists() && !file.exists() {
            let mut quantize = proof.program("rocmforge");
            quantize
                .arg("quantize")
                .args([&f16, &file])
                .arg(ty)
                .stdout(Stdio::null());
            proof.step(&mut quantize);
        }
    }
    let mut tests =
        programs::engine_tests(proof, "golden", "golden::forge_mini_matches_llama_cpp")?;
    proof.step(tests.env("ROCMFORGE_CONFORMANCE_DATA", &data));
    let mut compare = proof.compare();
    compare.words("--tokens 1,17,300 --batch 1,4");
    for entry in fs::read_dir(&models)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("forge-mini-") {
            compare.arg(&path);
        }
    }
    proof.step(&mut compare);
    Ok(())
}

/// The types asked for, or these.
pub(super) fn types(proof: &Proof, default: &[impl ToString]) -> Vec<String> {
    match proof.args.types.as_slice() {
        [] => default.iter().map(ToString::to_string).collect(),
        types => types.to_vec(),
    }
}

pub(super) fn logits(proof: &mut Proof) -> Result<()> {
    let flags = format!(
        "--tokens {} --batch {}",
        proof.args.tokens, proof.args.batch
    );
    compare_shapes(proof, &types(proof, &all_types()), &flags);
    Ok(())
}

pub(super) fn long(proof: &mut Proof) -> Result<()> {
    compare_shapes(
        proof,
        &["Q4_K_M".into()],
        "--tokens 2048 --batch 1 --decode 4",
    );
    Ok(())
}

/// Compares two layers of each shape in each type.
fn compare_shapes(proof: &mut Proof, types: &[String], flags: &str) {
    for shape in SHAPES {
        for ty in types {
            let model = format!("--synthetic {shape}:{ty} --layers 2");
            proof.step(proof.compare().words(&model).words(flags));
        }
    }
}

pub(super) fn variants(proof: &mut Proof) -> Result<()> {
    for shape in SHAPES {
        let file = proof.synthetic(shape, "Q4_K_M", Some(2))?;
        for variant in [
            "plain",
            "products=matvec",
            "products=matmul,attention=prefill",
            "tiles=large",
            "attention=decode",
            "rope=separate",
        ] {
            println!("--kernel-variant {variant}");
            let flags = format!("--tokens 300 --batch 1 --decode 4 --kernel-variant {variant}");
            proof.step(proof.compare().words(&flags).arg(&file));
        }
        fs::remove_file(file)?;
    }
    Ok(())
}

/// Checks four layers of each shape as before their first use: of fewer, models with states have none that attends.
pub(super) fn first_use(proof: &mut Proof) -> Result<()> {
    for shape in synthetic::SHAPES {
        let file = proof.synthetic(shape.name, "Q4_K_M", Some(4))?;
        let mut bench = proof.rocmforge("bench");
        bench
            .words("--gpu-check always -p 0 -n 2 -r 1 -m")
            .arg(&file);
        proof.step(&mut bench);
        fs::remove_file(file)?;
    }
    Ok(())
}

pub(super) fn full(proof: &mut Proof) -> Result<()> {
    for shape in ["llama-2-7b", "llama-3.1-8b"] {
        let file = proof.synthetic(shape, "Q4_K_M", None)?;
        let flags = "--tokens 128 --batch 1 --decode 8";
        proof.step(proof.compare().words(flags).arg(file));
    }
    Ok(())
}

pub(super) fn shift(proof: &mut Proof) -> Result<()> {
    proof.step(&mut programs::engine_tests(proof, "gpu_shift", "")?);
    Ok(())
}

/// Returns `bench` of a whole model in Q4_K_M with these flags.
fn bench(proof: &Proof, shape: &str, flags: &str) -> Result<Command> {
    let file = proof.synthetic(shape, "Q4_K_M", None)?;
    let mut bench = proof.rocmforge("bench");
    bench.arg("-m").arg(file).words(flags);
    Ok(bench)
}

pub(super) fn mixture(proof: &mut Proof) -> Result<()> {
    let shape = proof.args.mixture.clone();
    proof.step(&mut bench(proof, &shape, "-p 512 -n 128 -r 3")?);
    Ok(fs::remove_file(proof.synthetic(&shape, "Q4_K_M", None)?)?)
}

pub(super) fn speed(proof: &mut Proof) -> Result<()> {
    for (shape, flags) in [
        ("llama-2-7b", "-p 512,2048 -n 128 -r 5"),
        ("llama-3.1-8b", "-p 512,2048 -n 128 -r 5"),
        ("llama-3.1-8b", "-p 0 -n 128 -d 4096 -r 5"),
        ("llama-2-7b", "-p 0 -n 64 -b 1,4,8,32 -r 3"),
    ] {
        proof.step(&mut bench(proof, shape, flags)?);
    }
    Ok(())
}

/// Polls the driver for the memory in use while a model runs.
pub(super) fn memory(proof: &mut Proof) -> Result<()> {
    let mut child = bench(proof, "qwen2.5-7b", "-p 128 -n 4000 -r 1")?.spawn()?;
    let mut most = 0u64;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let mut query = Command::new("nvidia-smi");
        query.words("--query-gpu=memory.used --format=csv,noheader,nounits");
        match output(&mut query) {
            Ok(text) => {
                let used = text.lines().next().unwrap_or("").trim().parse();
                most = most.max(used.unwrap_or(0));
            }
            Err(error) => {
                child.kill()?;
                return Err(error);
            }
        }
        thread::sleep(Duration::from_millis(200));
    };
    ensure!(status.success(), "bench failed: {status}");
    println!("peak device memory, with the driver's own: {most} MiB");
    Ok(())
}

pub(super) fn load(proof: &mut Proof) -> Result<()> {
    let file = proof.synthetic("llama-2-7b", "Q4_K_M", None)?;
    let mut stages = proof.with_image(proof.program("load_stages"));
    proof.step(stages.arg(&proof.args.device).arg(file).arg("5"));
    Ok(())
}

pub(super) fn batch(proof: &mut Proof) -> Result<()> {
    let mut matmul = proof.with_image(proof.program("batch_matmul"));
    proof.step(matmul.args([&proof.args.device, "50"]));
    let mut launch = proof.with_image(proof.program("async_launch"));
    proof.step(launch.arg(&proof.args.device));
    let mut lora = programs::engine_tests(proof, "lora_gpu", "")?;
    proof.step(lora.args(["--test-threads", "1"]));
    Ok(())
}

/// Prints the table of each profile, and writes its page, trace and numbers to the results.
pub(super) fn profile(proof: &mut Proof) -> Result<()> {
    for shape in ["llama-3.1-8b", "qwen3-8b"] {
        let file = proof.synthetic(shape, "Q4_K_M", None)?;
        let result = |extension: &str| proof.results.join(format!("profile-{shape}.{extension}"));
        let profile = || {
            let mut command = proof.rocmforge("profile");
            command.words("--prompt-tokens 512 -n 64 -m").arg(&file);
            command
        };
        let mut page = profile();
        page.arg("--html").arg(result("html"));
        page.arg("--trace").arg(result("trace.json"));
        let mut json = profile();
        json.words("-r 1 --json")
            .stdout(File::create(result("json"))?);
        proof.step(&mut page);
        proof.step(&mut json);
    }
    Ok(())
}

/// Models that the CPU and the GPU share.
pub(super) fn hybrid(proof: &mut Proof) -> Result<()> {
    let file = proof.synthetic("llama-3.1-8b", "Q4_K_M", Some(8))?;
    let gpu_layers = |proof: &mut Proof, file: &Path, counts: [&str; 3]| {
        for n in counts {
            println!("--gpu-layers {n}");
            let flags = format!("--gpu-layers {n} --tokens 17 --batch 1,4 --decode 16");
            proof.step(proof.compare().words(&flags).arg(file));
        }
    };
    gpu_layers(proof, &file, ["0", "4", "8"]);
    let mut bench = proof.rocmforge("bench");
    bench
        .words("--gpu-layers 0,4,8 -p 128 -n 32 -r 2 -o jsonl -m")
        .arg(&file);
    let speeds = output(&mut bench).and_then(|text| hybrid_speeds(&text));
    proof.check(speeds);
    fs::remove_file(file)?;
    // Weights and activations that are not rounded to codes: the ids must be the same wherever the layers run.
    let file = proof.synthetic("llama-3.2-1b", "F16", Some(4))?;
    gpu_layers(proof, &file, ["0", "2", "4"]);
    fs::remove_file(file)?;
    for arch in ["mixtral", "qwen2moe", "qwen3moe"] {
        let file = proof.work.join(format!("{arch}.gguf"));
        let generate = format!("gen-model {arch} F16");
        proof.step(proof.program("xtask").words(&generate).arg(&file));
        let flags = "--cpu-moe --tokens 17,40 --batch 1,4 --decode 8";
        proof.step(proof.compare().words(flags).arg(file));
    }
    Ok(())
}

/// Prints the speeds with none, half and all of the layers on the GPU, each of which must be faster than the last.
fn hybrid_speeds(jsonl: &str) -> Result<()> {
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for record in records::lines(jsonl)? {
        let speeds = match records::number(&record, "n_prompt")? > 0.0 {
            true => &mut prefill,
            false => &mut decode,
        };
        speeds.push(records::number(&record, "avg_ts")?);
    }
    println!("tok/s with 0, 4 and 8 layers on the GPU: pp128 {prefill:.1?}, tg32 {decode:.1?}");
    for speeds in [prefill, decode] {
        ensure!(speeds.len() == 3, "{} of 3 speeds", speeds.len());
        ensure!(
            speeds.is_sorted_by(|a, b| a < b),
            "more layers on the GPU are not faster: {speeds:.1?}"
        );
    }
    Ok(())
}

pub(super) fn suites(proof: &mut Proof) -> Result<()> {
    for suite in ["matmul", "attention", "dequant", "inference"] {
        println!("bench {suite}");
        let path = proof.results.join(format!("bench-{suite}.json"));
        let mut bench = proof.rocmforge(&format!("bench {suite}"));
        if suite == "inference" {
            bench.words("--synthetic llama-3.1-8b:Q4_K_M");
        }
        if proof.args.quick {
            bench.arg("--quick");
        }
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        proof.step(bench.words("-o json").stdout(file));
        println!("{}: {} bytes", path.display(), fs::metadata(&path)?.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_gpu_layers_must_be_faster() {
        let jsonl = |speeds: [f64; 6]| {
            let tests = speeds
                .chunks(2)
                .flat_map(|speeds| [(128, speeds[0]), (0, speeds[1])]);
            let line = |(n, speed)| format!("{{\"n_prompt\":{n},\"avg_ts\":{speed:.1}}}\n");
            tests.map(line).collect::<String>()
        };
        assert!(hybrid_speeds(&jsonl([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).is_ok());
        assert!(hybrid_speeds(&jsonl([1.0, 2.0, 3.0, 4.0, 5.0, 4.0])).is_err());
        assert!(hybrid_speeds("").is_err());
    }
}
