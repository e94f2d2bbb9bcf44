//! When memory may be given back: at once, unless a graph that was recorded while it was there may still use it.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

/// Memory of a driver.
#[derive(Clone, Copy)]
pub(crate) enum Memory {
    Device(u64),
    Pinned(*mut c_void),
}

/// What graphs there are, and the memory that waits for them.
#[derive(Default)]
pub(crate) struct Keeper(Mutex<State>);

#[derive(Default)]
pub(crate) struct State {
    clock: u64,
    n_recordings: u32,
    /// When each graph was recorded.
    graphs: BTreeSet<u64>,
    /// Memory given up, with the time since when it is there.
    waiting: Vec<(u64, Memory)>,
}

impl Keeper {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl State {
    /// The time of something new.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn begin(&mut self) {
        self.n_recordings += 1;
    }

    pub(crate) fn add_graph(&mut self) -> u64 {
        let born = self.tick();
        self.graphs.insert(born);
        born
    }

    /// A recording is over. What may be freed now.
    pub(crate) fn end(&mut self) -> Vec<Memory> {
        self.n_recordings -= 1;
        self.free_now()
    }

    /// A graph is gone. What may be freed now.
    pub(crate) fn remove_graph(&mut self, born: u64) -> Vec<Memory> {
        self.graphs.remove(&born);
        self.free_now()
    }

    /// Memory is given up. What may be freed now: nothing, or this.
    pub(crate) fn give_up(&mut self, born: u64, memory: Memory) -> Vec<Memory> {
        self.waiting.push((born, memory));
        self.free_now()
    }

    fn free_now(&mut self) -> Vec<Memory> {
        if self.n_recordings > 0 {
            return Vec::new();
        }
        // A graph knows what was there before it; the latest decides.
        let latest = self.graphs.last().copied().unwrap_or(0);
        let mut free = Vec::new();
        self.waiting.retain(|(born, memory)| {
            let is_used = *born < latest;
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
    fn memory_waits_for_graphs_that_may_know_it() {
        let mut state = State::default();
        let a = state.tick();
        assert_eq!(addresses(state.give_up(a, Memory::Device(1))), [1]);
        let [b, c] = [state.tick(), state.tick()];
        state.begin();
        // Given up while a graph is recorded that may have used it.
        assert_eq!(addresses(state.give_up(b, Memory::Device(2))), []);
        let first = state.add_graph();
        assert_eq!(addresses(state.end()), []);
        let second = state.add_graph();
        let d = state.tick();
        assert_eq!(addresses(state.give_up(d, Memory::Device(4))), [4]);
        assert_eq!(addresses(state.give_up(c, Memory::Device(3))), []);
        assert_eq!(addresses(state.remove_graph(first)), []);
        assert_eq!(addresses(state.remove_graph(second)), [2, 3]);
    }
}
