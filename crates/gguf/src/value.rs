//! Metadata values as views into the file's bytes, without copies or allocations per element. The bytes are validated
//! once, when the file is opened ([`check`]). The views are bounds-checked all the same, because a mapped file can
//! change later.

use crate::error::Error;
use crate::reader::Reader;

/// Maximum nesting depth of arrays. No known file nests any.
const MAX_ARRAY_DEPTH: u32 = 4;

/// The position of one in this many strings of an array is stored, so that [`Strings::get`] reads at most this many
/// lengths.
const STRING_STRIDE: usize = 16;

const WHAT: &str = "a metadata value";

/// Type of a metadata value. The discriminant is the id used in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueType {
    /// 8-bit unsigned
    U8 = 0,
    /// 8-bit signed
    I8 = 1,
    /// 16-bit unsigned
    U16 = 2,
    /// 16-bit signed
    I16 = 3,
    /// 32-bit unsigned
    U32 = 4,
    /// 32-bit signed
    I32 = 5,
    /// 32-bit float
    F32 = 6,
    /// one byte, 0 or 1
    Bool = 7,
    /// length and bytes
    String = 8,
    /// element type, count and elements
    Array = 9,
    /// 64-bit unsigned
    U64 = 10,
    /// 64-bit signed
    I64 = 11,
    /// 64-bit float
    F64 = 12,
}

impl ValueType {
    /// Every type, by id.
    pub const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this id in the file, if GGUF defines one.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// A short name such as `u32` or `string`.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Size in bytes; `None` for strings and arrays, whose size varies.
    pub(crate) fn fixed_bytes(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    /// Smallest size of a value in bytes.
    fn min_bytes(self) -> u64 {
        match self {
            ValueType::String => 8,
            ValueType::Array => 12,
            fixed => fixed
                .fixed_bytes()
                .expect("all other types have a fixed size") as u64,
        }
    }
}

/// A metadata value, borrowed from the file.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// 8-bit unsigned
    U8(u8),
    /// 8-bit signed
    I8(i8),
    /// 16-bit unsigned
    U16(u16),
    /// 16-bit signed
    I16(i16),
    /// 32-bit unsigned
    U32(u32),
    /// 32-bit signed
    I32(i32),
    /// 32-bit float
    F32(f32),
    /// true or false
    Bool(bool),
    /// bytes, not necessarily valid UTF-8
    String(&'a [u8]),
    /// elements of one type
    Array(Array<'a>),
    /// 64-bit unsigned
    U64(u64),
    /// 64-bit signed
    I64(i64),
    /// 64-bit float
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type of this value.
    pub fn ty(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Returns an integer of any width; `None` for other types.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Returns a float of either width; `None` for other types.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// Describes the type for error messages, such as `u32` or `array of 3 string`.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(a) => format!("array of {} {}", a.len(), a.element_type().name()),
            other => other.ty().name().to_owned(),
        }
    }

    /// Reads one value and moves past it.
    pub(crate) fn read(r: &mut Reader<'a>, ty: ValueType) -> Result<Value<'a>, Error> {
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(r.array(WHAT)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(r.array(WHAT)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(r.array(WHAT)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(r.array(WHAT)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(r.array(WHAT)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(r.array(WHAT)?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(r.array(WHAT)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(r.array(WHAT)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(r.array(WHAT)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(r.array(WHAT)?)),
            ValueType::Bool => Value::Bool(u8::from_le_bytes(r.array(WHAT)?) != 0),
            ValueType::String => Value::String(r.string(WHAT)?),
            ValueType::Array => {
                let mut walk = r.clone();
                check(&mut walk, ValueType::Array, "")?;
                let bytes = r.take((walk.pos() - r.pos()) as u64, WHAT)?;
                Value::Array(Array::over(bytes, &[])?)
            }
        })
    }
}

/// Validates one value of the metadata key `key`, including every length in it, and moves past it. For an array of
/// strings, returns where every [`STRING_STRIDE`]th string begins, relative to the first.
pub(crate) fn check(r: &mut Reader<'_>, ty: ValueType, key: &str) -> Result<Vec<u64>, Error> {
    let mut index = Vec::new();
    check_nested(r, ty, key, MAX_ARRAY_DEPTH, &mut index)?;
    Ok(index)
}

fn check_nested(
    r: &mut Reader<'_>,
    ty: ValueType,
    key: &str,
    depth_left: u32,
    index: &mut Vec<u64>,
) -> Result<(), Error> {
    if let Some(bytes) = ty.fixed_bytes() {
        let at = r.pos();
        let value = r.take(bytes as u64, WHAT)?;
        return check_bools(ty, value, at, key);
    }
    if ty == ValueType::String {
        return r.string(WHAT).map(drop);
    }
    if depth_left == 0 {
        return Err(Error::Limit {
            what: "the depth of a nested array",
            offset: r.pos() as u64,
            found: u64::from(MAX_ARRAY_DEPTH) + 1,
            limit: u64::from(MAX_ARRAY_DEPTH),
        });
    }
    let at = r.pos();
    let id = r.u32(WHAT)?;
    let element = ValueType::from_id(id).ok_or_else(|| Error::UnknownValueType {
        key: key.to_owned(),
        id,
        offset: at as u64,
    })?;
    let len = r.count(element.min_bytes(), "the elements of a metadata array")?;
    if let Some(bytes) = element.fixed_bytes() {
        let at = r.pos();
        let values = r.take(len.saturating_mul(bytes as u64), WHAT)?;
        return check_bools(element, values, at, key);
    }
    let outermost = depth_left == MAX_ARRAY_DEPTH;
    let first = r.pos();
    for i in 0..len {
        if element == ValueType::String {
            if outermost && i % STRING_STRIDE as u64 == 0 {
                index.push((r.pos() - first) as u64);
            }
            r.string("a string of a metadata array")?;
        } else {
            check_nested(r, element, key, depth_left - 1, index)?;
        }
    }
    Ok(())
}

fn check_bools(ty: ValueType, values: &[u8], at: usize, key: &str) -> Result<(), Error> {
    if ty != ValueType::Bool {
        return Ok(());
    }
    match values.iter().position(|&b| b > 1) {
        None => Ok(()),
        Some(i) => Err(Error::BadBool {
            key: key.to_owned(),
            found: values[i],
            offset: (at + i) as u64,
        }),
    }
}

/// An array: elements of one type, in file order.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    /// The encoded elements.
    bytes: &'a [u8],
    /// Where every [`STRING_STRIDE`]th string begins in `bytes`; empty for other
    /// types and for nested arrays.
    index: &'a [u64],
}

impl<'a> Array<'a> {
    /// A view of a whole array value: element type, count, elements.
    pub(crate) fn over(value: &'a [u8], index: &'a [u64]) -> Result<Self, Error> {
        let mut r = Reader::at(value, 0);
        let element = ValueType::from_id(r.u32(WHAT)?).unwrap_or(ValueType::U8);
        let len = r.u64(WHAT)?;
        // Both were checked at open. If a mapped file has changed since, the length is capped at what the bytes can
        // hold.
        let most = r.left() / element.min_bytes() as usize;
        Ok(Array {
            element,
            len: usize::try_from(len).map_or(most, |len| len.min(most)),
            bytes: &value[r.pos()..],
            index,
        })
    }

    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let element = self.element;
        let mut r = Reader::at(self.bytes, 0);
        (0..self.len).map_while(move |_| Value::read(&mut r, element).ok())
    }

    /// The elements as strings; `None` if they have another type.
    pub fn strings(&self) -> Option<Strings<'a>> {
        (self.element == ValueType::String).then_some(Strings { array: *self })
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}; {}]", self.element.name(), self.len)
    }
}

/// An array of strings: bytes that are not necessarily valid UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a> {
    array: Array<'a>,
}

impl<'a> Strings<'a> {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.array.len
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.array.len == 0
    }

    /// Returns string `i`, `None` past the end. Reads at most 16 string lengths.
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        if i >= self.array.len {
            return None;
        }
        let (start, skip) = match self.array.index.get(i / STRING_STRIDE) {
            Some(&start) => (usize::try_from(start).ok()?, i % STRING_STRIDE),
            None => (0, i),
        };
        StringIter::new(self.array.bytes, start, self.array.len - (i - skip)).nth(skip)
    }

    /// The strings in order.
    pub fn iter(&self) -> StringIter<'a> {
        StringIter::new(self.array.bytes, 0, self.array.len)
    }
}

impl<'a> IntoIterator for Strings<'a> {
    type Item = &'a [u8];
    type IntoIter = StringIter<'a>;

    fn into_iter(self) -> StringIter<'a> {
        self.iter()
    }
}

/// Iterator over [`Strings`].
#[derive(Clone)]
pub struct StringIter<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> StringIter<'a> {
    fn new(bytes: &'a [u8], start: usize, left: usize) -> Self {
        StringIter {
            reader: Reader::at(bytes, start),
            left,
        }
    }
}

impl<'a> Iterator for StringIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.reader.string(WHAT).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // Each string starts with eight bytes of length.
        let most = self.left.min(self.reader.left() / 8);
        (0, Some(most))
    }
}
