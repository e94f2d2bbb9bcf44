//! Which parts of a model run on the GPU.

/// What of a model is computed on the GPU; the CPU has the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    pub layers: GpuLayers,
    pub experts: Experts,
}

/// How many of a model's layers are the GPU's: the last ones, and the output with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuLayers {
    #[default]
    All,
    /// As many as its memory has room for.
    Auto,
    Count(usize),
}

/// Where the experts of a mixture are, of layers that are the GPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Experts {
    #[default]
    WithTheirLayer,
    OnCpu,
}

impl Offload {
    /// The CPU computes everything.
    pub const NOTHING: Offload = Offload {
        layers: GpuLayers::Count(0),
        experts: Experts::WithTheirLayer,
    };
}

impl std::str::FromStr for GpuLayers {
    type Err = String;

    /// `auto`, `all` or a number.
    fn from_str(text: &str) -> Result<GpuLayers, String> {
        match text {
            "auto" => Ok(GpuLayers::Auto),
            "all" => Ok(GpuLayers::All),
            count => count.parse().map(GpuLayers::Count).map_err(|_| {
                format!("{text:?} is no number of layers; give 0 or more, auto or all")
            }),
        }
    }
}
