//! GGUF files and quantization formats. Knows no model and no device.
#![deny(unsafe_code)]
