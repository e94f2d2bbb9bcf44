//! Tape archives of small text files (POSIX.1-1988, ustar).

/// Bytes of a header, and of the blocks that content is padded to.
const BLOCK: usize = 512;

/// Returns an archive of these files: names of at most 100 bytes, and contents. `modified`: Unix time in seconds.
pub fn archive(files: &[(String, String)], modified: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, text) in files {
        bytes.extend(header(name, text.len(), modified));
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks are the end.
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

fn header(name: &str, n_bytes: usize, modified: u64) -> [u8; BLOCK] {
    assert!(name.len() <= 100, "names are the program's own");
    let mut header = [0; BLOCK];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    // Mode, owner, group.
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{n_bytes:011o}\0"));
    put(136, &format!("{modified:011o}\0"));
    // The sum is taken with blanks in its place. A regular file is a 0.
    put(148, "        0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_archives() {
        let files = [
            ("bundle/a.txt".to_string(), "one\ntwo\n".to_string()),
            ("bundle/empty.txt".to_string(), String::new()),
            ("bundle/long.txt".to_string(), "é\n".repeat(5000)),
        ];
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.tar"), archive(&files, 1_700_000_000)).unwrap();
        let mut tar = Command::new("tar");
        let Ok(output) = tar.args(["-xf", "x.tar"]).current_dir(&folder).output() else {
            return println!("skipped: there is no tar");
        };
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        for (name, text) in &files {
            assert_eq!(&fs::read_to_string(folder.path().join(name)).unwrap(), text);
        }
    }
}
