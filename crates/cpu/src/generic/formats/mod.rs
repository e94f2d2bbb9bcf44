//! The block formats: an implementation of [`Format`](super::format::Format) on each block struct.

mod iq;
mod k;
mod legacy;
