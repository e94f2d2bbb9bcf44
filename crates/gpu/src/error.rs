//! What can go wrong with a GPU.

/// An error of a GPU, its driver or this build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// A driver's call failed.
    #[error("{call} failed with {code} ({text})")]
    Driver {
        call: &'static str,
        code: i32,
        text: String,
    },
    /// The build has no image of this name.
    #[error(
        "this build has no kernels for {target}; build it again with ROCMFORGE_GPU_TARGETS={target}"
    )]
    NoImage { target: String },
    /// An image lacks a kernel or a number that it should have.
    #[error("the image {module} for {target} has no {name}; build the program again")]
    NoSymbol {
        target: String,
        module: String,
        name: String,
    },
    /// A weight format without kernels.
    #[error(
        "there are no GPU kernels for weights in {ty}; quantize the model to another type, or run it on the CPU"
    )]
    Format { ty: &'static str },
}
