//! The drivers: one function table, filled by HIP, by CUDA or by the CPU that plays a GPU.

pub(crate) mod api;
pub(crate) mod host;
