//! Typed access to metadata: a getter says what it wants, an error says what it found.

use super::cursor::{Cursor, Span};
use super::value::{Array, Value, ValueType, read_value};
use super::{GgufError, MetadataEntry};

/// The metadata of an open file.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) entries: &'a [MetadataEntry],
}

impl<'a> Metadata<'a> {
    /// The value of a key, of whatever type.
    pub fn value(&self, key: &str) -> Option<Value<'a>> {
        let bytes = self.bytes;
        let index = self.entries.binary_search_by(|entry| entry.key.of(bytes).cmp(key.as_bytes())).ok()?;
        let entry = &self.entries[index];
        // It was read once already when the file was opened.
        read_value(&mut Cursor::at(bytes, entry.start), entry.value_type, 0).ok()
    }

    /// The keys, in byte order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let bytes = self.bytes;
        self.entries.iter().map(move |entry| name(entry.key, bytes))
    }

    /// The value of a key that may be missing.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if the key is there but is no `T`.
    pub fn get<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(GgufError::WrongType {
                key: key.to_owned(),
                found: value.describe(),
                wanted: T::wanted(),
            }),
        }
    }

    /// The value of a key that must be there.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], or as [`Metadata::get`].
    pub fn require<T: FromValue<'a>>(&self, key: &str) -> Result<T, GgufError> {
        self.get(key)?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned(), wanted: T::wanted() })
    }
}

/// Names were checked to be UTF-8 when the file was opened.
pub(super) fn name(span: Span, bytes: &[u8]) -> &str {
    std::str::from_utf8(span.of(bytes)).unwrap_or_default()
}

/// A Rust type that metadata values can be read as.
pub trait FromValue<'a>: Sized {
    /// What messages call the type.
    fn wanted() -> String;
    /// The value, if it is of the type and in its range.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

/// Integers of any width are accepted where they fit: converters differ in the width they choose.
impl<'a> FromValue<'a> for u32 {
    fn wanted() -> String {
        "an integer from 0 to 4294967295".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<u32> {
        value.integer()?.try_into().ok()
    }
}

impl<'a> FromValue<'a> for i32 {
    fn wanted() -> String {
        "an integer of 32 bits".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<i32> {
        value.integer()?.try_into().ok()
    }
}

impl<'a> FromValue<'a> for f32 {
    fn wanted() -> String {
        "a floating-point number".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<f32> {
        match value {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for bool {
    fn wanted() -> String {
        "a bool".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<bool> {
        match value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    fn wanted() -> String {
        "a string in UTF-8".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<&'a str> {
        match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    fn wanted() -> String {
        "an array".to_owned()
    }
    fn from_value(value: Value<'a>) -> Option<Array<'a>> {
        match value {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// An array, every element converted. Strings still borrow from the file.
impl<'a, T: FromValue<'a>> FromValue<'a> for Vec<T> {
    fn wanted() -> String {
        format!("an array, each element {}", T::wanted())
    }
    fn from_value(value: Value<'a>) -> Option<Vec<T>> {
        Array::from_value(value)?.iter().map(T::from_value).collect()
    }
}

impl MetadataEntry {
    /// Reads an entry and steps over its value, which checks that it is whole.
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        bytes: &[u8],
        number: u64,
    ) -> Result<MetadataEntry, GgufError> {
        let key = cursor.string("a metadata key")?;
        let text = std::str::from_utf8(key.of(bytes))
            .map_err(|_| GgufError::NameNotUtf8 { what: "metadata key", number })?;
        let mut read = || {
            let value_type = ValueType::from_number(cursor.u32("the type of a metadata value")?)?;
            let start = cursor.position();
            read_value(cursor, value_type, 0)?;
            Ok(MetadataEntry { key, value_type, start })
        };
        read().map_err(|problem| GgufError::InMetadata { key: text.to_owned(), problem: Box::new(problem) })
    }
}
