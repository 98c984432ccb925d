//! Metadata values: the thirteen types of GGUF, decoded from the file's bytes on demand.
//!
//! Invariant: an array or a string borrows from the file. What [`read_value`] accepted once, it accepts again.

use super::GgufError;
use super::cursor::Cursor;

/// Most levels of arrays in arrays. Real files have one.
const MAX_ARRAY_DEPTH: usize = 4;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Unsigned 8 bits.
    U8,
    /// Signed 8 bits.
    I8,
    /// Unsigned 16 bits.
    U16,
    /// Signed 16 bits.
    I16,
    /// Unsigned 32 bits.
    U32,
    /// Signed 32 bits.
    I32,
    /// Single precision.
    F32,
    /// One byte, zero or not.
    Bool,
    /// Length and bytes.
    String,
    /// Element type, count and elements.
    Array,
    /// Unsigned 64 bits.
    U64,
    /// Signed 64 bits.
    I64,
    /// Double precision.
    F64,
}

impl ValueType {
    /// Every type; its place is its number in the file.
    const ALL: [ValueType; 13] = [
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

    pub(super) fn from_number(number: u32) -> Result<ValueType, GgufError> {
        Self::ALL.get(number as usize).copied().ok_or(GgufError::ValueType { number })
    }

    pub(super) fn number(self) -> u32 {
        self as u32
    }

    /// The name used in messages.
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

    /// Bytes of a value, or the least bytes where that varies.
    fn least_bytes(self) -> usize {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::String => 8,
            ValueType::Array => 12,
        }
    }
}

/// A metadata value.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Unsigned 8 bits.
    U8(u8),
    /// Signed 8 bits.
    I8(i8),
    /// Unsigned 16 bits.
    U16(u16),
    /// Signed 16 bits.
    I16(i16),
    /// Unsigned 32 bits.
    U32(u32),
    /// Signed 32 bits.
    I32(i32),
    /// Single precision.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Bytes, UTF-8 or not.
    String(&'a [u8]),
    /// Elements of one type.
    Array(Array<'a>),
    /// Unsigned 64 bits.
    U64(u64),
    /// Signed 64 bits.
    I64(i64),
    /// Double precision.
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value if it is an integer of any width.
    pub fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => Some(value.into()),
            Value::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// Type and, where it is short, value: what messages say was found.
    pub fn describe(&self) -> String {
        match self {
            Value::U8(value) => format!("{value} (u8)"),
            Value::I8(value) => format!("{value} (i8)"),
            Value::U16(value) => format!("{value} (u16)"),
            Value::I16(value) => format!("{value} (i16)"),
            Value::U32(value) => format!("{value} (u32)"),
            Value::I32(value) => format!("{value} (i32)"),
            Value::U64(value) => format!("{value} (u64)"),
            Value::I64(value) => format!("{value} (i64)"),
            Value::F32(value) => format!("{value} (f32)"),
            Value::F64(value) => format!("{value} (f64)"),
            Value::Bool(value) => format!("{value} (bool)"),
            Value::String(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if text.len() <= 64 => format!("{text:?} (string)"),
                Ok(text) => format!("a string of {} bytes", text.len()),
                Err(_) => "a string that is not UTF-8".to_owned(),
            },
            Value::Array(array) => format!("an array of {} {} values", array.count, array.element.name()),
        }
    }
}

/// An array in the file.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    element: ValueType,
    count: usize,
    data: &'a [u8],
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (element, mut cursor) = (self.element, Cursor::at(self.data, 0));
        // The elements were read once already when the file was opened, so none fails here.
        (0..self.count).map_while(move |_| read_value(&mut cursor, element, 1).ok())
    }
}

/// Reads one value; `depth` counts the arrays around it.
pub(super) fn read_value<'a>(
    cursor: &mut Cursor<'a>,
    value_type: ValueType,
    depth: usize,
) -> Result<Value<'a>, GgufError> {
    const WHAT: &str = "a metadata value";
    Ok(match value_type {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::Bool => Value::Bool(cursor.array::<1>(WHAT)?[0] != 0),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
        ValueType::String => {
            let len = cursor.u64(WHAT)?;
            Value::String(cursor.take(len, WHAT)?)
        }
        ValueType::Array => {
            if depth == MAX_ARRAY_DEPTH {
                return Err(GgufError::ArrayDepth { limit: MAX_ARRAY_DEPTH });
            }
            let element = ValueType::from_number(cursor.u32(WHAT)?)?;
            let count = cursor.count("array elements", element.least_bytes())?;
            let mut end = cursor.clone();
            match element {
                ValueType::String | ValueType::Array => {
                    for _ in 0..count {
                        read_value(&mut end, element, depth + 1)?;
                    }
                }
                // `count` checked that they fit, so the product cannot overflow.
                _ => drop(end.take(count * element.least_bytes() as u64, WHAT)?),
            }
            let data = cursor.take((end.position() - cursor.position()) as u64, WHAT)?;
            Value::Array(Array { element, count: count as usize, data })
        }
    })
}
