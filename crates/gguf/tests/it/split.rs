//! Split models: parts written by the Python package `gguf` and by this crate open as one model; parts that do not
//! belong together are rejected with a message that says what to do.

use std::path::{Path, PathBuf};

use rocmforge_gguf::{GgmlType, Gguf, LoadMode, OwnedValue, Writer};

fn name(no: usize, count: usize) -> String {
    format!("model-{no:05}-of-{count:05}.gguf")
}

#[test]
fn opens_parts_written_by_the_python_package() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/split");
    let whole = Gguf::open(&folder.join("model.gguf"), LoadMode::Read).unwrap();
    assert_eq!(whole.n_parts(), 1);
    for mode in [LoadMode::Mmap, LoadMode::Read] {
        let split = Gguf::open(&folder.join(name(1, 3)), mode).unwrap();
        assert_eq!(split.n_parts(), 3);
        assert_eq!(split.metadata().str("general.name").unwrap(), "split");
        let parts: Vec<u16> = split.tensors().iter().map(|t| t.part).collect();
        assert_eq!(parts, [0, 0, 1, 1, 2]);
        assert_eq!(split.tensors().len(), whole.tensors().len());
        for (ours, expected) in split.tensors().iter().zip(whole.tensors()) {
            assert_eq!(ours.name, expected.name);
            assert_eq!(ours.dims, expected.dims);
            assert_eq!(split.tensor(&ours.name), Some(ours));
            assert_eq!(split.tensor_data(ours), whole.tensor_data(expected));
        }
        let bytes: u64 = (1..=3)
            .map(|no| std::fs::metadata(folder.join(name(no, 3))).unwrap().len())
            .sum();
        assert_eq!(split.file_bytes(), bytes);
        for (at, header) in split.headers().enumerate() {
            let file = std::fs::read(folder.join(name(at + 1, 3))).unwrap();
            // The package fills tensors up to 32 bytes.
            let tensors = split.tensors().iter().filter(|t| usize::from(t.part) == at);
            let n_data: u64 = tensors.map(|t| t.n_bytes.next_multiple_of(32)).sum();
            assert_eq!(header, &file[..file.len() - n_data as usize]);
        }
    }
}

/// A part with two tensors, and `changes` applied to its metadata.
fn part(no: usize, changes: &[(&str, OwnedValue)]) -> Writer<'static> {
    let mut writer = Writer::new("llama");
    writer.set("general.name", "m");
    writer.set("split.no", no as u16);
    writer.set("split.count", 3u16);
    writer.set("split.tensors.count", 6i32);
    for (key, value) in changes {
        writer.set(key, value.clone());
    }
    for i in 0..2 {
        let data: Vec<u8> = vec![(2 * no + i) as u8; 16];
        writer
            .add_tensor(&format!("t{}", 2 * no + i), &[4], GgmlType::F32, data)
            .unwrap();
    }
    writer
}

fn write(folder: &Path, no: usize, writer: &Writer<'_>) -> PathBuf {
    let path = folder.join(name(no + 1, 3));
    std::fs::write(&path, writer.to_vec().unwrap()).unwrap();
    path
}

/// Writes three parts, damages them with `change`, and opens the first.
fn open(change: impl Fn(&Path)) -> Result<Gguf, String> {
    let folder = tempfile::tempdir().unwrap();
    for no in 0..3 {
        write(folder.path(), no, &part(no, &[]));
    }
    change(folder.path());
    let opened = Gguf::open(&folder.path().join(name(1, 3)), LoadMode::Mmap);
    opened.map_err(|error| {
        let message = error.to_string();
        assert!(!message.contains('\n') && message.len() < 1000, "{message}");
        message
    })
}

#[test]
fn opens_parts_written_by_this_crate() {
    let file = open(|_| ()).unwrap();
    for (i, info) in file.tensors().iter().enumerate() {
        assert_eq!(info.name, format!("t{i}"));
        assert_eq!(file.tensor_data(info), [i as u8; 16]);
    }
}

#[test]
fn rejects_parts_of_different_models() {
    let replaced = |no: usize, key: &'static str, value: OwnedValue| {
        open(move |folder| {
            write(folder, no, &part(no, &[(key, value.clone())]));
        })
        .err()
        .unwrap_or_else(|| panic!("part {no} with another {key} was accepted"))
    };
    let cases: [(usize, &str, OwnedValue, &str); 12] = [
        (1, "split.no", 2u16.into(), "'split.no' is 2, expected 1"),
        (
            1,
            "split.no",
            9u16.into(),
            "split.no' is 9, which is not a part number",
        ),
        (
            1,
            "split.count",
            2u16.into(),
            "'split.count' is 2, expected 3",
        ),
        (
            2,
            "split.count",
            0u16.into(),
            "'split.count' is 1, expected 3",
        ),
        (2, "split.count", "x".into(), "'split.count' holds"),
        (
            1,
            "split.tensors.count",
            5i32.into(),
            "'split.tensors.count' is 5, expected 6",
        ),
        (
            2,
            "general.name",
            "n".into(),
            "'general.name' is n, expected m",
        ),
        (
            2,
            "general.architecture",
            "qwen2".into(),
            "is qwen2, expected llama",
        ),
        (
            0,
            "split.tensors.count",
            7i32.into(),
            "'split.tensors.count' is 6, expected 7",
        ),
        (0, "split.count", u64::MAX.into(), "not a number of files"),
        (
            0,
            "split.count",
            4u16.into(),
            "must end in '-00001-of-00004.gguf'",
        ),
        (0, "split.no", (-1i32).into(), "split.no"),
    ];
    for (no, key, value, wanted) in cases {
        let message = replaced(no, key, value);
        assert!(message.contains(wanted), "part {no} {key}: {message}");
    }
}

#[test]
fn errors_name_missing_and_damaged_parts() {
    let check = |change: &dyn Fn(&Path), wanted: &[&str]| {
        let message = open(change).unwrap_err();
        for wanted in wanted {
            assert!(message.contains(wanted), "{message}");
        }
    };
    let second = name(2, 3);
    check(
        &|folder| std::fs::remove_file(folder.join(&second)).unwrap(),
        &["part 2 of 3", "missing", &second],
    );
    check(
        &|folder| {
            let bytes = std::fs::read(folder.join(&second)).unwrap();
            std::fs::write(folder.join(&second), &bytes[..bytes.len() - 40]).unwrap();
        },
        &[&second, "truncated"],
    );
    check(
        &|folder| {
            std::fs::remove_file(folder.join(&second)).unwrap();
            std::fs::create_dir(folder.join(&second)).unwrap();
        },
        &[&second, "a directory"],
    );
    check(
        &|folder| {
            let mut twice = Writer::new("llama");
            twice.set("split.no", 1u16);
            twice.set("split.count", 3u16);
            twice.set("split.tensors.count", 6i32);
            for name in ["t0", "t3"] {
                twice
                    .add_tensor(name, &[4], GgmlType::F32, vec![0; 16])
                    .unwrap();
            }
            write(folder, 1, &twice);
        },
        &["tensor 't0' appears twice"],
    );
    check(
        &|folder| {
            for no in 0..3 {
                write(
                    folder,
                    no,
                    &part(no, &[("split.tensors.count", 9i32.into())]),
                );
            }
        },
        &["have 6 tensors, not 9"],
    );
}

#[test]
fn rejects_later_parts_and_parts_without_a_path() {
    let folder = tempfile::tempdir().unwrap();
    let second = write(folder.path(), 1, &part(1, &[]));
    let message = Gguf::open(&second, LoadMode::Read).unwrap_err().to_string();
    assert!(message.contains("part 2 of 3"), "{message}");
    assert!(message.contains(&name(1, 3)), "{message}");

    let bytes = part(0, &[]).to_vec().unwrap();
    let renamed = folder.path().join("model.gguf");
    std::fs::write(&renamed, &bytes).unwrap();
    let message = Gguf::open(&renamed, LoadMode::Read)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("must end in '-00001-of-00003.gguf'"),
        "{message}"
    );

    let message = Gguf::from_vec(bytes).unwrap_err().to_string();
    assert!(message.contains("split into 3 files"), "{message}");
}
