//! Bounds the heap that parsing may use: four times the header and 64 MB, whatever the file says. A test program of its
//! own, because its allocator counts every allocation of the process.

#[path = "it/raw.rs"]
mod raw;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use raw::Raw;
use rocmforge_gguf::Gguf;

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator. The
// default `realloc` allocates before it frees, so the peak counts both.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `ptr` came from `alloc` above with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Parses `bytes`. Returns whether that succeeded and by how many bytes the heap grew.
fn parse(bytes: Vec<u8>) -> (bool, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let ok = Gguf::from_vec(bytes).is_ok();
    (ok, PEAK.load(Relaxed) - before)
}

fn check(name: &str, valid: bool, raw: Raw) {
    let header = raw.bytes.len();
    let (ok, grown) = parse(raw.bytes);
    println!("{name}: header {header}, heap {grown} bytes, valid {ok}");
    assert_eq!(ok, valid, "{name}");
    let bound = 4 * header + (64 << 20);
    assert!(
        grown <= bound,
        "{name}: {grown} bytes of heap for a header of {header}"
    );
}

/// A single test function, because concurrent tests would add to the same peak.
#[test]
fn parsing_bounds_heap_use() {
    const MANY: u64 = 1 << 16;

    let mut raw = Raw::new(0, MANY);
    for i in 0..MANY {
        raw.string("", format!("{i:x}").as_bytes());
        raw.bytes.extend([0, 0, 0, 0, 0]);
    }
    raw.fields = Vec::new();
    check("many keys", true, raw);

    let mut raw = Raw::new(MANY, 0);
    for i in 0..MANY {
        raw.tensor(&format!("{i:x}"), &[1; 4], 24, i * 32);
    }
    raw.fields = Vec::new();
    check("many tensors", false, raw);

    let mut raw = Raw::new(MANY, 0);
    for i in 0..MANY {
        raw.tensor(&format!("{i:x}"), &[1; 4], 24, i * 32);
    }
    raw.fields = Vec::new();
    check("many tensors with data", true, raw.data(MANY as usize * 32));

    let mut raw = Raw::new(0, MANY);
    for i in 0..MANY {
        raw.string("", format!("{i:x}").as_bytes());
        raw.bytes.extend(9u32.to_le_bytes());
        raw.array("", 8, 1);
        raw.bytes.extend([0; 8]);
    }
    raw.fields = Vec::new();
    check("many arrays of one string", true, raw);

    let n = 4 << 20;
    let mut raw = Raw::new(0, 1);
    raw.key("strings", 9);
    raw.array("strings", 8, n);
    raw.bytes.resize(raw.bytes.len() + 8 * n as usize, 0);
    check("many empty strings", true, raw);

    let mut raw = Raw::new(0, 1);
    raw.key("arrays", 9);
    raw.array("arrays", 9, n);
    raw.bytes.resize(raw.bytes.len() + 12 * n as usize, 0);
    check("many empty arrays", true, raw);

    let mut raw = Raw::new(0, 1);
    raw.key("bytes", 9);
    raw.array("bytes", 0, 100 << 20);
    raw.bytes.resize(raw.bytes.len() + (100 << 20), 0);
    check("one large array", true, raw);

    let mut raw = Raw::new(0, 600);
    for i in 0..600 {
        let key = format!("{i:x>65535}");
        raw.key(&key, 0);
        raw.bytes.push(0);
    }
    raw.fields = Vec::new();
    check("long keys", true, raw);

    let sample = Raw::sample();
    for (name, at, width) in &sample.fields {
        for v in [0, 1 << 31, 1 << 60, u64::MAX] {
            let (_, grown) = parse(sample.with(*at, *width, v));
            assert!(grown < 1 << 20, "{name} = {v}: {grown} bytes of heap");
        }
    }
}
