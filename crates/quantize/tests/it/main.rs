//! Tests of quantization against llama.cpp.

mod quantize;
