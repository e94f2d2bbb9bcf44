//! `rocmforge inspect`: shows a GGUF file's contents and memory requirements. Files of unsupported models work too:
//! everything except the memory needs only the header.

use crate::model_file;
use crate::resolve;
use rocmforge::ModelFile;
use std::sync::Arc;

use anyhow::Result;
use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_gguf::{Array, Gguf, UnknownTensor, Value, escape_control};
use rocmforge_model::{Model, Purpose};
use rocmforge_plan::RowCount;
use serde_json::{Map, Value as Json, json};

use crate::args::InspectArgs;
use crate::output::{Out, size};

/// Most elements of an array that is shown in full, in JSON and in text.
const WHOLE_ARRAY: (usize, usize) = (64, 6);
/// Elements shown of a longer array, in JSON and in text.
const ARRAY_START: (usize, usize) = (8, 4);
/// Characters shown of a string in text.
const STRING_CHARS: usize = 100;

pub fn run(args: &InspectArgs) -> Result<()> {
    let config = resolve::cache_config(&args.cache, args.context.n_ctx());
    let file = model_file::open_to_inspect(args.file.as_ref().or(args.model.as_ref()), &args.load)?;
    let needs = Needs::of(&file.gguf, &config);
    let mut out = Out::new();
    if args.json {
        out.json(&report(&file, &needs))?;
    } else {
        print_header(&mut out, &file, &needs)?;
        print_formats(&mut out, &file.gguf)?;
        print_memory(&mut out, &file.gguf, &needs)?;
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

/// Whether the model can run, and the memory it needs.
enum Needs {
    Runs {
        n_ctx: usize,
        n_ctx_train: usize,
        kv_bytes: u64,
        buffer_bytes: u64,
        no_room: Option<String>,
    },
    CannotRun {
        reason: String,
    },
}

impl Needs {
    fn of(gguf: &Arc<Gguf>, config: &EngineConfig) -> Needs {
        if let Some(tensor) = gguf.unknown_tensors().first() {
            return Needs::CannotRun {
                reason: tensor.error().to_string(),
            };
        }
        if gguf.tensors().is_empty() {
            return Needs::CannotRun {
                reason: "the file has metadata but no weights".to_string(),
            };
        }
        let model = match Model::load_for(Purpose::Either, Arc::clone(gguf), &[]) {
            Ok(model) => model,
            Err(error) => {
                return Needs::CannotRun {
                    reason: error.to_string(),
                };
            }
        };
        // The engine chooses the default context; it touches its memory only when it computes.
        let (default_ctx, no_room) = match Engine::on_cpu(&model, None, config) {
            Ok(engine) => (engine.n_ctx(), None),
            Err(error) => (model.config.n_ctx_train, Some(error.to_string())),
        };
        let n_ctx = config.n_ctx.unwrap_or(default_ctx);
        let cached = n_ctx.div_ceil(config.page).saturating_mul(config.page) as u64;
        let per_token = model.kv_bytes_per_token(config.kv_type);
        let rows = |rows: RowCount| rows.rows(config.max_batch_tokens, config.max_seqs);
        let buffer_bytes = model
            .plan
            .buffers
            .iter()
            .map(|buffer| (rows(buffer.rows) * buffer.width * 4) as u64)
            .sum();
        Needs::Runs {
            n_ctx,
            n_ctx_train: model.config.n_ctx_train,
            kv_bytes: cached.saturating_mul(per_token),
            buffer_bytes,
            no_room,
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

fn print_header(out: &mut Out, file: &ModelFile, needs: &Needs) -> Result<()> {
    let gguf = &*file.gguf;
    let shown = |key| meta_str(gguf, key).unwrap_or_else(|| "n/a".to_string());
    out.line(&format!(
        "file          {} ({}, GGUF v{})",
        file.label,
        size(gguf.file_bytes()),
        gguf.version()
    ))?;
    out.line(&format!("name          {}", shown("general.name")))?;
    out.line(&format!("architecture  {}", shown("general.architecture")))?;
    out.line(&format!("parameters    {}", count(n_parameters(gguf))))?;
    if let Some((count, used)) = experts(gguf) {
        out.line(&format!("experts       {count}, {used} used per token"))?;
    }
    match needs {
        Needs::Runs { .. } => out.line("runs here     yes"),
        Needs::CannotRun { reason } => out.line(&format!("runs here     no: {reason}")),
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

fn print_memory(out: &mut Out, gguf: &Gguf, needs: &Needs) -> Result<()> {
    out.line("\nmemory")?;
    let mut row = |name: &str, bytes: u64, about: &str| {
        out.line(&format!("  {name:10} {:>10}  {about}", size(bytes)))
    };
    let weights = weight_bytes(gguf);
    row(
        "weights",
        weights,
        "mapped from the file, shared between processes",
    )?;
    match needs {
        Needs::CannotRun { .. } => out.line("  KV cache          n/a  the model is not supported"),
        Needs::Runs {
            n_ctx,
            n_ctx_train,
            kv_bytes,
            buffer_bytes,
            no_room,
        } => {
            let context =
                format!("context of {n_ctx} tokens (trained for {n_ctx_train}; set with --ctx)");
            row("KV cache", *kv_bytes, &context)?;
            row("buffers", *buffer_bytes, "activations of one step")?;
            match no_room {
                Some(reason) => out.line(&format!("  does not fit: {reason}")),
                None => Ok(()),
            }
        }
    }
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

fn text_of(value: &Value<'_>) -> String {
    match value {
        Value::String(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let cut: String = text.chars().take(STRING_CHARS).collect();
            let left = text.chars().count() - cut.chars().count();
            let more = if left > 0 {
                format!("... ({left} more characters)")
            } else {
                String::new()
            };
            format!("\"{}\"{more}", escape_control(&cut))
        }
        Value::Array(array) => {
            let (start, all) = start_of(array, WHOLE_ARRAY.1, ARRAY_START.1);
            let mut items: Vec<String> = start.iter().map(text_of).collect();
            if !all {
                items.push(format!(
                    "... {} {} in all",
                    array.len(),
                    array.element_type().name()
                ));
            }
            format!("[{}]", items.join(", "))
        }
        Value::Bool(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        int => int
            .as_int()
            .map_or_else(|| "n/a".to_string(), |int| int.to_string()),
    }
}

/// Returns the elements to show, and whether they are all.
fn start_of<'a>(array: &Array<'a>, whole: usize, start: usize) -> (Vec<Value<'a>>, bool) {
    let all = array.len() <= whole;
    (
        array.iter().take(if all { whole } else { start }).collect(),
        all,
    )
}

fn report(file: &ModelFile, needs: &Needs) -> Json {
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
    let (reason, memory) = match needs {
        Needs::CannotRun { reason } => {
            (Some(reason), json!({ "weight_bytes": weight_bytes(gguf) }))
        }
        Needs::Runs {
            n_ctx,
            n_ctx_train,
            kv_bytes,
            buffer_bytes,
            no_room,
        } => {
            let memory = json!({
                "weight_bytes": weight_bytes(gguf), "kv_bytes": kv_bytes, "buffer_bytes": buffer_bytes,
                "ctx": n_ctx, "ctx_train": n_ctx_train, "fits": no_room.is_none(), "problem": no_room,
            });
            (None, memory)
        }
    };
    json!({
        "file": file.label,
        "file_bytes": gguf.file_bytes(),
        "version": gguf.version(),
        "architecture": meta_str(gguf, "general.architecture"),
        "name": meta_str(gguf, "general.name"),
        "parameters": n_parameters(gguf),
        "experts": experts(gguf).map(|(count, used)| json!({ "count": count, "used": used })),
        "runs": reason.is_none(),
        "problem": reason,
        "memory": memory,
        "types": types,
        "metadata": metadata,
        "tensors": tensors,
    })
}

/// Converts a value: strings in full, long arrays as `{"type", "len", "start"}`.
fn json_of(value: &Value<'_>) -> Json {
    match value {
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Bool(value) => (*value).into(),
        Value::Array(array) => {
            let (start, all) = start_of(array, WHOLE_ARRAY.0, ARRAY_START.0);
            let start: Vec<Json> = start.iter().map(json_of).collect();
            if all {
                start.into()
            } else {
                json!({ "type": array.element_type().name(), "len": array.len(), "start": start })
            }
        }
        // The shortest form: 1e-5 instead of 0.000009999999747, its value as f64.
        Value::F32(value) => value
            .to_string()
            .parse::<f64>()
            .map_or(Json::Null, Json::from),
        Value::F64(value) => (*value).into(),
        Value::U64(value) => (*value).into(),
        int => int
            .as_int()
            .and_then(|int| i64::try_from(int).ok())
            .map_or(Json::Null, Json::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters() {
        assert_eq!(
            text_of(&Value::String(b"\x1b[31mred\n")),
            "\"\\u{1b}[31mred\\n\""
        );
        assert_eq!(text_of(&Value::String(&[b'a', 0xff])), "\"a\u{fffd}\"");
        let long = "x".repeat(STRING_CHARS + 5);
        assert!(text_of(&Value::String(long.as_bytes())).ends_with("\"... (5 more characters)"));
    }

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
