//! Runs a launch on the CPU emulator: passes the execution order and the valid memory ranges to the image
//! (`kernels/host.h`, `kernels/host_memory.h`), and adds source lines to reported faults.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

thread_local! {
    /// The seed of the next launch's order.
    static SEED: Cell<u64> = Cell::new(first_seed());
}

/// Returns the initial seed of a thread: `ROCMFORGE_HOST_SEED`, or 1.
fn first_seed() -> u64 {
    let text = std::env::var("ROCMFORGE_HOST_SEED").unwrap_or_default();
    text.parse().unwrap_or(1)
}

/// Seeds the order in which the CPU emulator runs blocks, waves and lanes in the next launches of this thread; each
/// launch uses another order. Results that depend on the seed reveal a race. Other drivers ignore it.
pub fn set_host_seed(seed: u64) {
    SEED.set(seed);
}

/// Device memory: sizes in bytes by address.
static BUFFERS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn buffers() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    BUFFERS.lock().unwrap_or_else(|error| error.into_inner())
}

/// Allows kernels to use these bytes from now on.
pub(super) fn add_buffer(ptr: u64, n_bytes: usize) {
    buffers().insert(ptr, n_bytes as u64);
}

/// Ends what [`add_buffer`] allowed.
pub(super) fn remove_buffer(ptr: u64) {
    buffers().remove(&ptr);
}

pub(super) type Kernel = unsafe extern "C" fn(*const c_void);
/// Type of `host_launch` of an image.
pub(super) type Run = unsafe extern "C" fn(*const HostLaunch) -> i32;

pub(super) struct Launch {
    pub(super) kernel: Kernel,
    pub(super) params: *const c_void,
    pub(super) grid: [u32; 3],
    pub(super) n_threads: u32,
    pub(super) shared_bytes: u32,
    /// Maximum shared memory of a block on the emulated GPU.
    pub(super) max_shared_bytes: u32,
}

#[repr(C)]
struct Range {
    start: u64,
    n_bytes: u64,
}

/// As in `kernels/host.h`.
#[repr(C)]
pub(super) struct HostLaunch {
    kernel: Kernel,
    params: *const c_void,
    grid: [u32; 3],
    n_threads: u32,
    shared_bytes: u32,
    max_shared_bytes: u32,
    n_ranges: u32,
    ranges: *const Range,
    seed: u64,
    error: *mut c_char,
    error_bytes: u64,
}

const _: () = assert!(size_of::<HostLaunch>() == 80);

/// Runs a kernel to its end or to its first fault, whose text is the error. `image` is the kernel's image file.
///
/// # Safety
/// Both functions belong to that image, and `params` points to the struct that the kernel takes.
pub(super) unsafe fn run(run: Run, launch: &Launch, image: &File) -> Result<(), String> {
    let ranges: Vec<Range> = buffers()
        .iter()
        .map(|(&start, &n_bytes)| Range { start, n_bytes })
        .collect();
    let mut text = [0u8; 512];
    let launch = HostLaunch {
        kernel: launch.kernel,
        params: launch.params,
        grid: launch.grid,
        n_threads: launch.n_threads,
        shared_bytes: launch.shared_bytes,
        max_shared_bytes: launch.max_shared_bytes,
        n_ranges: ranges.len() as u32,
        ranges: ranges.as_ptr(),
        seed: SEED.replace(SEED.get().wrapping_add(0x9e37_79b9)),
        error: text.as_mut_ptr().cast(),
        error_bytes: text.len() as u64,
    };
    // SAFETY: guaranteed by the caller; the text and the ranges outlive the call.
    if unsafe { run(&raw const launch) } == 0 {
        return Ok(());
    }
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Err(with_line(&text.to_string_lossy(), image))
}

/// Replaces `<offset in the image>` with a source line, if an addr2line program is installed.
fn with_line(text: &str, image: &File) -> String {
    let parts = text
        .split_once('<')
        .and_then(|(before, rest)| Some((before, rest.split_once('>')?)));
    let Some((before, (offset, after))) = parts else {
        return text.into();
    };
    let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
    let lines = ["llvm-addr2line-19", "llvm-addr2line", "addr2line"]
        .into_iter()
        .filter_map(|program| {
            let mut command = Command::new(program);
            command.args(["--basenames", "--exe", &path, offset]);
            let line = String::from_utf8(command.output().ok()?.stdout).ok()?;
            let line = line.split_whitespace().next()?.to_string();
            (!line.starts_with('?')).then_some(line)
        })
        .next();
    format!(
        "{before}{}{after}",
        lines.unwrap_or_else(|| format!("+0x{offset}"))
    )
}
