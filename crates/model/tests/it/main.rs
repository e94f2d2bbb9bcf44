//! Tests of plans as models record them: cost, placement.

mod cost;
mod fusion;
mod placement;
