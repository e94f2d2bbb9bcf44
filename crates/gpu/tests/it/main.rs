//! The tests of kernels, drivers and the CPU emulator: one program, so that they share one link and run side by side.
//!
//! `driver`, `faults`, `host_driver`, `images` and `kernel_cache` need the machine that built them; all others run on
//! any device (`ROCMFORGE_TEST_DEVICE`).

mod build_notice;
mod common;

mod argmax;
mod attention;
mod batch;
mod chunks;
mod driver;
mod elementwise;
mod expand;
mod experts;
mod faults;
mod functions;
mod gated;
mod gemm_half;
mod gemv_wide;
mod half_rows;
mod heads;
mod host_driver;
mod images;
mod kernel_cache;
mod kv_move;
mod layouts;
mod mask;
mod matmul;
mod matvec;
mod mma;
mod mxfp6;
mod norm;
mod recurrent;
mod roofline;
mod rope_kv;
mod router;
mod routing;
mod row_order;
mod rows;
mod same_bits;
mod sample;
mod step_io;
mod streams;
mod trace;
mod tuning;
