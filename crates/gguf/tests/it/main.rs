//! Tests of the public API, in one program so that they link once. `heap.rs` is a program of its own.

mod conformance;
mod forge_mini;
mod hostile;
mod inputs;
mod quant;
mod quantize;
mod raw;
mod split;
mod write;
