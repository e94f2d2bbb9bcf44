//! libFuzzer entry point of the target of this name in `crates/fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rocmforge_fuzz::run("http", data));
