//! Launches recorded once and replayed at once. Addresses in them are those of the recording, so memory that a graph may
//! use is given back only after the graph (`memory::Keeper`).

use std::sync::Arc;

use crate::driver::api::{Handle, name_of};
use crate::error::GpuError;
use crate::gpu::{Gpu, Inner};

/// Relaxed: the first use of a kernel may load its module while a graph is recorded.
const CAPTURE_RELAXED: i32 = 2;

/// Recorded launches. Replays are queued like launches.
pub struct Graph {
    exec: Handle,
    /// When it was recorded, on the keeper's clock.
    born: u64,
    gpu: Arc<Inner>,
}

// SAFETY: drivers take handles from any thread.
unsafe impl Send for Graph {}

impl Gpu {
    /// Records what `launches` queues, without running it. There may be launches only: no copy, no wait. No other thread
    /// may use the device meanwhile.
    ///
    /// # Errors
    /// Those of `launches`; the driver's, if something cannot be recorded.
    pub fn capture(
        &self,
        launches: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<Graph, GpuError> {
        let gpu = &self.inner;
        // SAFETY: the stream is there as long as the device.
        gpu.call("capture_begin", |calls| unsafe {
            (calls.capture_begin)(gpu.stream, CAPTURE_RELAXED)
        })?;
        gpu.keeper.lock().begin();
        let mut recording = Recording { gpu, is_open: true };
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
        let born = gpu.keeper.lock().add_graph();
        Ok(Graph {
            exec,
            born,
            gpu: Arc::clone(gpu),
        })
    }
}

/// A capture that is under way, ended also when the launches panic.
struct Recording<'a> {
    gpu: &'a Inner,
    is_open: bool,
}

impl Recording<'_> {
    fn end(&mut self) -> Result<Handle, GpuError> {
        self.is_open = false;
        let mut template = std::ptr::null_mut();
        // SAFETY: the stream captures; `template` is written before the call returns.
        self.gpu.call("capture_end", |calls| unsafe {
            (calls.capture_end)(self.gpu.stream, &raw mut template)
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
        // Memory given up while recording is freed here if the recording came to nothing.
        self.gpu.end_recording();
    }
}

/// What was recorded, from which graphs to run are made.
struct Template<'a> {
    handle: Handle,
    gpu: &'a Inner,
}

impl Drop for Template<'_> {
    fn drop(&mut self) {
        // SAFETY: it is not used after this. A failure has nobody to be told to.
        let _ = self.gpu.call("graph_destroy", |calls| unsafe {
            (calls.graph_destroy)(self.handle)
        });
    }
}

impl Graph {
    /// Queues the launches again.
    pub fn launch(&self) -> Result<(), GpuError> {
        // SAFETY: the graph's modules and memory are there as long as it is.
        self.gpu.call("graph_launch", |calls| unsafe {
            (calls.graph_launch)(self.exec, self.gpu.stream)
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is not used after this, and its last replay is waited for. Failures have nobody to be told
        // to.
        let _ = self.gpu.call("graph_exec_destroy", |calls| unsafe {
            (calls.stream_synchronize)(self.gpu.stream);
            (calls.graph_exec_destroy)(self.exec)
        });
        self.gpu.drop_graph(self.born);
    }
}
