//! Faults of an image that the build must not embed: calls to libraries and memory for values that do not fit into
//! registers (such a kernel is slow, or does not load), and missing waits (its results can be silently wrong).

/// AMD modules that may use scratch memory, with the reason.
const MAY_USE_SCRATCH: &[(&str, &str)] = &[];

/// Modules whose code for gfx12 needs no `s_wait_alu`, with the reason.
const NEEDS_NO_ALU_WAIT: &[(&str, &str)] = &[];

/// What is wrong with an image, if anything.
pub(crate) fn fault(module: &str, target: &str, image: &[u8]) -> Option<String> {
    if let Some(number) = target.strip_prefix("sm_") {
        let text = String::from_utf8_lossy(image);
        let overlaps = number
            .trim_end_matches('a')
            .parse()
            .is_ok_and(|n: u32| n >= 90);
        let waits = || overlaps.then(|| missing_wait(&text)).flatten();
        return ptx_fault(&text).or_else(waits);
    }
    if !target.starts_with("gfx") {
        return None;
    }
    let is_excepted = |list: &[(&str, &str)]| list.iter().any(|(name, _)| *name == module);
    let needs_alu_wait = target.starts_with("gfx12") && !is_excepted(NEEDS_NO_ALU_WAIT);
    let wait_fault = needs_alu_wait.then(|| alu_wait_fault(image)).flatten();
    let scratch_fault = || {
        (!is_excepted(MAY_USE_SCRATCH))
            .then(|| scratch_fault(image))
            .flatten()
    };
    wait_fault.or_else(scratch_fault)
}

fn ptx_fault(text: &str) -> Option<String> {
    let line = text.lines().find(|line| {
        let code = line.split("//").next().unwrap_or("");
        code.contains(".extern .func") || code.split_whitespace().any(|word| word == ".local")
    })?;
    Some(format!(
        "the PTX calls a library or keeps values in local memory: {}",
        line.trim()
    ))
}

/// A kernel that never waits for the one before it, though launches overlap (`wait_for_predecessor` of gpu.h).
fn missing_wait(text: &str) -> Option<String> {
    let mut kernels = text.split(".entry").skip(1);
    let kernel = kernels.find(|kernel| !kernel.contains("griddepcontrol.wait"))?;
    let name = kernel.split('(').next().unwrap_or("").trim();
    Some(format!("{name} does not wait for its predecessor"))
}

/// Reads the note with the kernels' metadata: MessagePack maps whose keys are sorted, so that a kernel's `.name` comes
/// right before the size of its scratch memory.
fn scratch_fault(image: &[u8]) -> Option<String> {
    const KEY: &[u8] = b".private_segment_fixed_size";
    let mut at = 0;
    while let Some(found) = find(&image[at..], KEY) {
        let value = at + found + KEY.len();
        let bytes = integer(&image[value..]);
        if bytes != Some(0) {
            let name = kernel_name(&image[..at + found]);
            return Some(format!(
                "{name} uses {} bytes of scratch memory",
                bytes.map_or_else(|| "unknown".into(), |b| b.to_string())
            ));
        }
        at = value;
    }
    (at == 0).then(|| "the image has no metadata of kernels".into())
}

/// On gfx12, code waits where scalar registers that vector instructions read are written again. Every kernel of this crate
/// has such places (the fewest are 4, in 192 instructions), so an image without one comes from a compiler that omits them.
fn alu_wait_fault(image: &[u8]) -> Option<String> {
    let Some(code) = executable(image) else {
        return Some("the image has no code".into());
    };
    // `s_wait_alu` with any operand.
    let mut words = code.chunks_exact(4);
    let has_wait = words.any(|word| word.ends_with(&[0x88, 0xbf]));
    (!has_wait).then(|| {
        "the code has no s_wait_alu, so it can be silently wrong (LLVM pull request 100067)".into()
    })
}

/// The executable segment of a 64-bit ELF file.
fn executable(image: &[u8]) -> Option<&[u8]> {
    let field = |at: usize, n_bytes: usize| {
        let digits = image.get(at..at.checked_add(n_bytes)?)?.iter().rev();
        let number = digits.fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).ok()
    };
    let (table, entry_bytes, n_entries) = (field(0x20, 8)?, field(0x36, 2)?, field(0x38, 2)?);
    let mut headers = (0..n_entries).map(|index| table + index * entry_bytes);
    let header = headers.find(|&at| field(at + 4, 4).is_some_and(|flags| flags & 1 != 0))?;
    let (start, n_bytes) = (field(header + 0x08, 8)?, field(header + 0x20, 8)?);
    image.get(start..start.checked_add(n_bytes)?)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// An unsigned number in MessagePack.
fn integer(bytes: &[u8]) -> Option<u64> {
    let n_bytes = match *bytes.first()? {
        small @ 0..=0x7f => return Some(small.into()),
        0xcc => 1,
        0xcd => 2,
        0xce => 4,
        0xcf => 8,
        _ => return None,
    };
    let digits = bytes.get(1..1 + n_bytes)?;
    Some(
        digits
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)),
    )
}

fn kernel_name(before: &[u8]) -> String {
    let key = b".name";
    let last = before.windows(key.len()).rposition(|window| window == key);
    let Some(value) = last.and_then(|at| before.get(at + key.len()..)) else {
        return "a kernel".into();
    };
    let (start, len) = match value {
        [short @ 0xa0..=0xbf, ..] => (1, usize::from(short & 0x1f)),
        [0xd9, len, ..] => (2, usize::from(*len)),
        _ => (0, 0),
    };
    String::from_utf8_lossy(value.get(start..start + len).unwrap_or(b"a kernel")).into_owned()
}
