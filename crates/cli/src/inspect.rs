//! `rocmforge inspect`: shows a GGUF file's contents and memory requirements. Files of unsupported models work too:
//! everything except the memory needs only the header.

mod kind;
mod machine;
mod missing;
mod values;

use std::sync::Arc;

use anyhow::Result;
use rocmforge::ModelFile;
use rocmforge_engine::EngineConfig;
use rocmforge_gguf::{Gguf, UnknownTensor, Value, escape_control};
use rocmforge_model::{Model, Purpose};
use serde_json::{Map, Value as Json, json};

use crate::args::InspectArgs;
use crate::output::{Out, size};
use crate::{model_file, resolve};
use kind::Kind;
use machine::OnDevice;
use missing::Missing;
use values::{json_of, text_of};

/// Lines of the list of what is missing, in text.
const MISSING_LINES: usize = 12;

pub fn run(args: &InspectArgs) -> Result<()> {
    let config = resolve::cache_config(&args.cache, args.context.n_ctx());
    let file = model_file::open_to_inspect(args.file.as_ref().or(args.model.as_ref()), &args.load)?;
    let verdict = Verdict::of(&file.gguf, &config);
    let mut out = Out::new();
    if args.json {
        out.json(&report(&file, &verdict))?;
    } else {
        print_header(&mut out, &file, &verdict)?;
        print_formats(&mut out, &file.gguf)?;
        print_memory(&mut out, &file.gguf, verdict.needs.as_ref())?;
        print_metadata(&mut out, &file.gguf)?;
        match args.tensors {
            true => print_tensors(&mut out, &file.gguf)?,
            false => out.line(&format!(
                "\ntensors ({}): list them with --tensors",
                file.gguf.tensors().len()
            ))?,
        }
    }
    out.finish()
}

/// The memory that the model needs.
struct Needs {
    n_ctx: usize,
    n_ctx_train: usize,
    kv_bytes: u64,
    /// The state of one sequence; 0 if no layer keeps one.
    state_bytes: u64,
    buffer_bytes: u64,
    devices: Vec<OnDevice>,
}

impl Needs {
    fn of(model: &Model, config: &EngineConfig) -> Needs {
        let devices = machine::devices(model, config);
        let n_ctx_train = model.config.n_ctx_train;
        let fitting = devices
            .iter()
            .filter_map(OnDevice::fit)
            .map(|fit| fit.n_ctx);
        let n_ctx = config.n_ctx.or(fitting.max()).unwrap_or(n_ctx_train);
        let cached = n_ctx.div_ceil(config.page).saturating_mul(config.page) as u64;
        let per_token = model.kv_bytes_per_token(config.kv_types);
        Needs {
            n_ctx,
            n_ctx_train,
            kv_bytes: cached.saturating_mul(per_token),
            state_bytes: model.plan.state_bytes(),
            buffer_bytes: model
                .plan
                .buffer_bytes(config.max_batch_tokens, config.max_seqs),
            devices,
        }
    }

    /// What is missing if the model runs on no device.
    fn missing(&self) -> Option<Missing> {
        let problems: Option<Vec<_>> = self.devices.iter().map(OnDevice::problem).collect();
        let (name, reason) = problems?.into_iter().next()?;
        Some(Missing {
            name: name.to_string(),
            about: reason.to_string(),
        })
    }
}

/// What a file is, and whether it runs here.
struct Verdict {
    kind: Kind,
    /// What it lacks to run here, memory included.
    missing: Vec<Missing>,
    /// `None` if something else than memory is missing.
    needs: Option<Needs>,
}

impl Verdict {
    fn of(gguf: &Arc<Gguf>, config: &EngineConfig) -> Verdict {
        let kind = Kind::of(gguf);
        let mut missing = missing::missing(gguf, &kind);
        let model = match missing.is_empty() {
            true => Model::load_for(Purpose::Either, Arc::clone(gguf), &[]).ok(),
            false => None,
        };
        let needs = model.map(|model| Needs::of(&model, config));
        missing.extend(needs.as_ref().and_then(Needs::missing));
        Verdict {
            kind,
            missing,
            needs,
        }
    }

    /// Answers whether the file runs here, in a few words.
    fn answer(&self) -> String {
        let Some(needs) = self.needs.as_ref().filter(|_| self.missing.is_empty()) else {
            return "no".to_string();
        };
        let whole = needs.devices.iter().filter(|device| device.holds_all());
        let whole: Vec<&str> = whole.map(OnDevice::id).collect();
        match whole.is_empty() {
            true => "yes, but no device has memory for all of it".to_string(),
            false => format!("yes, on {}", whole.join(", ")),
        }
    }
}

/// Totals of the tensors of one format.
struct TypeTotal {
    name: &'static str,
    tensors: usize,
    values: u64,
    bytes: u64,
}

/// Returns the formats, those with the most bytes first.
fn types(gguf: &Gguf) -> Vec<TypeTotal> {
    let mut totals: Vec<TypeTotal> = Vec::new();
    for info in gguf.tensors() {
        let name = info.ty.name();
        let at = totals
            .iter()
            .position(|total| total.name == name)
            .unwrap_or_else(|| {
                totals.push(TypeTotal {
                    name,
                    tensors: 0,
                    values: 0,
                    bytes: 0,
                });
                totals.len() - 1
            });
        totals[at].tensors += 1;
        totals[at].values = totals[at].values.saturating_add(info.n_elements());
        totals[at].bytes = totals[at].bytes.saturating_add(info.n_bytes);
    }
    totals.sort_by_key(|total| std::cmp::Reverse(total.bytes));
    totals
}

/// Returns the number of values of all tensors.
pub fn n_parameters(gguf: &Gguf) -> u64 {
    gguf.tensors()
        .iter()
        .fold(0, |sum, info| info.n_elements().saturating_add(sum))
}

/// Returns the bytes of all tensors.
pub fn weight_bytes(gguf: &Gguf) -> u64 {
    gguf.tensors()
        .iter()
        .fold(0, |sum, info| info.n_bytes.saturating_add(sum))
}

/// Returns the number of experts and how many each token uses, for MoE models.
fn experts(gguf: &Gguf) -> Option<(u64, u64)> {
    let meta = gguf.metadata();
    let arch = meta.str("general.architecture").ok()?;
    let number = |name: &str| meta.opt_u64(&format!("{arch}.{name}")).ok().flatten();
    let count = number("expert_count").filter(|&count| count > 0)?;
    Some((count, number("expert_used_count")?))
}

/// Returns a metadata string, escaped and cut.
fn meta_str(gguf: &Gguf, key: &str) -> Option<String> {
    match gguf.metadata().get(key) {
        Some(Value::String(bytes)) => Some(rocmforge_gguf::shown(&String::from_utf8_lossy(bytes))),
        _ => None,
    }
}

fn print_header(out: &mut Out, file: &ModelFile, verdict: &Verdict) -> Result<()> {
    let gguf = &*file.gguf;
    let shown = |key| meta_str(gguf, key).unwrap_or_else(|| "n/a".to_string());
    out.line(&format!(
        "file          {} ({}, GGUF v{})",
        file.label,
        size(gguf.file_bytes()),
        gguf.version()
    ))?;
    out.line(&format!("kind          {}", verdict.kind.about))?;
    out.line(&format!("name          {}", shown("general.name")))?;
    out.line(&format!("architecture  {}", shown("general.architecture")))?;
    out.line(&format!("parameters    {}", count(n_parameters(gguf))))?;
    if let Some((count, used)) = experts(gguf) {
        out.line(&format!("experts       {count}, {used} used per token"))?;
    }
    out.line(&format!("runs here     {}", verdict.answer()))?;
    let mut title = "missing";
    for Missing { name, about } in verdict.missing.iter().take(MISSING_LINES) {
        out.line(&format!("{title:<14}{name}: {about}"))?;
        title = "";
    }
    match verdict.missing.len().saturating_sub(MISSING_LINES) {
        0 => Ok(()),
        n => out.line(&format!("{:<14}and {n} more, which --json lists", "")),
    }
}

/// Returns the width of a column with these names.
fn width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names
        .map(|name| name.chars().count().min(48))
        .max()
        .unwrap_or(0)
}

fn print_metadata(out: &mut Out, gguf: &Gguf) -> Result<()> {
    let metadata = gguf.metadata();
    out.line(&format!("\nmetadata ({})", metadata.len()))?;
    let width = width(metadata.iter().map(|(key, _)| key));
    for (key, value) in metadata.iter() {
        let (key, value) = (escape_control(key), text_of(&value));
        out.line(&format!("  {key:width$}  {value}"))?;
    }
    Ok(())
}

fn print_tensors(out: &mut Out, gguf: &Gguf) -> Result<()> {
    let (tensors, unknown) = (gguf.tensors(), gguf.unknown_tensors());
    let n = tensors.len() + unknown.len();
    out.line(&format!("\ntensors ({n})"))?;
    let names = tensors.iter().map(|info| &*info.name);
    let width = width(names.chain(unknown.iter().map(|info| &*info.name)));
    let joined = |dims: &[u64]| {
        let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
        dims.join(", ")
    };
    for info in tensors {
        let (name, ty) = (escape_control(&info.name), info.ty.name());
        out.line(&format!(
            "  {name:width$}  {ty:8} {:>10}  [{}]",
            size(info.n_bytes),
            joined(&info.dims)
        ))?;
    }
    for info in unknown {
        let (name, ty) = (escape_control(&info.name), type_name(info));
        let dims = joined(&info.dims);
        out.line(&format!("  {name:width$}  {ty:8} {:>10}  [{dims}]", "n/a"))?;
    }
    Ok(())
}

/// What to call an unknown format.
fn type_name(tensor: &UnknownTensor) -> String {
    format!("type {}", tensor.type_id)
}

fn print_formats(out: &mut Out, gguf: &Gguf) -> Result<()> {
    out.line("\nformats")?;
    for total in types(gguf) {
        let bits = total.bytes as f64 * 8.0 / total.values.max(1) as f64;
        out.line(&format!(
            "  {:8} {:>4} tensors {:>10}  {bits:.2} bits per weight",
            total.name,
            total.tensors,
            size(total.bytes)
        ))?;
    }
    Ok(())
}

fn print_memory(out: &mut Out, gguf: &Gguf, needs: Option<&Needs>) -> Result<()> {
    out.line("\nmemory")?;
    let mut row = |name: &str, bytes: u64, about: &str| {
        out.line(&format!("  {name:10} {:>10}  {about}", size(bytes)))
    };
    let about = match gguf.unknown_tensors().len() {
        0 => "mapped from the file, shared between processes".to_string(),
        n => format!("without tensors of unknown formats, of which there are {n}"),
    };
    row("weights", weight_bytes(gguf), &about)?;
    let Some(needs) = needs else {
        return out.line("  KV cache          n/a  the model is not supported");
    };
    let Needs {
        n_ctx, n_ctx_train, ..
    } = needs;
    let context = format!("context of {n_ctx} tokens (trained for {n_ctx_train}; set with --ctx)");
    row("KV cache", needs.kv_bytes, &context)?;
    if needs.state_bytes > 0 {
        let about = "layers that keep a state: of each sequence, and of each snapshot of one";
        row("state", needs.state_bytes, about)?;
    }
    row("buffers", needs.buffer_bytes, "activations of one step")?;
    out.line("\nfits on this machine")?;
    for device in &needs.devices {
        out.line(&format!("  {}", device.line()))?;
    }
    Ok(())
}

/// Formats a number of parameters: `10.9 M`.
pub fn count(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.2} B", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e3 => format!("{:.0} K", n / 1e3),
        _ => n.to_string(),
    }
}

fn report(file: &ModelFile, verdict: &Verdict) -> Json {
    let gguf = &*file.gguf;
    let metadata: Map<String, Json> = gguf
        .metadata()
        .iter()
        .map(|(key, value)| (key.to_string(), json_of(&value)))
        .collect();
    let tensors: Vec<Json> = gguf
        .tensors()
        .iter()
        .map(|info| {
            json!({
                "name": info.name, "type": info.ty.name(), "dims": info.dims,
                "bytes": info.n_bytes, "offset": info.offset, "part": info.part,
            })
        })
        .chain(gguf.unknown_tensors().iter().map(|tensor| {
            json!({
                "name": tensor.name, "type": type_name(tensor), "dims": tensor.dims,
                "bytes": null, "offset": null, "part": null,
            })
        }))
        .collect();
    let types: Vec<Json> = types(gguf)
        .iter()
        .map(|total| json!({ "type": total.name, "tensors": total.tensors, "bytes": total.bytes }))
        .collect();
    let memory = match &verdict.needs {
        None => json!({ "weight_bytes": weight_bytes(gguf) }),
        Some(needs) => json!({
            "weight_bytes": weight_bytes(gguf), "kv_bytes": needs.kv_bytes,
            "state_bytes": needs.state_bytes, "buffer_bytes": needs.buffer_bytes, "ctx": needs.n_ctx, "ctx_train": needs.n_ctx_train,
            "fits": needs.devices.iter().any(OnDevice::holds_all),
            "devices": needs.devices.iter().map(OnDevice::json).collect::<Vec<Json>>(),
        }),
    };
    let missing: Vec<&str> = verdict.missing.iter().map(|it| &*it.name).collect();
    json!({
        "file": file.label,
        "file_bytes": gguf.file_bytes(),
        "version": gguf.version(),
        "architecture": meta_str(gguf, "general.architecture"),
        "name": meta_str(gguf, "general.name"),
        "parameters": n_parameters(gguf),
        "experts": experts(gguf).map(|(count, used)| json!({ "count": count, "used": used })),
        "kind": verdict.kind.about,
        "runs_here": missing.is_empty(),
        "missing": missing,
        "runs": verdict.needs.is_some(),
        "problem": verdict.missing.first().map(|it| &*it.about),
        "memory": memory,
        "types": types,
        "metadata": metadata,
        "tensors": tensors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_counts() {
        for (n, expected) in [
            (12, "12"),
            (260_032, "260 K"),
            (10_900_000, "10.9 M"),
            (1_240_000_000, "1.24 B"),
        ] {
            assert_eq!(count(n), expected);
        }
    }
}
