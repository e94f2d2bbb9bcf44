//! Tests of importance matrices and KL divergence.

mod divergence;
mod imatrix;
