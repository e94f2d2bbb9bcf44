//! Target `gguf`: parses GGUF bytes, reads every value, and dequantizes the first blocks of every tensor.

use std::fmt::Display;

use rocmforge_gguf::{Gguf, Value, quant};

/// Blocks dequantized per tensor.
const BLOCKS: usize = 4;

pub(crate) fn run(data: &[u8]) {
    match Gguf::from_vec(data.to_vec()) {
        Ok(file) => read_all(&file),
        Err(error) => check_message(error),
    }
}

/// Reads everything of a file that was accepted.
pub(crate) fn read_all(file: &Gguf) {
    let metadata = file.metadata();
    for (key, value) in metadata.iter() {
        visit(value);
        assert!(metadata.get(key).is_some(), "{key:?} is listed");
        let errors = [
            metadata.str(key).err(),
            metadata.u32(key).err(),
            metadata.u64(key).err(),
            metadata.f32(key).err(),
            metadata.bool(key).err(),
            metadata.strings(key).err(),
            metadata.i32s(key).err(),
            metadata.u32s(key).err(),
            metadata.f32s(key).err(),
        ];
        errors.into_iter().flatten().for_each(check_message);
    }
    for info in file.tensors() {
        let blocks = file.tensor_data(info);
        assert_eq!(blocks.len() as u64, info.n_bytes);
        assert_eq!(file.tensor(&info.name), Some(info));
        if !info.ty.can_dequantize() {
            continue;
        }
        let n = BLOCKS.min(blocks.len() / info.ty.block_bytes());
        let mut values = vec![0.0; n * info.ty.block_len()];
        quant::dequantize(info.ty, &blocks[..n * info.ty.block_bytes()], &mut values)
            .expect("whole blocks of a type that can be dequantized");
    }
}

fn visit(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(visit).count(), array.len());
        if let Some(strings) = array.strings() {
            assert!((0..strings.len()).all(|i| strings.get(i).is_some()));
        }
    }
}

/// Checks that an error is one short line without control characters.
pub(crate) fn check_message(error: impl Display) {
    let text = error.to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(text.len() < 2000, "a message of {} bytes", text.len());
}
