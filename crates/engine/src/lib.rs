//! Inference: plans, paged KV cache, scheduling, sampling, tokenizers, chat templates.
#![forbid(unsafe_code)]
