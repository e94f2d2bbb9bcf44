//! Models of which only the weights are missing, for those that are too large to be filled as the small ones are.

use rocmforge_gguf::Writer;

/// A model without its weights.
#[derive(Debug)]
pub struct Outline {
    /// The metadata; no tensors.
    pub header: Writer<'static>,
    /// In the file's order.
    pub tensors: Vec<OutlineTensor>,
}

/// A tensor whose values are yet to be chosen.
#[derive(Debug)]
pub struct OutlineTensor {
    pub name: String,
    /// Row length first.
    pub dims: Vec<u64>,
    pub values: Values,
}

/// The values of a tensor.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Of the model's type, with variance `1 / row length`.
    Matrix,
    /// In F32, uniform within `reach` of `mean`.
    Floats { mean: f32, reach: f32 },
}
