//! The block formats: implements [`Format`](super::format::Format) for each block struct.

mod iq;
mod k;
mod legacy;
mod q1;
