//! The thread pool that every CPU kernel runs on.
//!
//! A transformer layer is about ten short parallel loops, so a dispatch must cost far less than the microseconds of
//! work it hands out. Threads are created once; while they are hot, a dispatch is a few atomic operations and no system
//! call. Idle threads first spin, then yield, then park, so an idle engine uses no CPU. Tasks are claimed from one
//! atomic counter, which balances cores of different speed.
//!
//! A dispatch does not wait for threads that never arrive: workers join an open job by a compare-and-swap on its
//! ticket. The caller closes the ticket once the counter has run out, then waits only for the workers that joined. A
//! descheduled or parked worker therefore delays no other thread.
//!
//! `run.rs` has the protocol, `split.rs` splits a matrix into disjoint parts, `topology.rs` decides where threads run.

#![allow(
    unsafe_code,
    reason = "threads share a borrowed task and disjoint slices"
)]

mod run;
mod split;
mod topology;

pub use run::{MAX_THREADS, Pool};
pub use split::{MatrixMut, Tile};
pub use topology::default_threads;
