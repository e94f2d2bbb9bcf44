//! Owned metadata values, the input of [`crate::Writer`]. Reading uses the borrowed [`crate::Value`].

use crate::value::{Array, Value, ValueType};

/// A metadata value to write. Converts from integers, floats, bools, strings, vectors of these, and the [`Value`]s of
/// another file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OwnedValue {
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
    /// bytes, normally UTF-8
    String(Vec<u8>),
    /// elements of one type
    Array(OwnedArray),
    /// 64-bit unsigned
    U64(u64),
    /// 64-bit signed
    I64(i64),
    /// 64-bit float
    F64(f64),
}

/// An array to write.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OwnedArray {
    /// 8-bit unsigned
    U8(Vec<u8>),
    /// 8-bit signed
    I8(Vec<i8>),
    /// 16-bit unsigned
    U16(Vec<u16>),
    /// 16-bit signed
    I16(Vec<i16>),
    /// 32-bit unsigned
    U32(Vec<u32>),
    /// 32-bit signed
    I32(Vec<i32>),
    /// 32-bit float
    F32(Vec<f32>),
    /// true or false
    Bool(Vec<bool>),
    /// bytes, normally UTF-8
    String(Vec<Vec<u8>>),
    /// nested arrays
    Array(Vec<OwnedArray>),
    /// 64-bit unsigned
    U64(Vec<u64>),
    /// 64-bit signed
    I64(Vec<i64>),
    /// 64-bit float
    F64(Vec<f64>),
}

/// Implements conversions and encoding for every number type.
macro_rules! numbers {
    ($($variant:ident $t:ty,)*) => {
        $(
            impl From<$t> for OwnedValue {
                fn from(v: $t) -> Self {
                    OwnedValue::$variant(v)
                }
            }

            impl From<Vec<$t>> for OwnedValue {
                fn from(v: Vec<$t>) -> Self {
                    OwnedValue::Array(OwnedArray::$variant(v))
                }
            }
        )*

        impl OwnedValue {
            /// The type, as stored in the file.
            pub fn ty(&self) -> ValueType {
                match self {
                    $(OwnedValue::$variant(_) => ValueType::$variant,)*
                    OwnedValue::Bool(_) => ValueType::Bool,
                    OwnedValue::String(_) => ValueType::String,
                    OwnedValue::Array(_) => ValueType::Array,
                }
            }

            /// Appends the encoded value, without its type.
            pub(crate) fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(OwnedValue::$variant(v) => out.extend(v.to_le_bytes()),)*
                    OwnedValue::Bool(v) => out.push(u8::from(*v)),
                    OwnedValue::String(v) => encode_string(v, out),
                    OwnedValue::Array(v) => v.encode(out),
                }
            }
        }

        impl OwnedArray {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(OwnedArray::$variant(v) => {
                        encode_head(ValueType::$variant, v.len(), out);
                        out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
                    })*
                    OwnedArray::Bool(v) => {
                        encode_head(ValueType::Bool, v.len(), out);
                        out.extend(v.iter().map(|&b| u8::from(b)));
                    }
                    OwnedArray::String(v) => {
                        encode_head(ValueType::String, v.len(), out);
                        v.iter().for_each(|s| encode_string(s, out));
                    }
                    OwnedArray::Array(v) => {
                        encode_head(ValueType::Array, v.len(), out);
                        v.iter().for_each(|a| a.encode(out));
                    }
                }
            }
        }

        impl From<Value<'_>> for OwnedValue {
            fn from(v: Value<'_>) -> Self {
                match v {
                    $(Value::$variant(v) => OwnedValue::$variant(v),)*
                    Value::Bool(v) => OwnedValue::Bool(v),
                    Value::String(v) => OwnedValue::String(v.to_vec()),
                    Value::Array(v) => OwnedValue::Array(v.into()),
                }
            }
        }

        impl From<Array<'_>> for OwnedArray {
            fn from(array: Array<'_>) -> Self {
                /// Collects the elements, all of which have the array's element type.
                macro_rules! collect {
                    ($v:ident) => {
                        array.iter().filter_map(|v| match v { Value::$v(v) => Some(v.into()), _ => None }).collect()
                    };
                }
                match array.element_type() {
                    $(ValueType::$variant => OwnedArray::$variant(collect!($variant)),)*
                    ValueType::Bool => OwnedArray::Bool(collect!(Bool)),
                    ValueType::String => OwnedArray::String(collect!(String)),
                    ValueType::Array => OwnedArray::Array(collect!(Array)),
                }
            }
        }
    };
}

numbers! {
    U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64, F32 f32, F64 f64,
}

impl From<bool> for OwnedValue {
    fn from(v: bool) -> Self {
        OwnedValue::Bool(v)
    }
}

impl From<&str> for OwnedValue {
    fn from(v: &str) -> Self {
        OwnedValue::String(v.as_bytes().to_vec())
    }
}

impl From<String> for OwnedValue {
    fn from(v: String) -> Self {
        OwnedValue::String(v.into_bytes())
    }
}

impl From<Vec<bool>> for OwnedValue {
    fn from(v: Vec<bool>) -> Self {
        OwnedValue::Array(OwnedArray::Bool(v))
    }
}

impl From<Vec<&str>> for OwnedValue {
    fn from(v: Vec<&str>) -> Self {
        let strings = v.into_iter().map(|s| s.as_bytes().to_vec());
        OwnedValue::Array(OwnedArray::String(strings.collect()))
    }
}

impl From<Vec<String>> for OwnedValue {
    fn from(v: Vec<String>) -> Self {
        let strings = v.into_iter().map(String::into_bytes);
        OwnedValue::Array(OwnedArray::String(strings.collect()))
    }
}

impl From<OwnedArray> for OwnedValue {
    fn from(v: OwnedArray) -> Self {
        OwnedValue::Array(v)
    }
}

fn encode_head(element: ValueType, len: usize, out: &mut Vec<u8>) {
    out.extend(element.id().to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

pub(crate) fn encode_string(s: &[u8], out: &mut Vec<u8>) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s);
}
