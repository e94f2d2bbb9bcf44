//! Integration tests of the engine with forge-mini and small random models, on the CPU and on emulated GPUs.

mod architectures;
mod batch_invariant;
mod common;
mod context_shift;
mod embeddings;
mod expert_scales;
mod families;
mod finish;
mod gelu;
mod golden;
mod gpu;
mod gpu_combinations;
mod gpu_shift;
mod hostile;
mod hybrid;
mod invariance;
mod lora;
mod lora_gpu;
mod model;
mod own_drafter;
mod routing;
mod speculation;
mod states;
mod step_times;
mod structured;
mod tuning;
