//! Tests of importance matrices.

mod imatrix;
