//! Plans as text, for comparing what they compute. Every write of a buffer makes a new value, numbered in order, so
//! the text does not depend on which buffer holds a value, only on where each value comes from and who reads it.

use std::collections::HashMap;
use std::fmt::Write as _;

use rocmforge_gguf::{Gguf, quant};
use rocmforge_model::Model;
use rocmforge_plan::{
    ActsId, BufferId, Fusion, Mask, Op, Plan, RoutingId, RowCount, Values as KvValues, WeightId,
    Weights,
};

/// Bytes of all buffers: per token, and per row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory(pub(crate) [u64; 2]);

/// A plan as text, and the memory of its buffers.
pub(crate) struct PlanText {
    pub(crate) text: String,
    pub(crate) memory: Memory,
}

/// FNV-1a.
pub(crate) fn hash(bytes: impl IntoIterator<Item = u8>) -> String {
    let hash = bytes
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
    format!("#{:08x}", hash >> 32)
}

fn hash_f32(values: &[f32]) -> String {
    hash(values.iter().flat_map(|value| value.to_le_bytes()))
}

fn hash_f64(values: &[f64]) -> String {
    hash(values.iter().flat_map(|value| value.to_le_bytes()))
}

/// Writes the plan of `model`, as backends compile it with `fusion`. `gguf` is the model's file.
pub(crate) fn plan_text(model: &Model, gguf: &Gguf, fusion: Fusion) -> PlanText {
    let plan = model.compiled_plan(fusion);
    let mut text = String::new();
    for (layer, kv) in plan.kv.iter().enumerate() {
        let mask = match kv.mask {
            Mask::All => "None".to_string(),
            Mask::Window(n) => format!("Some({n})"),
            Mask::Chunk(n) => format!("chunks of {n}"),
            Mask::Both => "both sides".to_string(),
            Mask::Near(n) => format!("both sides up to {n}"),
        };
        let values = match kv.values {
            KvValues::Apart => "",
            KvValues::InKeys => " values in keys",
        };
        let dims = [kv.k_dim, kv.v_dim];
        writeln!(
            text,
            "kv {layer}: {} x {dims:?} {mask}{values}",
            kv.n_kv_heads
        )
        .unwrap();
    }
    for (id, table) in plan.rope.iter().enumerate() {
        let long = table.long.as_ref();
        let long = long.map(|long| (long.n_ctx_original, hash_f64(&long.inv_freq)));
        let (n_rot, magnitude) = (table.n_rot(), table.magnitude);
        let frequencies = hash_f64(&table.inv_freq);
        writeln!(
            text,
            "rope {id}: {n_rot} {magnitude} {frequencies} {long:?}"
        )
        .unwrap();
    }
    let mut values = Values::new(&plan, &model.weights, gguf);
    for op in &plan.ops {
        writeln!(text, "{}", values.line(op)).unwrap();
    }
    writeln!(text, "logits {}", values.buffer(plan.logits)).unwrap();
    PlanText {
        text,
        memory: Memory([plan.buffer_bytes(1, 0), plan.buffer_bytes(0, 1)]),
    }
}

/// The values that the buffers hold at some place of a plan.
struct Values<'a> {
    plan: &'a Plan,
    weights: &'a Weights,
    gguf: &'a Gguf,
    /// Names of the file's vectors by the hash of their values.
    vectors: HashMap<String, &'a str>,
    buffers: HashMap<BufferId, usize>,
    acts: HashMap<ActsId, usize>,
    routings: HashMap<RoutingId, usize>,
    next: usize,
}

impl<'a> Values<'a> {
    fn new(plan: &'a Plan, weights: &'a Weights, gguf: &'a Gguf) -> Values<'a> {
        let small = gguf.tensors().iter().filter(|info| info.dims.len() == 1);
        let named = small.map(|info| {
            let mut values = vec![0.0; info.n_elements() as usize];
            quant::dequantize(info.ty, gguf.tensor_data(info), &mut values).unwrap();
            (hash_f32(&values), info.name.as_str())
        });
        Values {
            plan,
            weights,
            gguf,
            vectors: named.collect(),
            buffers: HashMap::new(),
            acts: HashMap::new(),
            routings: HashMap::new(),
            next: 0,
        }
    }

    /// The operation with all its fields. Where it reads and writes a buffer, both values are named.
    fn line(&mut self, op: &Op) -> String {
        let before: HashMap<BufferId, String> = op
            .reads()
            .into_iter()
            .map(|id| (id, self.buffer(id)))
            .collect();
        // What few families have is left out of the others' text.
        let debug = format!("{op:?}")
            .replace(", growth: None", "")
            .replace(", alibi: None", "")
            .replace("sinks: None, ", "")
            .replace("scales: None, ", "")
            .replace("weighed: Outputs, ", "")
            .replace("shared: None, ", "")
            .replace("decay: Head, ", "")
            .replace(", n_groups: 1, eps", ", eps")
            .replace("stack: ExpertStack { ", "")
            .replace(", n_parts: 1, part: 0 }", "");
        // Inputs come first, so that an operation that reads and writes the same id is not mistaken for another.
        let acts_read = op.acts_read().map(|id| self.acts[&id]);
        for id in op.writes() {
            self.next += 1;
            self.buffers.insert(id, self.next);
        }
        if let Some(id) = op.acts_written() {
            self.next += 1;
            self.acts.insert(id, self.next);
        }
        if let Op::Route { out, .. } = op {
            self.next += 1;
            self.routings.insert(*out, self.next);
        }
        let writes = op.writes();
        let named = replace_ids(&debug, "BufferId", |id| {
            let id = BufferId(id);
            match (before.get(&id), writes.contains(&id)) {
                (Some(old), false) => old.clone(),
                (Some(old), true) => format!("{old}>{}", self.buffer(id)),
                (None, _) => self.buffer(id),
            }
        });
        let named = replace_ids(&named, "ActsId", |id| {
            let info = self.plan.acts[id as usize];
            let value = acts_read.unwrap_or_else(|| self.acts[&ActsId(id)]);
            let rows = rows(info.rows);
            format!("a{value}[{rows}{} {:?}]", info.width, info.format)
        });
        let named = replace_ids(&named, "RoutingId", |id| {
            format!("r{}", self.routings[&RoutingId(id)])
        });
        let named = replace_ids(&named, "RopeId", |id| format!("rope{id}"));
        let named = replace_ids(&named, "WeightId", |id| self.weight(op, WeightId(id)));
        named
            .replace(" { ", " ")
            .replace(" }", "")
            .replace(": ", "=")
            .replace(", start=0,", ",")
    }

    fn buffer(&self, id: BufferId) -> String {
        let info = self.plan.buffers[id.0 as usize];
        format!("%{}[{}{}]", self.buffers[&id], rows(info.rows), info.width)
    }

    /// A weight's name and rows, or the hash of its values if it is not as in the file.
    fn weight(&self, op: &Op, id: WeightId) -> String {
        if op.vectors().contains(&id) {
            let values = self.weights.vector(id);
            let hash = hash_f32(values);
            let name = self.vectors.get(&hash).map(|name| name.to_string());
            return name.unwrap_or_else(|| format!("{hash}[{}]", values.len()));
        }
        let matrix = self.weights.matrix(id);
        let Some(name) = self.weights.tensor_name(id) else {
            let hash = hash(matrix.data.iter().copied());
            return format!("{hash}[{}, {}]", matrix.n_out, matrix.n_in);
        };
        let info = self.gguf.tensor(name).unwrap();
        if matrix.n_out as u64 == info.n_rows() {
            return name.to_string();
        }
        let whole = self.gguf.tensor_data(info);
        let offset = matrix.data.as_ptr() as usize - whole.as_ptr() as usize;
        let first = offset / (whole.len() / info.n_rows() as usize);
        format!("{name}[{first}..{}]", first + matrix.n_out)
    }
}

fn rows(rows: RowCount) -> String {
    match rows {
        RowCount::Tokens => String::new(),
        RowCount::Logits => "out ".to_string(),
        RowCount::Choices { n_used } => format!("{n_used} x "),
        RowCount::Heads { n_heads } => format!("{n_heads} heads x "),
    }
}

/// Replaces `KIND(N)` by the name of `N`.
fn replace_ids(text: &str, kind: &str, name: impl Fn(u32) -> String) -> String {
    let start = format!("{kind}(");
    let mut parts = text.split(start.as_str());
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let (id, rest) = part.split_once(')').unwrap();
        out += &name(id.parse().unwrap());
        out += rest;
    }
    out
}
