//! Streams, events and graphs of the CPU emulator. Nothing is ever outstanding: work runs when it is queued. A
//! capturing stream records launches instead, with a copy of their parameters; a graph is that list.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::super::api::{Handle, Launch};
use super::{fail, run};

#[derive(Default)]
struct Stream {
    /// Launches since the capture began, if the stream is capturing.
    captured: Mutex<Option<Vec<Node>>>,
}

struct Node {
    function: Handle,
    grid: [u32; 3],
    n_threads: u32,
    shared_bytes: u32,
    /// u128, to be aligned for any parameter.
    params: Vec<u128>,
}

// SAFETY: functions may be called by their address from any thread.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

type Event = Mutex<Option<Instant>>;
type Graph = Arc<Vec<Node>>;

/// # Safety
/// The handle belongs to a stream that is not destroyed.
unsafe fn captured<'a>(stream: Handle) -> std::sync::MutexGuard<'a, Option<Vec<Node>>> {
    // SAFETY: guaranteed by the caller.
    let stream = unsafe { &*stream.cast::<Stream>() };
    stream.captured.lock().unwrap_or_else(|e| e.into_inner())
}

pub(super) fn is_capturing(stream: Handle) -> bool {
    // SAFETY: calls of the table get handles of live streams.
    unsafe { captured(stream) }.is_some()
}

pub(super) fn launch(launch: &Launch) -> i32 {
    // SAFETY: as above.
    let mut captured = unsafe { captured(launch.stream) };
    let Some(nodes) = captured.as_mut() else {
        drop(captured);
        // SAFETY: a launch has a loaded function and its parameters.
        return unsafe {
            run(
                launch.function,
                launch.grid,
                [launch.n_threads, launch.shared_bytes],
                launch.params,
            )
        };
    };
    let mut params = vec![0u128; launch.params_bytes.div_ceil(size_of::<u128>())];
    // SAFETY: both have that many bytes.
    unsafe {
        let from = launch.params.cast::<u8>();
        params
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(from, launch.params_bytes);
    }
    nodes.push(Node {
        function: launch.function,
        grid: launch.grid,
        n_threads: launch.n_threads,
        shared_bytes: launch.shared_bytes,
        params,
    });
    0
}

pub(super) unsafe extern "C" fn fill_bytes(to: u64, byte: u8, bytes: usize, stream: Handle) -> i32 {
    if is_capturing(stream) {
        return fail("fills cannot be captured, only launches");
    }
    // SAFETY: the caller gives a range of that many bytes.
    unsafe { (to as *mut u8).write_bytes(byte, bytes) };
    0
}

pub(super) unsafe extern "C" fn stream_create(to: *mut Handle, _: u32) -> i32 {
    // SAFETY: `to` is the caller's.
    unsafe { *to = Box::into_raw(Box::<Stream>::default()).cast() };
    0
}

pub(super) unsafe extern "C" fn stream_destroy(stream: Handle) -> i32 {
    // SAFETY: it came from `stream_create`.
    drop(unsafe { Box::from_raw(stream.cast::<Stream>()) });
    0
}

pub(super) unsafe extern "C" fn stream_synchronize(stream: Handle) -> i32 {
    if is_capturing(stream) {
        return fail("cannot wait for a capturing stream");
    }
    0
}

pub(super) unsafe extern "C" fn stream_wait(_: Handle, _: Handle, _: u32) -> i32 {
    0
}

pub(super) unsafe extern "C" fn event_create(to: *mut Handle, _: u32) -> i32 {
    // SAFETY: `to` is the caller's.
    unsafe { *to = Box::into_raw(Box::<Event>::default()).cast() };
    0
}

pub(super) unsafe extern "C" fn event_destroy(event: Handle) -> i32 {
    // SAFETY: it came from `event_create`.
    drop(unsafe { Box::from_raw(event.cast::<Event>()) });
    0
}

pub(super) unsafe extern "C" fn event_record(event: Handle, _: Handle) -> i32 {
    // SAFETY: it came from `event_create`.
    let event = unsafe { &*event.cast::<Event>() };
    *event.lock().unwrap_or_else(|e| e.into_inner()) = Some(Instant::now());
    0
}

pub(super) unsafe extern "C" fn event_done(_: Handle) -> i32 {
    0
}

pub(super) unsafe extern "C" fn event_elapsed(ms: *mut f32, start: Handle, end: Handle) -> i32 {
    // SAFETY: both came from `event_create`.
    let [start, end] = unsafe { [&*start.cast::<Event>(), &*end.cast::<Event>()] };
    let time = |event: &Event| *event.lock().unwrap_or_else(|e| e.into_inner());
    let (Some(start), Some(end)) = (time(start), time(end)) else {
        return fail("the event was not recorded");
    };
    // SAFETY: `ms` is the caller's.
    unsafe { *ms = end.saturating_duration_since(start).as_secs_f32() * 1e3 };
    0
}

pub(super) unsafe extern "C" fn capture_begin(stream: Handle, _: i32) -> i32 {
    // SAFETY: the stream is in use.
    let mut captured = unsafe { captured(stream) };
    if captured.is_some() {
        return fail("the stream is already capturing");
    }
    *captured = Some(Vec::new());
    0
}

pub(super) unsafe extern "C" fn capture_end(stream: Handle, to: *mut Handle) -> i32 {
    // SAFETY: the stream is in use.
    let Some(nodes) = unsafe { captured(stream) }.take() else {
        return fail("the stream is not capturing");
    };
    // SAFETY: `to` is the caller's.
    unsafe { *to = Box::into_raw(Box::<Graph>::new(Arc::new(nodes))).cast() };
    0
}

/// An executable graph is the same list.
pub(super) unsafe extern "C" fn graph_instantiate(to: *mut Handle, graph: Handle, _: u64) -> i32 {
    // SAFETY: it came from `capture_end`; `to` is the caller's.
    unsafe {
        let graph = (*graph.cast::<Graph>()).clone();
        *to = Box::into_raw(Box::new(graph)).cast();
    }
    0
}

pub(super) unsafe extern "C" fn graph_destroy(graph: Handle) -> i32 {
    // SAFETY: it came from `capture_end` or `graph_instantiate`.
    drop(unsafe { Box::from_raw(graph.cast::<Graph>()) });
    0
}

pub(super) unsafe extern "C" fn graph_launch(graph: Handle, stream: Handle) -> i32 {
    if is_capturing(stream) {
        return fail("cannot launch a graph during a capture");
    }
    // SAFETY: it came from `graph_instantiate`.
    let nodes = unsafe { (*graph.cast::<Graph>()).clone() };
    for node in nodes.iter() {
        let params = node.params.as_ptr().cast::<c_void>();
        // SAFETY: the modules of a device stay loaded while it is open, and its graphs keep it open.
        let code = unsafe {
            run(
                node.function,
                node.grid,
                [node.n_threads, node.shared_bytes],
                params,
            )
        };
        if code != 0 {
            return code;
        }
    }
    0
}
