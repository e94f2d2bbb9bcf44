//! A bounded little-endian cursor over the file's bytes. Every read is checked against the remaining bytes, so callers
//! can neither read past the end nor allocate for a length that the file cannot hold.

use crate::error::Error;

#[derive(Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Reader<'a> {
    /// Creates a cursor at byte `pos` of `bytes`, clamped to the end.
    pub(crate) fn at(bytes: &'a [u8], pos: usize) -> Self {
        Reader {
            bytes,
            pos: pos.min(bytes.len()),
        }
    }

    /// Position of the cursor, in bytes from the start.
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// Returns the next `n` bytes. `what` names them in the error.
    pub(crate) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], Error> {
        let slice = usize::try_from(n)
            .ok()
            .and_then(|n| self.bytes[self.pos..].get(..n))
            .ok_or_else(|| Error::Truncated {
                what,
                offset: self.pos as u64,
                need: n,
                have: self.left() as u64,
            })?;
        self.pos += slice.len();
        Ok(slice)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let slice = self.take(N as u64, what)?;
        Ok(slice.try_into().expect("take returns N bytes"))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a GGUF string: a u64 length, then that many arbitrary bytes.
    pub(crate) fn string(&mut self, what: &'static str) -> Result<&'a [u8], Error> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// Reads the count of items of at least `min_bytes` each. Fails if the remaining bytes cannot hold that many.
    pub(crate) fn count(&mut self, min_bytes: u64, what: &'static str) -> Result<u64, Error> {
        let n = self.u64(what)?;
        let need = n.saturating_mul(min_bytes);
        if need > self.left() as u64 {
            return Err(Error::Truncated {
                what,
                offset: self.pos as u64,
                need,
                have: self.left() as u64,
            });
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_little_endian_and_stops_at_the_end() {
        let bytes = [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'h', b'i', 9];
        let mut r = Reader::at(&bytes, 0);
        assert_eq!(r.u32("a").unwrap(), 1);
        assert_eq!(r.string("b").unwrap(), b"hi");
        assert_eq!((r.pos(), r.left()), (14, 1));
        assert!(matches!(
            r.u32("c"),
            Err(Error::Truncated {
                what: "c",
                offset: 14,
                need: 4,
                have: 1
            })
        ));
        assert_eq!(r.pos(), 14, "a failed read does not move the cursor");
        assert_eq!(Reader::at(&bytes, 99).left(), 0);
    }

    #[test]
    fn rejects_counts_larger_than_the_remaining_bytes() {
        for n in [3, 1 << 31, 1 << 60, u64::MAX] {
            let mut bytes = n.to_le_bytes().to_vec();
            bytes.extend([0; 16]);
            assert!(Reader::at(&bytes, 0).count(8, "n").is_err());
        }
        let mut bytes = 2u64.to_le_bytes().to_vec();
        bytes.extend([0; 16]);
        assert_eq!(Reader::at(&bytes, 0).count(8, "n").unwrap(), 2);
    }
}
