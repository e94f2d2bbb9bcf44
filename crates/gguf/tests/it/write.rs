//! Round trips through the writer. The bytes are checked against the shipped model, which the Python package `gguf`
//! wrote.

use std::path::Path;

use rocmforge_gguf::{Error, GgmlType, Gguf, LoadMode, OwnedArray, OwnedValue, Writer};

/// SplitMix64, for the same numbers in every run.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn vec<T>(&mut self, max_len: u64, mut f: impl FnMut(&mut Rng) -> T) -> Vec<T> {
        (0..self.below(max_len + 1)).map(|_| f(self)).collect()
    }

    fn array(&mut self, depth: u32) -> OwnedArray {
        match self.below(if depth > 0 { 13 } else { 12 }) {
            0 => OwnedArray::U8(self.vec(40, |r| r.next() as u8)),
            1 => OwnedArray::I8(self.vec(40, |r| r.next() as i8)),
            2 => OwnedArray::U16(self.vec(40, |r| r.next() as u16)),
            3 => OwnedArray::I16(self.vec(40, |r| r.next() as i16)),
            4 => OwnedArray::U32(self.vec(40, |r| r.next() as u32)),
            5 => OwnedArray::I32(self.vec(40, |r| r.next() as i32)),
            6 => OwnedArray::U64(self.vec(40, Rng::next)),
            7 => OwnedArray::I64(self.vec(40, |r| r.next() as i64)),
            8 => OwnedArray::F32(self.vec(40, |r| r.next() as i32 as f32 / 7.0)),
            9 => OwnedArray::F64(self.vec(40, |r| r.next() as i64 as f64 / 7.0)),
            10 => OwnedArray::Bool(self.vec(40, |r| r.below(2) == 1)),
            11 => OwnedArray::String(self.vec(90, Rng::bytes)),
            _ => OwnedArray::Array(self.vec(4, |r| r.array(depth - 1))),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        self.vec(20, |r| r.next() as u8)
    }

    fn value(&mut self) -> OwnedValue {
        match self.below(16) {
            0 => (self.next() as u8).into(),
            1 => (self.next() as i8).into(),
            2 => (self.next() as u16).into(),
            3 => (self.next() as i16).into(),
            4 => (self.next() as u32).into(),
            5 => (self.next() as i32).into(),
            6 => self.next().into(),
            7 => (self.next() as i64).into(),
            8 => (self.next() as i32 as f32 / 3.0).into(),
            9 => (self.next() as i64 as f64 / 3.0).into(),
            10 => (self.below(2) == 1).into(),
            11 => OwnedValue::String(self.bytes()),
            _ => self.array(3).into(),
        }
    }
}

#[test]
fn copy_of_the_shipped_model_is_identical() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    let model = Gguf::open(&path, LoadMode::Read).unwrap();
    let mut writer = Writer::new("llama");
    for (key, value) in model.metadata().iter() {
        writer.set(key, value);
    }
    for t in model.tensors() {
        writer
            .add_tensor(&t.name, &t.dims, t.ty, model.tensor_data(t))
            .unwrap();
    }
    assert!(writer.to_vec().unwrap() == std::fs::read(path).unwrap());
}

#[test]
fn random_metadata_round_trips() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut writer = Writer::new("test");
        let mut expected = vec![(
            "general.architecture".to_owned(),
            OwnedValue::String(b"test".to_vec()),
        )];
        for i in 0..rng.below(20) {
            // Lengths vary, to place values at every alignment.
            let key = format!("key.{}.é{i}", "x".repeat(rng.below(9) as usize));
            let value = rng.value();
            writer.set(&key, value.clone());
            expected.push((key, value));
        }
        let file = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        let found: Vec<_> = file
            .metadata()
            .iter()
            .map(|(k, v)| (k.to_owned(), OwnedValue::from(v)))
            .collect();
        assert_eq!(found, expected, "seed {seed}");
        for (key, value) in &expected {
            assert_eq!(&OwnedValue::from(file.metadata().get(key).unwrap()), value);
            if let OwnedValue::Array(OwnedArray::String(strings)) = value {
                let found = file.metadata().strings(key).unwrap();
                assert_eq!(found.len(), strings.len());
                for (i, s) in strings.iter().enumerate() {
                    assert_eq!(found.get(i), Some(&s[..]));
                }
                assert_eq!(found.get(strings.len()), None);
            }
        }
        assert!(file.metadata().get("key.").is_none());
    }
}

#[test]
fn tensors_are_aligned_and_round_trip() {
    for alignment in [None, Some(8u32), Some(256), Some(1 << 20)] {
        let mut writer = Writer::new("test");
        if let Some(alignment) = alignment {
            writer.set("general.alignment", alignment);
        }
        let mut rng = Rng(1);
        let mut expected = Vec::new();
        for (i, &ty) in GgmlType::ALL.iter().enumerate() {
            let dims = [2 * ty.block_len() as u64, 3, 1 + i as u64 % 2, 1];
            let n_dims = if i.is_multiple_of(3) { 2 } else { 4 };
            let n_bytes = 6 * ty.block_bytes() * if n_dims == 4 { 1 + i % 2 } else { 1 };
            let data: Vec<u8> = (0..n_bytes).map(|_| rng.next() as u8).collect();
            let name = format!("t.{i}");
            writer
                .add_tensor(&name, &dims[..n_dims], ty, data.clone())
                .unwrap();
            expected.push((name, dims[..n_dims].to_vec(), ty, data));
        }
        let file = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
        assert_eq!(file.tensors().len(), expected.len());
        for (t, (name, dims, ty, data)) in file.tensors().iter().zip(&expected) {
            assert_eq!((&t.name, &t.dims, t.ty), (name, dims, *ty));
            assert_eq!(file.tensor_data(t), data);
            assert!(t.offset.is_multiple_of(u64::from(alignment.unwrap_or(32))));
            assert_eq!(file.tensor(name), Some(t));
        }
    }
}

#[test]
fn f32_tensors_are_quantized() {
    let values: Vec<f32> = (0..64).map(|i| i as f32 - 32.0).collect();
    let mut writer = Writer::new("test");
    writer
        .add_tensor_f32("a", &[32, 2], GgmlType::Q8_0, &values)
        .unwrap();
    writer
        .add_tensor_f32("b", &[64], GgmlType::F32, &values)
        .unwrap();
    let file = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let bytes = file.tensor_data(file.tensor("b").unwrap());
    let read: Vec<f32> = bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(read, values);
    assert_eq!(file.tensor("a").unwrap().n_bytes, 68);
}

#[test]
fn stream_writes_the_same_file_as_added_tensors() {
    let tensors: Vec<(&str, Vec<u8>)> = vec![("a", vec![1; 20]), ("b", vec![2; 64])];
    let (mut held, mut declared) = (Writer::new("test"), Writer::new("test"));
    for (name, data) in &tensors {
        let dims = [data.len() as u64];
        held.add_tensor(name, &dims, GgmlType::I8, data).unwrap();
        declared.declare_tensor(name, &dims, GgmlType::I8).unwrap();
    }
    let expected = held.to_vec().unwrap();
    assert_eq!(declared.file_bytes().unwrap(), expected.len() as u64);
    for piece in [1, 7, 20, 64] {
        let mut stream = declared.stream(Vec::new()).unwrap();
        for (_, data) in &tensors {
            data.chunks(piece).for_each(|p| stream.write(p).unwrap());
        }
        assert!(stream.finish().unwrap() == expected, "pieces of {piece}");
    }

    let error = declared.to_vec().unwrap_err();
    assert!(matches!(error, Error::Unwritable { .. }), "{error}");
    let mut stream = declared.stream(Vec::new()).unwrap();
    let error = stream.write(&[0; 21]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::DataLength {
                expected: 20,
                found: 21,
                ..
            }
        ),
        "{error}"
    );
    stream.write(&[0; 20]).unwrap();
    stream.write(&[0; 63]).unwrap();
    let error = stream.finish().unwrap_err();
    assert!(
        matches!(error, Error::DataLength { found: 63, .. }),
        "{error}"
    );
    let mut stream = Writer::default().stream(Vec::new()).unwrap();
    stream.write(&[]).unwrap();
    let error = stream.write(&[0]).unwrap_err();
    assert!(
        matches!(error, Error::DataLength { found: 1, .. }),
        "{error}"
    );

    let mut huge = Writer::default();
    for name in ["a", "b"] {
        huge.declare_tensor(name, &[1 << 40, 1 << 23], GgmlType::I8)
            .unwrap();
    }
    let error = huge.file_bytes().unwrap_err();
    assert!(matches!(error, Error::BadShape { .. }), "{error}");
}

#[test]
fn rejects_tensors_and_keys_that_a_file_cannot_hold() {
    let mut w = Writer::new("test");
    w.add_tensor_f32("a", &[4], GgmlType::F32, &[0.0; 4])
        .unwrap();
    let f32s = |w: &mut Writer, name: &str, dims: &[u64], n: usize| {
        let data = vec![0u8; n];
        w.add_tensor(name, dims, GgmlType::F32, data).unwrap_err()
    };
    let error = f32s(&mut w, "a", &[4], 16);
    assert!(matches!(error, Error::DuplicateTensor { .. }), "{error}");
    let error = f32s(&mut w, "b", &[4], 15);
    assert!(
        matches!(error, Error::DataLength { expected: 16, .. }),
        "{error}"
    );
    for dims in [&[][..], &[1; 5], &[0], &[1 << 40, 1 << 40]] {
        let error = f32s(&mut w, "b", dims, 4);
        assert!(matches!(error, Error::BadShape { .. }), "{error}");
    }
    let error = f32s(&mut w, "", &[4], 16);
    assert!(matches!(error, Error::Unwritable { .. }), "{error}");
    let error = w
        .add_tensor("b", &[31], GgmlType::Q4_0, vec![0; 18])
        .unwrap_err();
    assert!(matches!(error, Error::PartialBlock { .. }), "{error}");
    let error = w
        .add_tensor_f32("b", &[31], GgmlType::Q4_0, &[0.0; 31])
        .unwrap_err();
    assert!(matches!(error, Error::LengthMismatch { .. }), "{error}");

    for alignment in [0u32, 4, 48, 1 << 21] {
        w.set("general.alignment", alignment);
        let error = w.to_vec().unwrap_err();
        assert!(matches!(error, Error::Alignment { .. }), "{error}");
    }
    w.set("general.alignment", 64u32).set("", 1u8);
    let error = w.to_vec().unwrap_err();
    assert!(matches!(error, Error::Unwritable { .. }), "{error}");
}

/// Would take minutes if each name were compared with all others.
#[test]
fn adds_many_keys_and_tensors() {
    let n = 300_000;
    let mut writer = Writer::new("test");
    for i in 0..n {
        writer.set(&format!("key.{i}"), i);
        writer
            .declare_tensor(&format!("tensor.{i}"), &[1], GgmlType::F32)
            .unwrap();
    }
    writer.set("key.7", 8u32);
    let again = writer.declare_tensor("tensor.7", &[1], GgmlType::F32);
    assert!(matches!(again, Err(Error::DuplicateTensor { .. })));
    let error = writer.to_vec().unwrap_err();
    assert!(error.to_string().contains(&(n + 1).to_string()), "{error}");
}
