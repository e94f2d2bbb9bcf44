//! The ceilings of the roofline model (Williams, Waterman and Patterson 2009).

/// The peak rates of a device, or of some threads of a CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Bytes read from memory per second.
    pub read_bytes_per_s: f64,
    /// f32 operations per second; a multiply-add counts as two.
    pub f32_ops_per_s: f64,
    /// int8 dot-product operations per second, with sums left in the instruction's own layout; the f32 rate if the
    /// kernels have no such instruction.
    pub i8_ops_per_s: f64,
}
