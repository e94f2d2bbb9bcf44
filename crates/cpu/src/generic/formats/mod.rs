//! The formats, by family.

mod iq;
mod k;
mod lattice;
mod legacy;
mod nvfp;
mod q1;
mod q2;
mod ternary;
