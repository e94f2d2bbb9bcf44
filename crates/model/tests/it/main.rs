//! Tests of recorded plans: what they compute, cost, fusion, placement.

mod cost;
mod embeddings;
mod families;
mod fusion;
mod placement;
mod plan_text;
mod plans;
mod scales;
mod shared_experts;
