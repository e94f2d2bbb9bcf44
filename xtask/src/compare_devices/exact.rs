//! A model's weights in f16. The CPU multiplies them with f32 activations, while it rounds those of quantized weights.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rocmforge_gguf::Gguf;
use rocmforge_quantize::{FileType, QuantizeOptions, QuantizePlan, Requantize};

/// Returns the model with all matrices in f16, in memory.
pub(super) fn in_f16(gguf: Arc<Gguf>) -> Result<Gguf> {
    let options = QuantizeOptions {
        requantize: Requantize::Allow,
        ..QuantizeOptions::new(FileType::F16)
    };
    let plan = QuantizePlan::new(gguf, options)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(usize::try_from(plan.file_bytes())?)
        .context("no memory for the model in f16")?;
    plan.write(&mut bytes, 1, |_| ControlFlow::Continue(()))?;
    Ok(Gguf::from_vec(bytes)?)
}
