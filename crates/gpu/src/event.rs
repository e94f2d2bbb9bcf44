//! Events: points in the work of a device to wait for and to take times between.

use std::sync::Arc;

use crate::driver::api::{Handle, code};
use crate::error::GpuError;
use crate::gpu::{Gpu, Inner};

/// A queue of work beside the device's main stream: of copies, or of what a graph records.
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    gpu: Arc<Inner>,
}

// SAFETY: drivers take handles from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub(crate) fn new(gpu: &Gpu) -> Result<Stream, GpuError> {
        let gpu = Arc::clone(&gpu.inner);
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written before the call returns.
        gpu.call("stream_create", |calls| unsafe {
            (calls.stream_create)(&raw mut handle, 1)
        })?;
        Ok(Stream { handle, gpu })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is not used after this. The call waits for its copies; errors cannot be reported here.
        let _ = self.gpu.call("stream_destroy", |calls| unsafe {
            (calls.stream_synchronize)(self.handle);
            (calls.stream_destroy)(self.handle)
        });
    }
}

/// A point in the work of a device.
pub struct Event {
    handle: Handle,
    gpu: Arc<Inner>,
}

// SAFETY: drivers take handles from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; recording is ordered by the driver.
unsafe impl Sync for Event {}

impl Event {
    pub fn new(gpu: &Gpu) -> Result<Event, GpuError> {
        let gpu = Arc::clone(&gpu.inner);
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written before the call returns.
        gpu.call("event_create", |calls| unsafe {
            (calls.event_create)(&raw mut handle, 0)
        })?;
        Ok(Event { handle, gpu })
    }

    /// Records the event after all launches so far.
    pub fn record(&self) -> Result<(), GpuError> {
        self.record_on(self.gpu.stream())
    }

    pub(crate) fn record_on(&self, stream: Handle) -> Result<(), GpuError> {
        // SAFETY: both are of this device and in use.
        self.gpu.call("event_record", |calls| unsafe {
            (calls.event_record)(self.handle, stream)
        })
    }

    /// Makes work queued on the stream from now on wait for the event.
    pub(crate) fn block_stream(&self, stream: Handle) -> Result<(), GpuError> {
        // SAFETY: both are of this device and in use.
        self.gpu.call("stream_wait", |calls| unsafe {
            (calls.stream_wait)(stream, self.handle, 0)
        })
    }

    /// Whether all work before the last record is done.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        // SAFETY: the event is in use.
        let done = self.gpu.call("event_query", |calls| unsafe {
            (calls.event_query)(self.handle)
        });
        match done {
            Ok(()) => Ok(true),
            Err(GpuError::Driver {
                code: code::NOT_READY,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until all work before the last record is done.
    pub fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the event is in use.
        self.gpu.call("event_synchronize", |calls| unsafe {
            (calls.event_synchronize)(self.handle)
        })
    }

    /// Milliseconds from `start` to this event, by the device's clock. Both must be done.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32, GpuError> {
        let mut ms = 0.0;
        // SAFETY: both are in use; `ms` is written before the call returns.
        self.gpu.call("event_elapsed", |calls| unsafe {
            (calls.event_elapsed)(&raw mut ms, start.handle, self.handle)
        })?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is not used after this. Errors cannot be reported here.
        let _ = self.gpu.call("event_destroy", |calls| unsafe {
            (calls.event_destroy)(self.handle)
        });
    }
}
