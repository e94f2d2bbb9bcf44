//! The key-value section of the header. Keys are copied once and sorted for lookup. Values stay in the file's bytes and
//! are read on demand by typed getters, whose errors name the key, the expected type and the type found.

use std::sync::Arc;

use crate::bytes::Bytes;
use crate::error::Error;
use crate::reader::Reader;
use crate::value::{Array, Strings, Value, ValueType, check};

/// Maximum number of keys in a file. Released models have fewer than 100.
pub(crate) const MAX_KEYS: u64 = 1 << 16;

/// Maximum length of a key in bytes, from the GGUF specification.
pub(crate) const MAX_KEY_BYTES: u64 = (1 << 16) - 1;

/// Smallest entry: key length, value type and one byte of value.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;

/// The metadata of a file, in file order.
#[derive(Debug)]
pub struct Metadata {
    bytes: Arc<Bytes>,
    entries: Vec<Entry>,
    /// Indices of `entries` sorted by key.
    by_key: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    key: Box<str>,
    ty: ValueType,
    /// First byte of the value, from the start of the file.
    start: usize,
    /// One past its last byte.
    end: usize,
    strings: Box<[u64]>,
}

impl Metadata {
    /// Parses `n` entries at `pos` and returns them with the position after the last one.
    pub(crate) fn parse(bytes: &Arc<Bytes>, pos: usize, n: u64) -> Result<(Self, usize), Error> {
        let mut r = Reader::at(bytes, pos);
        check_count(
            &r,
            n,
            MIN_ENTRY_BYTES,
            MAX_KEYS,
            "the number of metadata keys",
        )?;
        let mut entries = Vec::new();
        for _ in 0..n {
            let key = name(&mut r, "metadata key", MAX_KEY_BYTES)?;
            let at = r.pos();
            let id = r.u32("the type of a metadata value")?;
            let ty = ValueType::from_id(id).ok_or_else(|| Error::UnknownValueType {
                key: key.into(),
                id,
                offset: at as u64,
            })?;
            let start = r.pos();
            let strings = check(&mut r, ty, key)?;
            entries.push(Entry {
                key: key.into(),
                ty,
                start,
                end: r.pos(),
                strings: strings.into(),
            });
        }
        let by_key = sorted_by(&entries, |e| &e.key).map_err(|e| Error::DuplicateKey {
            key: e.key.to_string(),
        })?;
        let metadata = Metadata {
            bytes: Arc::clone(bytes),
            entries,
            by_key,
        };
        Ok((metadata, r.pos()))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        find_by(&self.entries, &self.by_key, key, |e| &e.key).map(|e| self.value(e))
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|e| (&*e.key, self.value(e)))
    }

    fn value<'a>(&'a self, e: &'a Entry) -> Value<'a> {
        let bytes = &self.bytes[e.start..e.end];
        match e.ty {
            ValueType::Array => Array::over(bytes, &e.strings).map(Value::Array),
            ty => Value::read(&mut Reader::at(bytes, 0), ty),
        }
        // Only a mapped file that changed after it was checked fails here; the value then reads as an empty string.
        .unwrap_or(Value::String(&[]))
    }

    fn need<T>(&self, key: &str, found: Option<T>) -> Result<T, Error> {
        found.ok_or_else(|| Error::MissingKey { key: key.into() })
    }

    /// The string at `key`.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        self.need(key, self.opt_str(key)?)
    }

    /// The string at `key`, `None` if absent.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => {
                std::str::from_utf8(s)
                    .map(Some)
                    .map_err(|e| Error::NotUtf8 {
                        key: key.into(),
                        valid_up_to: e.valid_up_to(),
                    })
            }
            Some(other) => Err(wrong_type(key, "a string", &other)),
        }
    }

    /// The boolean at `key`.
    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        self.need(key, self.opt_bool(key)?)
    }

    /// The boolean at `key`, `None` if absent.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(b)),
            Some(other) => Err(wrong_type(key, "a bool", &other)),
        }
    }

    /// The integer at `key`, stored with any width, if it fits in a u32.
    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        self.need(key, self.opt_u32(key)?)
    }

    /// As [`Metadata::u32`], `None` if absent.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.get(key).map(|v| int(key, "u32", &v)).transpose()
    }

    /// The integer at `key`, stored with any width, if it fits in a u64.
    pub fn u64(&self, key: &str) -> Result<u64, Error> {
        self.need(key, self.opt_u64(key)?)
    }

    /// As [`Metadata::u64`], `None` if absent.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.get(key).map(|v| int(key, "u64", &v)).transpose()
    }

    /// The float at `key`; f64 is rounded.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        self.need(key, self.opt_f32(key)?)
    }

    /// As [`Metadata::f32`], `None` if absent.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.get(key).map(|v| float(key, &v)).transpose()
    }

    /// The array of strings at `key`.
    pub fn strings(&self, key: &str) -> Result<Strings<'_>, Error> {
        self.need(key, self.opt_strings(key)?)
    }

    /// As [`Metadata::strings`], `None` if absent.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Strings<'_>>, Error> {
        let Some(array) = self.opt_array(key, "an array of strings")? else {
            return Ok(None);
        };
        match array.strings() {
            Some(strings) => Ok(Some(strings)),
            None => Err(wrong_type(key, "an array of strings", &Value::Array(array))),
        }
    }

    /// The array of floats at `key`; f64 is rounded.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, Error> {
        self.need(key, self.opt_f32s(key)?)
    }

    /// As [`Metadata::f32s`], `None` if absent.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, Error> {
        self.numbers(key, "an array of f32", |v| float(key, v))
    }

    /// The array of integers at `key`, stored with any width.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>, Error> {
        self.need(key, self.opt_i32s(key)?)
    }

    /// As [`Metadata::i32s`], `None` if absent.
    pub fn opt_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.numbers(key, "an array of i32", |v| int(key, "i32", v))
    }

    /// The array of integers at `key`, stored with any width.
    pub fn u32s(&self, key: &str) -> Result<Vec<u32>, Error> {
        self.need(key, self.opt_u32s(key)?)
    }

    /// As [`Metadata::u32s`], `None` if absent.
    pub fn opt_u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.numbers(key, "an array of u32", |v| int(key, "u32", v))
    }

    fn opt_array(&self, key: &str, wanted: &'static str) -> Result<Option<Array<'_>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(wrong_type(key, wanted, &other)),
        }
    }

    fn numbers<T>(
        &self,
        key: &str,
        wanted: &'static str,
        convert: impl Fn(&Value<'_>) -> Result<T, Error>,
    ) -> Result<Option<Vec<T>>, Error> {
        let Some(array) = self.opt_array(key, wanted)? else {
            return Ok(None);
        };
        if matches!(
            array.element_type(),
            ValueType::String | ValueType::Array | ValueType::Bool
        ) {
            return Err(wrong_type(key, wanted, &Value::Array(array)));
        }
        let mut numbers = Vec::with_capacity(array.len());
        for value in array.iter() {
            numbers.push(convert(&value)?);
        }
        Ok(Some(numbers))
    }
}

fn int<T: TryFrom<i128>>(key: &str, wanted: &'static str, value: &Value<'_>) -> Result<T, Error> {
    let int = value
        .as_int()
        .ok_or_else(|| wrong_type(key, wanted, value))?;
    T::try_from(int).map_err(|_| Error::OutOfRange {
        key: key.into(),
        wanted,
        value: int.to_string(),
    })
}

fn float(key: &str, value: &Value<'_>) -> Result<f32, Error> {
    let float = value
        .as_float()
        .ok_or_else(|| wrong_type(key, "f32", value))?;
    Ok(float as f32)
}

fn wrong_type(key: &str, wanted: &'static str, found: &Value<'_>) -> Error {
    Error::WrongType {
        key: key.into(),
        wanted,
        found: found.describe(),
    }
}

/// Reads a key or tensor name: UTF-8, not empty, at most `max_bytes` long.
pub(crate) fn name<'a>(
    r: &mut Reader<'a>,
    what: &'static str,
    max_bytes: u64,
) -> Result<&'a str, Error> {
    let offset = r.pos() as u64;
    let len = r.u64(what)?;
    if len > max_bytes {
        return Err(Error::Limit {
            what: "the length of a name",
            offset,
            found: len,
            limit: max_bytes,
        });
    }
    let bad = |problem| Error::BadName {
        what,
        offset,
        problem,
    };
    match std::str::from_utf8(r.take(len, what)?) {
        Ok("") => Err(bad("empty")),
        Ok(text) => Ok(text),
        Err(_) => Err(bad("not valid UTF-8")),
    }
}

/// Checks that the count `n` is at most `limit` and that the remaining bytes can hold `n` items of at least
/// `min_bytes`.
pub(crate) fn check_count(
    r: &Reader<'_>,
    n: u64,
    min_bytes: u64,
    limit: u64,
    what: &'static str,
) -> Result<(), Error> {
    if n > limit {
        return Err(Error::Limit {
            what,
            offset: r.pos() as u64,
            found: n,
            limit,
        });
    }
    let need = n * min_bytes;
    if need > r.left() as u64 {
        return Err(Error::Truncated {
            what,
            offset: r.pos() as u64,
            need,
            have: r.left() as u64,
        });
    }
    Ok(())
}

/// Returns the indices of `items` sorted by name, or the second of two items with the same name as an error. Unlike a
/// hash table, sorting has no worst case that hostile names could exploit.
pub(crate) fn sorted_by<T>(items: &[T], name: impl Fn(&T) -> &str) -> Result<Vec<u32>, &T> {
    let n = u32::try_from(items.len()).expect("counts are limited to 2^16");
    let mut order: Vec<u32> = (0..n).collect();
    order.sort_by(|&a, &b| name(&items[a as usize]).cmp(name(&items[b as usize])));
    match order
        .windows(2)
        .find(|w| name(&items[w[0] as usize]) == name(&items[w[1] as usize]))
    {
        Some(w) => Err(&items[w[1] as usize]),
        None => Ok(order),
    }
}

/// Finds the item called `wanted` using the order that [`sorted_by`] returned.
pub(crate) fn find_by<'a, T>(
    items: &'a [T],
    order: &[u32],
    wanted: &str,
    name: impl Fn(&T) -> &str,
) -> Option<&'a T> {
    let i = order
        .binary_search_by(|&i| name(&items[i as usize]).cmp(wanted))
        .ok()?;
    Some(&items[order[i] as usize])
}
