//! Every key of every architecture with hostile values: a file is loaded, or refused with a sentence, in bounded memory.
//! A test program of its own, because its allocator counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, OwnedValue, Writer};
use rocmforge_model::{Model, Purpose};
use rocmforge_plan::{Fusion, KvType};
use rocmforge_testkit::models::dflash::{Dflash, dflash};
use rocmforge_testkit::models::eagle3::{Eagle3, eagle3};
use rocmforge_testkit::models::{self, families};
use rocmforge_testkit::sweep::{every_nth, is_full_run};

/// Counts live bytes of each thread and their peak.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(n: isize) {
    let live = LIVE.get() + n;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `ptr` came from `alloc` above with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that loading may take: RoPE tables and vectors of the models here take a few megabytes.
const MOST_BYTES: isize = 64 << 20;

const N_LAYERS: usize = 2;

/// Out of range, of another type, of another length, and not a number.
fn values() -> Vec<OwnedValue> {
    vec![
        0u32.into(),
        1u32.into(),
        3u32.into(),
        1024u32.into(),
        (1u32 << 24).into(),
        (1u32 << 31).into(),
        (1u64 << 60).into(),
        u64::MAX.into(),
        (-1i32).into(),
        i64::MIN.into(),
        0.0f32.into(),
        (-1.0f32).into(),
        1e-30f32.into(),
        f32::MAX.into(),
        f32::NAN.into(),
        f32::INFINITY.into(),
        true.into(),
        "".into(),
        "text".into(),
        Vec::<i32>::new().into(),
        vec![1u32].into(),
        vec![0u32; N_LAYERS].into(),
        vec![u32::MAX; N_LAYERS].into(),
        vec![-1i32; N_LAYERS].into(),
        vec![f32::NAN; N_LAYERS].into(),
        vec![false; 5000].into(),
        vec!["a"; N_LAYERS].into(),
    ]
}

/// Keys that the loader reads and that no model of the tests has.
const OTHER_KEYS: [&str; 4] = [
    "attention.causal",
    "attention.recurrent_layers",
    "rope.scale_linear",
    "rope.scaling.finetuned",
];

/// As [`load`], a drafter for `target`, and that model with what the drafter takes.
fn load_assistant(target: &Model, writer: &Writer<'_>, what: &str) -> Option<String> {
    let gguf = Arc::new(file(writer));
    let before = LIVE.get();
    PEAK.set(before);
    let said = match target.assistant(Arc::clone(&gguf)) {
        Ok(model) => {
            let plan = model.compiled_plan(Fusion::On);
            plan.buffer_bytes(512, 64);
            let n_bytes = plan.kv_bytes_per_token(KvType::F16);
            assert_eq!(n_bytes == 0, !plan.borrowed.is_empty(), "{what}");
            None
        }
        Err(error) => Some(error.to_string()),
    };
    let model = Arc::clone(target.weights.gguf());
    let beside = Model::load_for_assistant(Purpose::Text, model, &[], &gguf);
    let beside = beside.map(|model| model.compiled_plan(Fusion::On).buffer_bytes(512, 64));
    let beside = beside.err().map(|error| error.to_string());
    let peak = PEAK.get() - before;
    assert!(peak <= MOST_BYTES, "{what}: {peak} bytes");
    for said in said.iter().chain(&beside) {
        let is_a_line = !said.contains(['\n', '\r']) && said.len() < 2000;
        assert!(is_a_line && !said.is_empty(), "{what}: {said}");
    }
    assert!(said.is_some() || beside.is_none(), "{what}: {beside:?}");
    said
}

/// Loads the file; returns what the loader says if it refuses it.
fn load(writer: &Writer<'_>, what: &str) -> Option<String> {
    let gguf = Arc::new(file(writer));
    let before = LIVE.get();
    PEAK.set(before);
    let refusals = Model::refusals(&gguf);
    let loaded = Model::load(Arc::clone(&gguf));
    let said = match loaded {
        Ok(model) => {
            // What a program computes before it allocates memory for the model.
            let plan = model.compiled_plan(Fusion::On);
            plan.buffer_bytes(512, 64);
            plan.kv_bytes_per_token(KvType::F16);
            plan.state_bytes();
            assert!(refusals.is_empty(), "{what}: loads, but {refusals:?}");
            None
        }
        Err(error) => {
            let said = error.to_string();
            assert!(!refusals.is_empty(), "{what}: {said}");
            for refusal in refusals.iter().map(ToString::to_string) {
                let is_a_line = !refusal.contains(['\n', '\r']) && refusal.len() < 2000;
                assert!(is_a_line && !refusal.is_empty(), "{what}: {refusal}");
            }
            Some(said)
        }
    };
    let peak = PEAK.get() - before;
    assert!(peak <= MOST_BYTES, "{what}: {peak} bytes");
    said
}

/// The models of the tests.
fn names() -> impl Iterator<Item = &'static str> {
    models::NAMES.into_iter().chain(families::names())
}

/// A file with zeros in place of matrices: loading reads none, and there are thousands of files.
struct Sparse {
    bytes: Vec<u8>,
    at: usize,
}

impl Sparse {
    /// Longer data is of a matrix.
    const MOST_OF_A_VECTOR: usize = 4096;
}

impl Write for Sparse {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let end = self.at + data.len();
        let is_header = self.at == 0;
        if is_header || data.len() <= Self::MOST_OF_A_VECTOR {
            self.bytes[self.at..end].copy_from_slice(data);
        }
        self.at = end;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn file(writer: &Writer<'_>) -> Gguf {
    let bytes = vec![0; writer.file_bytes().unwrap() as usize];
    let mut file = Sparse { bytes, at: 0 };
    writer.write_to(&mut file).unwrap();
    Gguf::from_vec(file.bytes).unwrap()
}

fn model(name: &str) -> Gguf {
    let model = models::model_of(name, GgmlType::Q4_0, N_LAYERS)
        .or_else(|| families::model_of(name, GgmlType::Q4_0, N_LAYERS));
    file(&model.unwrap().unwrap())
}

/// The model without its vocabulary. The data of tensors stays where it is: the many changed copies share it.
fn without_vocabulary(gguf: &Gguf) -> Writer<'_> {
    let mut out = Writer::new(arch(gguf));
    // Drafters of blocks need the token of masks.
    let is_kept = |key: &str| !key.starts_with("tokenizer.") || key.ends_with("mask_token_id");
    for (key, value) in { gguf.metadata().iter() }.filter(|(key, _)| is_kept(key)) {
        out.set(key, value);
    }
    for info in gguf.tensors() {
        let data = gguf.tensor_data(info);
        out.add_tensor(&info.name, &info.dims, info.ty, data)
            .unwrap();
    }
    out
}

fn arch(gguf: &Gguf) -> &str {
    gguf.metadata().str("general.architecture").unwrap()
}

/// The keys that any of the models has, without the architecture's name.
fn keys() -> BTreeSet<String> {
    let of_model = |name| {
        let gguf = model(name);
        let prefix = format!("{}.", arch(&gguf));
        let keys = gguf.metadata().iter().map(|(key, _)| key);
        let own = keys.filter_map(|key| key.strip_prefix(&prefix).map(str::to_string));
        own.collect::<Vec<String>>()
    };
    let others = OTHER_KEYS.into_iter().map(str::to_string);
    names().flat_map(of_model).chain(others).collect()
}

/// Whether a sentence names a key, a tensor or what is not supported.
fn names_its_reason(said: &str) -> bool {
    let reasons = [
        "metadata `",
        "metadata key '",
        "tensor `",
        "which is not supported",
    ];
    reasons.iter().any(|reason| said.contains(reason))
}

/// Whether no model before this one has its architecture.
fn is_first(name: &str) -> bool {
    let arch = models::architecture(name);
    names().find(|other| models::architecture(other) == arch) == Some(name)
}

/// Tries keys on every fourth model, from `shard` on: those of all models on the first of an architecture, which may read
/// a key that its released files do not have, and their own on others.
fn tries_keys(keys: &BTreeSet<String>, shard: usize) {
    // Every third value, others for each key and model; every value in a full run.
    let own_step = if is_full_run() { 1 } else { 3 };
    let mut n_refused = 0;
    for (m, name) in names().enumerate().skip(shard).step_by(4) {
        let whole = model(name);
        let model = without_vocabulary(&whole);
        let own = file(&model);
        let arch = arch(&own);
        assert_eq!(load(&model, name), None);
        let tries_all = is_first(name);
        let prefixed = keys.iter().map(|key| format!("{arch}.{key}"));
        let others = own.metadata().iter().map(|(key, _)| key.to_string());
        let others = others
            .filter(|key| !key.starts_with("general.") && !key.starts_with(&format!("{arch}.")));
        for (n, full) in prefixed.chain(others).enumerate() {
            let is_own = own.metadata().get(&full).is_some();
            if !is_own && !tries_all {
                continue;
            }
            let step = if is_own { own_step } else { 3 * own_step };
            for value in values().into_iter().skip((n + m / 4) % step).step_by(step) {
                let what = format!("{name}: {full} = {value:?}");
                let mut changed = model.clone();
                changed.set(&full, value);
                let loaded = catch_unwind(AssertUnwindSafe(|| load(&changed, &what)));
                let refused = loaded.unwrap_or_else(|_| panic!("{what}"));
                if let Some(said) = refused {
                    assert!(names_its_reason(&said), "{what}: {said}");
                    n_refused += 1;
                }
            }
        }
    }
    assert!(n_refused > 1000, "{n_refused}");
}

#[test]
fn any_value_of_any_key_of_an_assistant() {
    let own = models::assistant("gemma4", GgmlType::Q4_0);
    any_value_of_any_key_beside("gemma4", &own.unwrap().unwrap(), 300);
}

#[test]
fn any_value_of_any_key_of_eagle3() {
    for kind in [Eagle3::Short, Eagle3::Narrow] {
        any_value_of_any_key_beside("llama", &eagle3(kind, GgmlType::Q4_0).unwrap(), 200);
    }
}

#[test]
fn any_value_of_any_key_of_dflash() {
    let own = dflash(Dflash::Own, GgmlType::Q4_0);
    any_value_of_any_key_beside("llama", &own.unwrap(), 200);
}

/// A drafter, beside a model that it was made for: with hostile values of each key, and without a tensor or with one of another
/// shape. At least `n_least` of these files are refused.
fn any_value_of_any_key_beside(target: &str, own: &Writer<'_>, n_least: usize) {
    let target = models::model(target, GgmlType::Q4_0).unwrap().unwrap();
    let target = Model::load(Arc::new(file(&target))).unwrap();
    let whole = file(own);
    let own = without_vocabulary(&whole);
    assert_eq!(load_assistant(&target, &own, "as it is"), None);
    let gguf = file(&own);
    let reasons = |said: &str| names_its_reason(said) || said.contains("drafts for another model");
    let mut n_refused = 0;
    let mut try_it = |changed: &Writer<'_>, what: &str| {
        let loaded = catch_unwind(AssertUnwindSafe(|| load_assistant(&target, changed, what)));
        if let Some(said) = loaded.unwrap_or_else(|_| panic!("{what}")) {
            assert!(reasons(&said), "{what}: {said}");
            n_refused += 1;
        }
    };
    let of_others = keys()
        .into_iter()
        .map(|key| format!("{}.{key}", arch(&gguf)));
    let own_keys = gguf.metadata().iter().map(|(key, _)| key.to_string());
    let all: BTreeSet<String> = of_others.chain(own_keys).collect();
    let all = all.iter().filter(|key| !key.starts_with("general."));
    for (turn, key) in all.enumerate() {
        for value in every_nth(2, turn, values()) {
            let what = format!("{key} = {value:?}");
            let mut changed = own.clone();
            changed.set(key, value);
            try_it(&changed, &what);
        }
    }
    for left_out in gguf.tensors() {
        for dims in [None, Some([7]), Some([512])] {
            let mut changed = Writer::new(arch(&gguf));
            for (key, value) in gguf.metadata().iter() {
                changed.set(key, value);
            }
            for info in gguf.tensors() {
                let data = gguf.tensor_data(info);
                let is_same = info.name != left_out.name;
                match dims {
                    _ if is_same => changed.add_tensor(&info.name, &info.dims, info.ty, data),
                    Some([n]) => {
                        let zeros = vec![0.0; n as usize];
                        changed.add_tensor_f32(&info.name, &[n], GgmlType::F32, &zeros)
                    }
                    None => continue,
                }
                .unwrap();
            }
            try_it(&changed, &format!("{}: {dims:?}", left_out.name));
        }
    }
    assert!(n_refused > n_least, "{n_refused}");
}

/// In one test, since the keys of all models take as long as those of a shard.
#[test]
fn any_value_of_any_key() {
    let keys = keys();
    assert!(keys.len() > 50, "{keys:?}");
    std::thread::scope(|scope| {
        for shard in 0..4 {
            scope.spawn({
                let keys = &keys;
                move || tries_keys(keys, shard)
            });
        }
    });
}
