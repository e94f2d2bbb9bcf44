//! What can go wrong with a GPU: facts and what to do about them.

/// An error of a GPU, its driver or this build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// No library of the driver could be opened.
    #[error("no {driver} driver library: {text}; {}", advice_for_library(driver))]
    NoLibrary {
        driver: &'static str,
        /// What the dynamic linker said of each place.
        text: String,
    },
    /// The driver's library is too old, or not what its name says.
    #[error("{library} has no function {symbol}; {}", advice_for_symbol(driver))]
    NoFunction {
        driver: &'static str,
        library: String,
        symbol: &'static str,
    },
    /// The driver works and has no such device.
    #[error(
        "there is no device {device}: {driver} has {n_devices}; `rocmforge devices` lists what there is"
    )]
    NoDevice {
        driver: &'static str,
        device: String,
        n_devices: usize,
    },
    /// A driver's call failed.
    #[error("{call} failed with {code} ({text}){}", advice_text(advice))]
    Driver {
        call: &'static str,
        code: i32,
        /// The driver's words.
        text: String,
        /// What to do; may be empty.
        advice: &'static str,
    },
    /// The device was lost by an earlier call, and can do nothing more in this process.
    #[error("the GPU stopped working: {cause}")]
    Lost { cause: Box<GpuError> },
    /// Device memory, or pinned host memory, ran out.
    #[error(
        "the GPU has no room for {bytes} bytes: {free} of {total} are free; use a smaller model, a smaller context, or \
         stop other programs that use it"
    )]
    OutOfMemory { bytes: u64, free: u64, total: u64 },
    /// The build has no image of this name.
    #[error(
        "this build has no kernels for {target}; build it again with ROCMFORGE_GPU_TARGETS={target}"
    )]
    NoImage { target: String },
    /// The build has no image that this device can run.
    #[error(
        "this build has no kernels for {device} ({architecture}); it has {images}{}",
        advice_for_image(wanted)
    )]
    NoImageForDevice {
        device: String,
        architecture: String,
        /// The targets in the build.
        images: String,
        /// The target to build for; empty for a device that is too old.
        wanted: String,
    },
    /// The file with the kernels of a development build cannot be read.
    #[error(
        "this development build cannot read its kernels from {path}: {reason}; build it again, or with --release"
    )]
    KernelArchive { path: &'static str, reason: String },
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
    /// A batch of products that cannot be run.
    #[error(transparent)]
    Batch(BatchError),
}

/// What is wrong with a batch of products, or with a weight for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("the batch has no operations; add one at least")]
    Empty,
    #[error("the batch has {n} operations; {most} are the most, so split it")]
    TooManyOperations { n: usize, most: usize },
    #[error("operation {op} has no rows of activations; give one at least")]
    NoRows { op: usize },
    #[error(
        "operation {op} has {n_rows} rows; {most} are the most, since a product of more keeps a device busy alone: run it \
         with ops::matmul, or split it"
    )]
    TooManyRows {
        op: usize,
        n_rows: usize,
        most: usize,
    },
    #[error("operation {op} names a weight of another batch; add the weight to this one")]
    UnknownWeight { op: usize },
    #[error(
        "operation {op} has {found} values of input; {n_rows} rows of {n_in} columns are {expected}"
    )]
    InputLength {
        op: usize,
        found: usize,
        n_rows: usize,
        n_in: usize,
        expected: usize,
    },
    #[error("the input of operation {op} is in the memory of another device; copy it to this one")]
    OtherDevice { op: usize },
    #[error("the batch has {values} values of {what}; {most} are the most, so split it")]
    TooLarge {
        what: &'static str,
        values: usize,
        most: usize,
    },
    #[error("a weight of {n_out} rows and {n_in} columns is no matrix")]
    EmptyWeight { n_out: usize, n_in: usize },
    #[error(
        "rows of {n_in} columns are not whole blocks of {block_len} values, which {ty} has; fill them up"
    )]
    Columns {
        ty: &'static str,
        n_in: usize,
        block_len: usize,
    },
    #[error(
        "{found} bytes are not the blocks of a weight in {ty}; {n_out} rows of {n_in} columns have {expected}"
    )]
    WeightBytes {
        ty: &'static str,
        n_out: usize,
        n_in: usize,
        found: usize,
        expected: String,
    },
    #[error("{n} batches are in flight, as many as the launcher takes; wait for one")]
    QueueFull { n: usize },
    #[error("a launcher for no batches can do nothing; give it room for one at least")]
    NoRoom,
}

impl GpuError {
    /// Whether the device can do nothing more in this process.
    pub fn is_fatal(&self) -> bool {
        match self {
            GpuError::Lost { .. } => true,
            GpuError::Driver { code, .. } => crate::driver::api::code::is_fatal(*code),
            _ => false,
        }
    }
}

fn advice_for_library(driver: &str) -> &'static str {
    match driver {
        "HIP" => {
            "on a machine with an AMD GPU install the HIP runtime (package hip-runtime-amd, rocm-hip-runtime or \
             libamdhip64)"
        }
        _ => "on a machine with an NVIDIA GPU install NVIDIA's driver (it brings libcuda.so.1)",
    }
}

fn advice_for_symbol(driver: &str) -> &'static str {
    match driver {
        "HIP" => "install ROCm 5.2 or newer",
        _ => "install an NVIDIA driver of version 525 or newer",
    }
}

fn advice_for_image(wanted: &str) -> String {
    if wanted.is_empty() {
        return "; the oldest NVIDIA GPUs that it can be built for have compute capability 8.0"
            .into();
    }
    format!("; build it again with ROCMFORGE_GPU_TARGETS={wanted}")
}

fn advice_text(advice: &str) -> String {
    if advice.is_empty() {
        return String::new();
    }
    format!("; {advice}")
}

/// What to do about a driver's code. HIP and CUDA number these alike.
pub(crate) fn advice(code: i32) -> &'static str {
    match code {
        3 => "look at the kernel's log (dmesg) and at the driver's installation",
        34 => "a stub library of the toolkit was loaded; remove its folder from LD_LIBRARY_PATH",
        35 | 803 | 804 => {
            "the kernel's driver and the library are of different versions; install matching ones, or restart"
        }
        46 => "another program uses the GPU alone; stop it, or change the GPU's compute mode",
        100 | 101 => {
            "check that the GPU is there (lspci) and that this user may open it: /dev/kfd and /dev/dri/render* need \
             the groups render and video; HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES hide devices"
        }
        200 | 209 | 218 | 300 | 303 => {
            "the driver does not take this build's kernels; choose another image with --gpu-image, or update the driver"
        }
        221 => {
            "the driver's PTX compiler is missing (libnvidia-ptxjitcompiler.so.1); install the whole driver"
        }
        222 => {
            "the driver is too old for this build's kernels; update it, or use --gpu-image sm_80"
        }
        802 => "the GPU's system services are not ready (fabric manager); start them",
        code if crate::driver::api::code::is_fatal(code) => {
            "the GPU faulted; start the program again, and look at the kernel's log (dmesg)"
        }
        _ => "",
    }
}
