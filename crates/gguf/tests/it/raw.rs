//! Writes GGUF headers byte by byte and records the position of each field, so that tests can damage them. Shares no
//! code with the crate's writer.

/// A header under construction.
pub(crate) struct Raw {
    pub(crate) bytes: Vec<u8>,
    /// Name, position and width in bytes of every count, length, type and offset.
    pub(crate) fields: Vec<(String, usize, usize)>,
}

#[allow(dead_code, reason = "each test program uses some of it")]
impl Raw {
    pub(crate) fn new(n_tensors: u64, n_keys: u64) -> Raw {
        let mut raw = Raw {
            bytes: b"GGUF".to_vec(),
            fields: Vec::new(),
        };
        raw.u32("version", 3);
        raw.u64("tensor count", n_tensors);
        raw.u64("key count", n_keys);
        raw
    }

    pub(crate) fn u32(&mut self, field: &str, v: u32) {
        self.fields.push((field.to_owned(), self.bytes.len(), 4));
        self.bytes.extend(v.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, field: &str, v: u64) {
        self.fields.push((field.to_owned(), self.bytes.len(), 8));
        self.bytes.extend(v.to_le_bytes());
    }

    pub(crate) fn string(&mut self, field: &str, s: &[u8]) {
        self.u64(&format!("length of {field}"), s.len() as u64);
        self.bytes.extend(s);
    }

    /// A key and the type of its value; the caller appends the value.
    pub(crate) fn key(&mut self, key: &str, ty: u32) {
        self.string(&format!("key {key}"), key.as_bytes());
        self.u32(&format!("type of {key}"), ty);
    }

    pub(crate) fn array(&mut self, field: &str, element: u32, len: u64) {
        self.u32(&format!("element type of {field}"), element);
        self.u64(&format!("array length of {field}"), len);
    }

    pub(crate) fn tensor(&mut self, name: &str, dims: &[u64], ty: u32, offset: u64) {
        self.string(&format!("tensor {name}"), name.as_bytes());
        self.u32(&format!("dimension count of {name}"), dims.len() as u32);
        for (i, &d) in dims.iter().enumerate() {
            self.u64(&format!("dimension {i} of {name}"), d);
        }
        self.u32(&format!("tensor type of {name}"), ty);
        self.u64(&format!("offset of {name}"), offset);
    }

    /// Pads to 32 and appends `n` bytes of data.
    pub(crate) fn data(mut self, n: usize) -> Raw {
        let padded = self.bytes.len().next_multiple_of(32);
        self.bytes.resize(padded + n, 7);
        self
    }

    /// One value of every kind and three tensors.
    pub(crate) fn sample() -> Raw {
        let mut raw = Raw::new(3, 9);
        raw.key("general.architecture", 8);
        raw.string("general.architecture", b"llama");
        raw.key("general.alignment", 4);
        raw.u32("general.alignment", 32);
        raw.key("a.u8", 0);
        raw.bytes.push(1);
        raw.key("a.bool", 7);
        raw.bytes.push(1);
        raw.key("a.f64", 12);
        raw.bytes.extend(1.5f64.to_le_bytes());
        raw.key("tokens", 9);
        raw.array("tokens", 8, 40);
        for i in 0..40 {
            raw.string("a token", &b"abcdefgh"[..i % 8]);
        }
        raw.key("scores", 9);
        raw.array("scores", 6, 5);
        raw.bytes.extend([0; 20]);
        raw.key("flags", 9);
        raw.array("flags", 7, 3);
        raw.bytes.extend([0, 1, 0]);
        raw.key("nested", 9);
        raw.array("nested", 9, 2);
        raw.array("nested.0", 5, 2);
        raw.bytes.extend([1; 8]);
        raw.array("nested.1", 8, 1);
        raw.string("nested.1.0", b"deep");
        raw.tensor("a", &[32, 2], 8, 0);
        raw.tensor("b", &[4, 2, 2, 1], 0, 96);
        raw.tensor("c", &[256], 12, 160);
        raw.data(304)
    }

    /// A copy of the bytes, with the low bytes of `v` stored at a field.
    pub(crate) fn with(&self, at: usize, width: usize, v: u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[at..at + width].copy_from_slice(&v.to_le_bytes()[..width]);
        bytes
    }

    pub(crate) fn field(&self, name: &str) -> (usize, usize) {
        let (_, at, width) = self.fields.iter().find(|f| f.0 == name).expect(name);
        (*at, *width)
    }
}
