//! The ceilings of the roofline model (Williams, Waterman and Patterson 2009).

/// What some threads of this machine can do together, at best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Bytes read from memory in a second.
    pub read_bytes_per_s: f64,
    /// Operations on f32 in a second; a multiply-add counts as two.
    pub f32_ops_per_s: f64,
    /// Operations of int8 dot products in a second, sums left in the form that the instruction gives;
    /// those on f32 where the kernels have no such instruction.
    pub i8_ops_per_s: f64,
}
