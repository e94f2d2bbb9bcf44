//! Decides when memory can be freed: at once, unless a graph recorded during its lifetime may still use it.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

/// An allocation of a driver.
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    Device(u64),
    Pinned(*mut c_void),
}

/// The live graphs, and the freed memory they may still use.
#[derive(Default)]
pub(crate) struct DeferredFree(Mutex<State>);

/// Times are ticks of `clock`, which counts allocations and recorded graphs.
#[derive(Default)]
pub(crate) struct State {
    clock: u64,
    n_recordings: u32,
    /// When each graph was recorded.
    graphs: BTreeSet<u64>,
    /// Freed memory, each with the time of its allocation.
    deferred: Vec<(u64, Memory)>,
}

impl DeferredFree {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl State {
    /// Returns the time of a new allocation or graph.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn begin(&mut self) {
        self.n_recordings += 1;
    }

    pub(crate) fn add_graph(&mut self) -> u64 {
        let created_at = self.tick();
        self.graphs.insert(created_at);
        created_at
    }

    /// Ends a recording. Returns the memory to free now.
    pub(crate) fn end(&mut self) -> Vec<Memory> {
        self.n_recordings -= 1;
        self.take_freeable()
    }

    /// Removes a graph. Returns the memory to free now.
    pub(crate) fn remove_graph(&mut self, created_at: u64) -> Vec<Memory> {
        self.graphs.remove(&created_at);
        self.take_freeable()
    }

    /// Gives up memory allocated at `created_at`. Returns the memory to free now: nothing, or this.
    pub(crate) fn release(&mut self, created_at: u64, memory: Memory) -> Vec<Memory> {
        self.deferred.push((created_at, memory));
        self.take_freeable()
    }

    fn take_freeable(&mut self) -> Vec<Memory> {
        if self.n_recordings > 0 {
            return Vec::new();
        }
        // A graph may use all memory allocated before it, so the latest graph decides.
        let latest = self.graphs.last().copied().unwrap_or(0);
        let mut free = Vec::new();
        self.deferred.retain(|(created_at, memory)| {
            let is_used = *created_at < latest;
            if !is_used {
                free.push(*memory);
            }
            is_used
        });
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(memory: Vec<Memory>) -> Vec<u64> {
        let address = |m| match m {
            Memory::Device(ptr) => ptr,
            Memory::Pinned(ptr) => ptr as u64,
        };
        memory.into_iter().map(address).collect()
    }

    #[test]
    fn memory_waits_for_graphs_that_may_use_it() {
        let mut state = State::default();
        let a = state.tick();
        assert_eq!(addresses(state.release(a, Memory::Device(1))), [1]);
        let [b, c] = [state.tick(), state.tick()];
        state.begin();
        // Freed while a graph is being recorded that may have used it.
        assert_eq!(addresses(state.release(b, Memory::Device(2))), []);
        let first = state.add_graph();
        assert_eq!(addresses(state.end()), []);
        let second = state.add_graph();
        let d = state.tick();
        assert_eq!(addresses(state.release(d, Memory::Device(4))), [4]);
        assert_eq!(addresses(state.release(c, Memory::Device(3))), []);
        assert_eq!(addresses(state.remove_graph(first)), []);
        assert_eq!(addresses(state.remove_graph(second)), [2, 3]);
    }
}
