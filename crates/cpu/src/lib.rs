//! CPU kernels on slices.
