//! Tests of the public API, in one program so that they link once.

mod activations;
mod attention;
mod experts;
mod fused;
mod kv;
mod matmul;
mod ops;
mod pool;
mod random;
mod states;
mod streams;
