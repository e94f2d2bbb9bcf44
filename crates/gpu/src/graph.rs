//! Graphs: launches recorded once and replayed as a whole. Their parameters hold the addresses of the recording, so
//! memory that a graph may use is freed only after the graph (`deferred_free.rs`).
//!
//! Each recording has a stream of its own, which ends with it. HIP may refuse all work on a stream after a recording on it
//! failed (ROCm/rocm-systems pull request 6509), and the next recording (ROCm 6.4.0, ROCm/legacy-rocm-build issue 4614).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::driver::api::{Handle, name_of};
use crate::error::GpuError;
use crate::event::Stream;
use crate::gpu::{Gpu, Inner};

/// Relaxed mode: the first use of a kernel may load its module during the recording.
const CAPTURE_RELAXED: i32 = 2;

/// Recorded launches. Replays are queued like launches.
pub struct Graph {
    exec: Handle,
    /// When it was recorded, by the clock of `deferred_free`.
    created_at: u64,
    gpu: Arc<Inner>,
}

// SAFETY: drivers take handles from any thread.
unsafe impl Send for Graph {}

impl Gpu {
    /// Records what `launches` queues, without running it. Only launches are allowed, no copies and no waits. No other
    /// thread may use the device meanwhile.
    ///
    /// # Errors
    /// Those of `launches`; the driver's, if something cannot be recorded.
    pub fn capture(
        &self,
        launches: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<Graph, GpuError> {
        let gpu = &self.inner;
        let mut recording = Recording::begin(self)?;
        let queued = launches();
        let template = recording.end();
        queued?;
        let template = Template {
            handle: template?,
            gpu,
        };
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was just recorded; `exec` is written before the call returns.
        gpu.call("graph_instantiate", |calls| unsafe {
            (calls.graph_instantiate)(&raw mut exec, template.handle, 0)
        })?;
        let created_at = gpu.deferred_free.lock().add_graph();
        Ok(Graph {
            exec,
            created_at,
            gpu: Arc::clone(gpu),
        })
    }
}

/// A capture, and the stream that it ends with. Dropping it ends the capture, also if the launches panic.
struct Recording<'a> {
    gpu: &'a Inner,
    stream: Stream,
    is_open: bool,
}

impl<'a> Recording<'a> {
    /// Sends all that is queued from now on to a new stream, which captures it.
    fn begin(gpu: &'a Gpu) -> Result<Recording<'a>, GpuError> {
        let stream = Stream::new(gpu)?;
        let gpu = &*gpu.inner;
        gpu.deferred_free.lock().begin();
        let mut recording = Recording {
            gpu,
            stream,
            is_open: false,
        };
        let handle = recording.stream.handle;
        // SAFETY: the stream is in use.
        gpu.call("capture_begin", |calls| unsafe {
            (calls.capture_begin)(handle, CAPTURE_RELAXED)
        })?;
        recording.is_open = true;
        gpu.begin_sequence();
        gpu.capturing.store(handle, Ordering::Release);
        Ok(recording)
    }

    fn end(&mut self) -> Result<Handle, GpuError> {
        self.is_open = false;
        self.gpu.begin_sequence();
        self.gpu
            .capturing
            .store(std::ptr::null_mut(), Ordering::Release);
        let mut template = std::ptr::null_mut();
        // SAFETY: the stream is capturing; `template` is written before the call returns.
        self.gpu.call("capture_end", |calls| unsafe {
            (calls.capture_end)(self.stream.handle, &raw mut template)
        })?;
        if template.is_null() {
            let call = name_of(self.gpu.driver.vendor, "capture_end");
            return Err(self.gpu.failed(call, 1, "nothing was recorded"));
        }
        Ok(template)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if self.is_open
            && let Ok(handle) = self.end()
        {
            drop(Template {
                handle,
                gpu: self.gpu,
            });
        }
        // Memory freed during a recording that failed is released here.
        self.gpu.end_recording();
    }
}

/// A recorded graph, from which executable graphs are made.
struct Template<'a> {
    handle: Handle,
    gpu: &'a Inner,
}

impl Drop for Template<'_> {
    fn drop(&mut self) {
        // SAFETY: it is not used after this. Errors cannot be reported here.
        let _ = self.gpu.call("graph_destroy", |calls| unsafe {
            (calls.graph_destroy)(self.handle)
        });
    }
}

impl Graph {
    /// Queues the recorded launches again.
    pub fn launch(&self) -> Result<(), GpuError> {
        self.gpu.begin_sequence();
        // SAFETY: the graph's modules and memory live as long as the graph.
        self.gpu.call("graph_launch", |calls| unsafe {
            (calls.graph_launch)(self.exec, self.gpu.stream())
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is not used after this, and the call waits for its last replay. Errors cannot be reported
        // here.
        let _ = self.gpu.call("graph_exec_destroy", |calls| unsafe {
            (calls.stream_synchronize)(self.gpu.stream());
            (calls.graph_exec_destroy)(self.exec)
        });
        self.gpu.drop_graph(self.created_at);
    }
}
