//! Damaged and malicious files: each gives a one-line error, or a valid parse whose values and tensors can all be read.
//! Never a panic.

use std::path::Path;

use rocmforge_gguf::{Array, Error, Gguf, Value};

use crate::raw::Raw;

/// Parses, and on success reads everything.
fn open(bytes: &[u8]) -> Result<Gguf, String> {
    let file = Gguf::from_vec(bytes.to_vec()).map_err(one_line)?;
    for (key, value) in file.metadata().iter() {
        visit(value);
        assert!(file.metadata().get(key).is_some());
        let m = file.metadata();
        for error in [
            m.str(key).err(),
            m.u32(key).err(),
            m.u64(key).err(),
            m.f32(key).err(),
            m.bool(key).err(),
            m.strings(key).err(),
            m.i32s(key).err(),
            m.u32s(key).err(),
            m.f32s(key).err(),
        ] {
            error.map(one_line);
        }
    }
    for t in file.tensors() {
        assert_eq!(file.tensor_data(t).len() as u64, t.n_bytes);
        assert_eq!(t.n_rows() * t.row_len(), t.n_elements());
        assert_eq!(file.tensor(&t.name), Some(t));
    }
    Ok(file)
}

fn visit(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(visit).count(), array.len());
        if let Some(strings) = array.strings() {
            assert!((0..strings.len()).all(|i| strings.get(i).is_some()));
        }
    }
}

fn one_line(error: Error) -> String {
    let text = error.to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(text.len() < 1000, "{text}");
    text
}

fn refused(bytes: &[u8], parts: &[&str]) {
    let text = open(bytes).expect_err("must be refused");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn undamaged_sample_is_valid() {
    let file = open(&Raw::sample().bytes).unwrap();
    assert_eq!(file.metadata().len(), 9);
    assert_eq!(file.tensors().len(), 3);
    let Some(Value::Array(nested)) = file.metadata().get("nested") else {
        panic!("nested is an array");
    };
    let inner: Vec<Array<'_>> = nested
        .iter()
        .map(|v| match v {
            Value::Array(a) => a,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(inner[1].strings().unwrap().get(0), Some(&b"deep"[..]));
    let mut v2 = Raw::sample();
    v2.bytes[4] = 2;
    assert_eq!(open(&v2.bytes).unwrap().version(), 2);
}

#[test]
fn rejects_files_truncated_anywhere() {
    let sample = Raw::sample().bytes;
    for n in 0..sample.len() {
        refused(&sample[..n], &["truncated"]);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    let model = std::fs::read(path).unwrap();
    // Half of the cuts are in the header, which is 133,568 bytes long.
    let cuts = (0..100)
        .map(|i| i * 133_568 / 100)
        .chain((1..=100).map(|i| {
            let data = model.len() - 133_568;
            model.len() - 1 - (100 - i) * data / 100
        }));
    for n in cuts {
        refused(&model[..n], &["truncated"]);
    }
}

#[test]
fn extreme_field_values_are_rejected_or_valid() {
    let sample = Raw::sample();
    for (name, at, width) in &sample.fields {
        for v in [
            0,
            1,
            2,
            13,
            31,
            1 << 31,
            u64::from(u32::MAX),
            1 << 60,
            1 << 63,
            u64::MAX,
        ] {
            let result = open(&sample.with(*at, *width, v));
            // No count or length of the sample can be this large.
            let is_size = ["count", "length", "dimension", "offset"]
                .iter()
                .any(|w| name.contains(w));
            if v >= 1 << 31 && is_size {
                assert!(
                    result.is_err() || v as u32 == 0 && *width == 4,
                    "{name} = {v}"
                );
            }
        }
    }
}

#[test]
fn random_damage_never_panics() {
    let sample = Raw::sample().bytes;
    let header = sample.len() - 304;
    let mut state = 1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut n_valid = 0;
    for _ in 0..50_000 {
        let mut bytes = sample.clone();
        for _ in 0..1 + next() % 3 {
            let at = 8 + next() as usize % (header - 8);
            bytes[at] = next() as u8;
        }
        n_valid += usize::from(open(&bytes).is_ok());
    }
    assert!(
        n_valid > 1000,
        "too few damaged files pass the first check: {n_valid}"
    );
}

#[test]
fn errors_say_what_is_wrong() {
    let sample = Raw::sample();
    let set = |name: &str, v: u64| {
        let (at, width) = sample.field(name);
        sample.with(at, width, v)
    };
    let mut magic = sample.bytes.clone();
    magic[..4].copy_from_slice(b"ggjt");
    refused(&magic, &["not a GGUF file", "ggjt", "older", "convert"]);
    magic[..4].copy_from_slice(b"\n\x1b\0\xff");
    refused(&magic, &["not a GGUF file", "\\n\\x1b\\x00\\xff"]);
    refused(b"version https://git-lfs", &["LFS"]);
    refused(b"", &["truncated"]);
    refused(&set("version", 0), &["version 0", "download"]);
    refused(&set("version", 1), &["version 1", "convert"]);
    refused(&set("version", 4), &["version 4", "update"]);
    refused(&set("version", 0x0300_0000), &["big-endian", "convert"]);
    refused(&set("version", 0x0200_0000), &["big-endian"]);
    refused(&set("type of a.u8", 13), &["'a.u8'", "type 13"]);
    refused(&set("element type of scores", 77), &["'scores'", "type 77"]);
    refused(
        &set("element type of nested.0", 77),
        &["'nested'", "type 77"],
    );
    for (id, word) in [(4, "Q4_2"), (31, "Q4_0"), (37, "IQ4_NL"), (99, "update")] {
        refused(
            &set("tensor type of b", id),
            &["'b'", &format!("type {id}"), word],
        );
    }
    refused(&set("dimension count of b", 5), &["dimensions", "5"]);
    refused(&set("dimension 1 of b", 0), &["'b'", "zero"]);
    refused(&set("dimension 1 of b", 1 << 62), &["'b'", "too large"]);
    refused(&set("dimension 0 of a", 33), &["'a'", "33", "32", "Q8_0"]);
    refused(&set("offset of b", 97), &["'b'", "97", "alignment 32"]);
    refused(&set("offset of b", 64), &["'a'", "'b'", "share"]);
    refused(&set("offset of c", 96), &["'b'", "'c'", "share"]);
    refused(&set("offset of c", 192), &["truncated", "'c'"]);
    refused(&set("offset of c", u64::MAX - 31), &["truncated", "'c'"]);
    for v in [0, 1, 4, 24, 33, 1 << 21, u64::from(u32::MAX)] {
        refused(
            &set("general.alignment", v),
            &["general.alignment", &v.to_string()],
        );
    }
    refused(&set("tensor count", 1 << 17), &["number of tensors"]);
    refused(&set("key count", 1 << 17), &["number of metadata keys"]);
    refused(&set("length of key tokens", 1 << 20), &["length of a name"]);
    refused(&set("length of key tokens", 0), &["metadata key", "empty"]);

    let replace = |from: &[u8], to: &[u8]| {
        let mut bytes = sample.bytes.clone();
        let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    refused(&replace(b"a.u8", b"a.\xff8"), &["metadata key", "UTF-8"]);
    refused(&replace(b"tokens", b"scores"), &["'scores'", "twice"]);
    let (at, width) = sample.field("length of tensor b");
    let mut bytes = sample.bytes.clone();
    bytes[at + width] = b'a';
    refused(&bytes, &["tensor 'a'", "twice"]);
    bytes[at + width] = b'\n';
    bytes[sample.field("tensor type of b").0] = 99;
    refused(&bytes, &["tensor '\\n'"]);
    let flags = sample.field("array length of flags").0 + 8;
    refused(&sample.with(flags, 1, 2), &["'flags'", "boolean", "2"]);
    let file = open(&replace(b"llama", b"ll\xffma")).unwrap();
    let error = file.metadata().str("general.architecture").unwrap_err();
    assert!(one_line(error).contains("UTF-8"));
}

#[test]
fn integers_convert_from_any_width_that_fits() {
    let mut raw = Raw::new(0, 3);
    raw.key("u64", 10);
    raw.u64("u64", 1 << 40);
    raw.key("i8", 1);
    raw.bytes.push(0xff);
    raw.key("u16", 2);
    raw.bytes.extend(700u16.to_le_bytes());
    let file = open(&raw.bytes).unwrap();
    let m = file.metadata();
    assert_eq!(m.u64("u64").unwrap(), 1 << 40);
    assert_eq!(m.u32("u16").unwrap(), 700);
    let text = one_line(m.u32("u64").unwrap_err());
    assert!(
        text.contains("1099511627776") && text.contains("u32"),
        "{text}"
    );
    let text = one_line(m.opt_u64("i8").unwrap_err());
    assert!(text.contains("-1") && text.contains("u64"), "{text}");
}

#[test]
fn arrays_nest_at_most_four_deep() {
    for depth in 1..100_000u32 {
        if depth > 10 && !depth.is_multiple_of(9973) {
            continue;
        }
        let mut raw = Raw::new(0, 1);
        raw.key("deep", 9);
        for _ in 1..depth {
            raw.bytes.extend(9u32.to_le_bytes());
            raw.bytes.extend(1u64.to_le_bytes());
        }
        raw.array("innermost", 4, 1);
        raw.bytes.extend([0; 4]);
        if depth <= 4 {
            open(&raw.bytes).unwrap();
        } else {
            refused(&raw.bytes, &["depth"]);
        }
    }
}

#[test]
fn tensors_without_dimensions_have_one_value() {
    let mut raw = Raw::new(1, 0);
    raw.tensor("s", &[], 0, 0);
    let file = open(&raw.data(4).bytes).unwrap();
    assert_eq!(file.tensor("s").unwrap().dims, [1]);
}
