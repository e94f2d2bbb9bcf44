//! Settings for which parts of a model run on the GPU.

/// Which parts of a model run on the GPU. The CPU runs the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    pub layers: GpuLayers,
    pub experts: Experts,
}

/// How many layers run on the GPU. They are the last layers of the model and include the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuLayers {
    #[default]
    All,
    /// As many as fit in its memory.
    Auto,
    Count(usize),
}

/// Where the experts of an MoE model's GPU layers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Experts {
    #[default]
    WithTheirLayer,
    OnCpu,
}

impl Offload {
    /// Everything runs on the CPU.
    pub const NOTHING: Offload = Offload {
        layers: GpuLayers::Count(0),
        experts: Experts::WithTheirLayer,
    };
}

impl std::str::FromStr for GpuLayers {
    type Err = String;

    /// Parses `auto`, `all` or a number.
    fn from_str(text: &str) -> Result<GpuLayers, String> {
        match text {
            "auto" => Ok(GpuLayers::Auto),
            "all" => Ok(GpuLayers::All),
            count => count.parse().map(GpuLayers::Count).map_err(|_| {
                format!("{text:?} is not a number of layers; use 0 or more, `auto` or `all`")
            }),
        }
    }
}
