//! What to measure: the suites, their effort, the model they run and the devices.

use rocmforge_cpu::Isa;
use rocmforge_model::Model;

use crate::filter::Filter;
use crate::target::BenchDevice;

/// A bench suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// GEMM and GEMV with F32 and every quantized format.
    Matmul,
    /// Materialised, online-softmax and causal attention.
    Attention,
    /// Dequantization of every format.
    Dequant,
    /// Time to first token and generation of a model.
    Inference,
    /// KV cache: growth, allocation, fragmentation, page tables.
    Memory,
    /// Several products or sequences at once.
    Batch,
}

impl Suite {
    pub const ALL: [Suite; 6] = [
        Suite::Matmul,
        Suite::Attention,
        Suite::Dequant,
        Suite::Inference,
        Suite::Memory,
        Suite::Batch,
    ];

    /// Returns the name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Matmul => "matmul",
            Suite::Attention => "attention",
            Suite::Dequant => "dequant",
            Suite::Inference => "inference",
            Suite::Memory => "memory",
            Suite::Batch => "batch",
        }
    }
}

/// How thoroughly a suite measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    /// Small sizes and few samples, to check that everything runs.
    Quick,
}

impl Effort {
    /// Returns the size for this effort.
    pub(crate) fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }
}

/// The model that suites run.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Its name in rows.
    pub name: &'a str,
    /// Its quantization mix, such as `Q4_K_M`.
    pub format: Option<&'a str>,
    pub model: &'a Model,
}

/// What to measure, and on which devices.
pub struct Options<'a> {
    pub suite: Suite,
    /// Devices, measured one after the other.
    pub devices: &'a [BenchDevice],
    pub isa: Isa,
    /// Number of CPU threads.
    pub n_threads: usize,
    pub effort: Effort,
    pub filter: Option<&'a Filter>,
    /// The model of [`Suite::Inference`] and [`Suite::Batch`].
    pub subject: Option<Subject<'a>>,
}
