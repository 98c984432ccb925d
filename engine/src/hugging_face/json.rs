//! The directory's JSON files: bounded reading, and getters that name file and key when they refuse.
//!
//! A key whose value is `null` counts as missing, as it does for the library that writes these files.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::HuggingFaceError;

/// Largest file of settings; real ones have kilobytes.
const MAX_SETTINGS_BYTES: u64 = 16 << 20;

/// Values longer than this are not repeated in messages.
const MAX_SHOWN: usize = 80;

/// An object of settings and the name of its file.
pub(super) struct Settings {
    file: String,
    /// What keys of an inner object are under, with a dot at the end.
    prefix: String,
    values: Map<String, Value>,
}

/// The text of a file, or `None` if there is no such file.
pub(super) fn read_text(
    directory: &Path,
    name: &str,
    max_bytes: u64,
) -> Result<Option<String>, HuggingFaceError> {
    let refuse = |problem: String| HuggingFaceError::File { file: name.to_owned(), problem };
    let path = directory.join(name);
    // Asked before opening, because opening a pipe would wait for its other end.
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(format!("cannot be inspected: {error}"))),
        Ok(metadata) if !metadata.is_file() => return Err(refuse("is not a regular file".to_owned())),
        Ok(metadata) if metadata.len() > max_bytes => {
            return Err(refuse(format!("has {} bytes; {max_bytes} are allowed", metadata.len())));
        }
        Ok(_) => {}
    }
    let mut text = String::new();
    let file = File::open(&path).map_err(|error| refuse(format!("cannot be opened: {error}")))?;
    // It may have grown since.
    file.take(max_bytes)
        .read_to_string(&mut text)
        .map_err(|error| refuse(format!("cannot be read: {error}")))?;
    Ok(Some(text))
}

impl Settings {
    /// Reads a file that may be missing.
    pub(super) fn read(directory: &Path, name: &str) -> Result<Option<Settings>, HuggingFaceError> {
        let Some(text) = read_text(directory, name, MAX_SETTINGS_BYTES)? else { return Ok(None) };
        let values = serde_json::from_str(&text).map_err(|error| HuggingFaceError::File {
            file: name.to_owned(),
            problem: format!("is no JSON object: {error}"),
        })?;
        Ok(Some(Settings { file: name.to_owned(), prefix: String::new(), values }))
    }

    /// Reads a file that may be missing, which then says nothing.
    pub(super) fn read_or_empty(directory: &Path, name: &str) -> Result<Settings, HuggingFaceError> {
        let empty = || Settings { file: name.to_owned(), prefix: String::new(), values: Map::new() };
        Ok(Settings::read(directory, name)?.unwrap_or_else(empty))
    }

    /// Reads a file that must be there.
    pub(super) fn require(directory: &Path, name: &str) -> Result<Settings, HuggingFaceError> {
        Settings::read(directory, name)?.ok_or_else(|| HuggingFaceError::File {
            file: name.to_owned(),
            problem: "is missing; a Hugging Face model directory has it".to_owned(),
        })
    }

    /// The error for a key.
    pub(super) fn refuse(&self, key: &str, allowed: impl Into<String>) -> HuggingFaceError {
        let found = self.values.get(key).map_or_else(|| "missing".to_owned(), show);
        HuggingFaceError::Setting {
            file: self.file.clone(),
            key: format!("{}{key}", self.prefix),
            found,
            allowed: allowed.into(),
        }
    }

    /// Whether the key is there, be it with `null`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The value of a key, whatever it is.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, HuggingFaceError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.refuse(key, format!("wanted is {wanted}")))
    }

    /// A whole number of 32 bits.
    pub(super) fn count(&self, key: &str) -> Result<Option<u32>, HuggingFaceError> {
        self.get(key, "an integer from 0 to 4294967295", |value| value.as_u64()?.try_into().ok())
    }

    /// A number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, HuggingFaceError> {
        self.get(key, "a number", Value::as_f64)
    }

    /// True or false.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, HuggingFaceError> {
        self.get(key, "true or false", Value::as_bool)
    }

    /// Text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, HuggingFaceError> {
        self.get(key, "a string", Value::as_str)
    }

    /// An object within this one.
    pub(super) fn section(&self, key: &str) -> Result<Option<Settings>, HuggingFaceError> {
        let values = self.get(key, "an object", Value::as_object)?;
        Ok(values.map(|values| Settings {
            file: self.file.clone(),
            prefix: format!("{}{key}.", self.prefix),
            values: values.clone(),
        }))
    }

    /// One token id or a list of them; none if the key is missing.
    pub(super) fn token_ids(&self, key: &str) -> Result<Vec<u32>, HuggingFaceError> {
        let id = |value: &Value| value.as_u64()?.try_into().ok();
        let ids = self.get(key, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// The spelling of a special token: text, or an object with a `content`.
    pub(super) fn token(&self, key: &str) -> Result<Option<&str>, HuggingFaceError> {
        self.get(key, "a token's spelling", |value| value.as_str().or_else(|| value.get("content")?.as_str()))
    }

    /// All keys and values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }
}

/// A value as messages show it.
pub(super) fn show(value: &Value) -> String {
    let text = value.to_string();
    match value {
        Value::Array(values) if text.len() > MAX_SHOWN => format!("a list of {} values", values.len()),
        Value::Object(values) if text.len() > MAX_SHOWN => format!("an object of {} values", values.len()),
        Value::String(string) if text.len() > MAX_SHOWN => format!("a string of {} bytes", string.len()),
        _ => text,
    }
}
