//! Finds weights that are NaN or infinite. The kernels and the scalar path agree on such a model, and its answers are
//! refused at the first token.

use std::sync::atomic::{AtomicUsize, Ordering};

use rocmforge_gguf::{Gguf, TensorInfo, quant};

/// Blocks to convert at once.
const BLOCKS: usize = 4096;

/// A tensor with values that are not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFinite {
    /// As in the file.
    pub tensor: String,
    /// Values that are not finite.
    pub n_values: usize,
    /// Index of the first of them, in row-major order.
    pub first: usize,
}

/// Returns the tensors of `gguf` that have values that are not finite, in file order.
pub fn non_finite(gguf: &Gguf, n_threads: usize) -> Vec<NonFinite> {
    let tensors = gguf.tensors();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        while let Some(info) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.extend(search(info, gguf.tensor_data(info)));
        }
        found
    };
    let mut found: Vec<NonFinite> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads.min(tensors.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .flat_map(|found| found.expect("the search does not panic"))
            .collect()
    });
    let place = |of: &NonFinite| tensors.iter().position(|info| info.name == of.tensor);
    found.sort_by_cached_key(place);
    found
}

fn search(info: &TensorInfo, data: &[u8]) -> Option<NonFinite> {
    if !info.ty.can_dequantize() {
        return None;
    }
    let (mut first, mut n_values, mut at) = (None, 0, 0);
    let mut values = vec![0.0; BLOCKS * info.ty.block_len()];
    for blocks in data.chunks(BLOCKS * info.ty.block_bytes()) {
        let values = &mut values[..blocks.len() / info.ty.block_bytes() * info.ty.block_len()];
        quant::dequantize(info.ty, blocks, values).expect("tensors are whole blocks");
        for (i, value) in values.iter().enumerate() {
            if !value.is_finite() {
                first = first.or(Some(at + i));
                n_values += 1;
            }
        }
        at += values.len();
    }
    Some(NonFinite {
        tensor: info.name.clone(),
        n_values,
        first: first?,
    })
}

#[cfg(test)]
mod tests {
    use rocmforge_gguf::{GgmlType, Writer};

    use super::*;

    #[test]
    fn names_tensors_with_values_that_are_not_finite() {
        let mut writer = Writer::new("test");
        let mut values = vec![1.0f32; 300_000];
        let mut add = |name: &str, ty, values: &[f32]| {
            let dims = [values.len() as u64];
            writer.add_tensor_f32(name, &dims, ty, values).unwrap();
        };
        add("fine", GgmlType::F32, &values);
        values[299_999] = f32::NAN;
        values[7] = f32::NEG_INFINITY;
        add("wide", GgmlType::F32, &values);
        add("narrow", GgmlType::F16, &[1.0, 65_536.0, 65_504.0, 0.0]);
        // A block of Q8_0 whose scale is an infinity in f16.
        let mut block = vec![1u8; 34];
        block[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
        writer
            .add_tensor("scale", &[32], GgmlType::Q8_0, block)
            .unwrap();
        let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        let found = |name: &str, n_values, first| NonFinite {
            tensor: name.into(),
            n_values,
            first,
        };
        let expected = [
            found("wide", 2, 7),
            found("narrow", 1, 1),
            found("scale", 32, 0),
        ];
        for n_threads in [1, 3] {
            assert_eq!(non_finite(&gguf, n_threads), expected);
        }
    }
}
