//! Tests of recorded plans: cost, fusion, placement.

mod cost;
mod fusion;
mod placement;
