//! Errors of GPUs, drivers and this build: facts and what to do about them.

/// An error of a GPU, its driver or this build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// No library of the driver could be opened.
    #[error("no {driver} driver library: {text}; {advice}")]
    NoLibrary {
        driver: &'static str,
        /// The dynamic linker's message for each place.
        text: String,
        /// What to install.
        advice: String,
    },
    /// The driver's library is too old, or not the library its name says.
    #[error("{library} has no function {symbol}; {}", advice_for_symbol(driver))]
    NoFunction {
        driver: &'static str,
        library: String,
        symbol: &'static str,
    },
    /// The driver works but has no such device.
    #[error(
        "there is no device {device}: {driver} has {n_devices}; list the devices with `rocmforge devices`"
    )]
    NoDevice {
        driver: &'static str,
        device: String,
        n_devices: usize,
    },
    /// A driver call failed.
    #[error("{call} failed with {code} ({text}){}", advice_text(advice))]
    Driver {
        call: &'static str,
        code: i32,
        /// The driver's error text.
        text: String,
        /// What to do; may be empty.
        advice: &'static str,
    },
    /// An earlier call lost the device. It stays unusable in this process.
    #[error("the GPU stopped working: {cause}")]
    Lost { cause: Box<GpuError> },
    /// Device memory, or pinned host memory, ran out.
    #[error(
        "the GPU has no room for {bytes} bytes: {free} of {total} bytes are free; use a smaller model or a smaller \
         context, or stop other programs that use the GPU"
    )]
    OutOfMemory { bytes: u64, free: u64, total: u64 },
    /// The build has no image of this name.
    #[error(
        "this build has no kernels for {target}; rebuild it with ROCMFORGE_GPU_TARGETS={target}"
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
    /// An image is not as it was built, or a development build cannot read it.
    #[error(
        "the kernels {module} for {target} are damaged: {reason}; install this program or build it again"
    )]
    DamagedImage {
        target: &'static str,
        module: &'static str,
        reason: String,
    },
    /// An image lacks a kernel or a constant.
    #[error("the image {module} for {target} has no {name}; rebuild the program")]
    NoSymbol {
        target: String,
        module: String,
        name: String,
    },
    /// A weight format that has no kernels.
    #[error(
        "weights in {ty} have no GPU kernels; quantize the model to another type, or run it on the CPU"
    )]
    Format { ty: &'static str },
    /// A batch of matrix products that cannot run.
    #[error(transparent)]
    Batch(BatchError),
}

/// A fault of a batch of matrix products, or of a weight for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("the batch has no operations; add at least one")]
    Empty,
    #[error("the batch has {n} operations; the limit is {most}, so split it")]
    TooManyOperations { n: usize, most: usize },
    #[error("operation {op} has no rows of activations; give at least one")]
    NoRows { op: usize },
    #[error(
        "operation {op} has {n_rows} rows; the limit is {most}, since a larger product keeps a device busy alone: run \
         it with ops::matmul, or split it"
    )]
    TooManyRows {
        op: usize,
        n_rows: usize,
        most: usize,
    },
    #[error("operation {op} names a weight of another batch; add the weight to this batch")]
    UnknownWeight { op: usize },
    #[error(
        "operation {op} has {found} values of input; {n_rows} rows of {n_in} columns need {expected}"
    )]
    InputLength {
        op: usize,
        found: usize,
        n_rows: usize,
        n_in: usize,
        expected: usize,
    },
    #[error("the input of operation {op} is in memory of another device; copy it to this device")]
    OtherDevice { op: usize },
    #[error("the batch has {values} values of {what}; the limit is {most}, so split it")]
    TooLarge {
        what: &'static str,
        values: usize,
        most: usize,
    },
    #[error("a weight of {n_out} rows and {n_in} columns is empty")]
    EmptyWeight { n_out: usize, n_in: usize },
    #[error(
        "rows of {n_in} columns are not whole blocks of {block_len} values, the block length of {ty}; pad the rows"
    )]
    Columns {
        ty: &'static str,
        n_in: usize,
        block_len: usize,
    },
    #[error("the weight has {found} bytes; {n_out} rows of {n_in} columns in {ty} have {expected}")]
    WeightBytes {
        ty: &'static str,
        n_out: usize,
        n_in: usize,
        found: usize,
        expected: String,
    },
    #[error("{n} batches are in flight, the launcher's capacity; wait for one")]
    QueueFull { n: usize },
    #[error("the capacity of the launcher is 0; it must be at least 1")]
    NoRoom,
}

impl GpuError {
    /// Whether the device is unusable for the rest of this process.
    pub fn is_fatal(&self) -> bool {
        match self {
            GpuError::Lost { .. } => true,
            GpuError::Driver { code, .. } => crate::driver::api::code::is_fatal(*code),
            _ => false,
        }
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
        return "; the oldest supported NVIDIA GPUs have compute capability 8.0".into();
    }
    format!("; rebuild it with ROCMFORGE_GPU_TARGETS={wanted}")
}

fn advice_text(advice: &str) -> String {
    if advice.is_empty() {
        return String::new();
    }
    format!("; {advice}")
}

/// Returns what to do about a driver's error code. HIP and CUDA use the same numbers for these.
pub(crate) fn advice(code: i32) -> &'static str {
    match code {
        3 => "check the kernel log (dmesg) and the installation of the driver",
        34 => {
            "a stub library of the CUDA toolkit was loaded; remove its folder from LD_LIBRARY_PATH"
        }
        35 | 803 | 804 => {
            "the kernel driver and the library have different versions; install matching ones, or reboot"
        }
        46 => {
            "another program has exclusive use of the GPU; stop it, or change the GPU's compute mode"
        }
        100 | 101 => {
            "check that the GPU is present (lspci) and that this user may open it: /dev/kfd and /dev/dri/render* need \
             the groups render and video; HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES hide devices"
        }
        200 | 209 | 218 | 300 | 303 => {
            "the driver rejects this build's kernels; set ROCMFORGE_GPU_IMAGE to another image, or update the driver"
        }
        221 => {
            "the driver's PTX compiler is missing (libnvidia-ptxjitcompiler.so.1); install the complete driver"
        }
        222 => {
            "the driver is too old for this build's kernels; update it, or set ROCMFORGE_GPU_IMAGE=sm_80"
        }
        802 => "the GPU's system services are not ready (fabric manager); start them",
        code if crate::driver::api::code::is_fatal(code) => {
            "the GPU faulted; restart the program, and check the kernel log (dmesg)"
        }
        _ => "",
    }
}
