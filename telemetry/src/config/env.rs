//! Reading variables: empty counts as unset, numbers and switches are checked where they are read.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{ConfigError, Signal};

/// The environment, as a function.
pub(super) struct Env<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Env<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Env<'a> {
        Env { lookup }
    }

    /// The trimmed value; `None` if unset or blank.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let value = (self.lookup)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// The signal's own variable or else the generic one, with the name it was found under.
    pub(super) fn otlp(&self, signal: Signal, suffix: &str) -> Option<(String, String)> {
        [format!("OTEL_EXPORTER_OTLP_{}_{suffix}", signal.variable()), format!("OTEL_EXPORTER_OTLP_{suffix}")]
            .into_iter()
            .find_map(|name| self.get(&name).map(|value| (name, value)))
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.get(name).map(|value| parse_flag(name, value)).transpose()
    }

    pub(super) fn milliseconds(&self, name: &str, default: u64) -> Result<Duration, ConfigError> {
        match self.get(name) {
            None => Ok(Duration::from_millis(default)),
            Some(value) => parse_milliseconds(name, value),
        }
    }

    pub(super) fn count(
        &self,
        name: &str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.parse().ok().filter(|count| range.contains(count)).ok_or_else(|| {
            ConfigError::new(name, value, format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }
}

pub(super) fn parse_flag(name: &str, value: String) -> Result<bool, ConfigError> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(ConfigError::new(name, value, "true, false")),
    }
}

pub(super) fn parse_milliseconds(name: &str, value: String) -> Result<Duration, ConfigError> {
    // One day is far above any useful interval and far below what could overflow a deadline.
    match value.parse::<u64>() {
        Ok(milliseconds @ 1..=86_400_000) => Ok(Duration::from_millis(milliseconds)),
        _ => Err(ConfigError::new(name, value, "milliseconds, a whole number from 1 to 86400000")),
    }
}

/// Splits `k1=v1,k2=v2` and decodes percent signs in values, as headers and resource attributes want it.
/// The error is a description that holds no value.
pub(super) fn parse_pairs(list: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    for (index, member) in list.split(',').enumerate() {
        let member = member.trim();
        if member.is_empty() {
            continue;
        }
        let Some((key, value)) = member.split_once('=') else {
            return Err(format!("entry {} without '='", index + 1));
        };
        let key = key.trim();
        if key.is_empty() {
            return Err(format!("entry {} without a key", index + 1));
        }
        let Some(value) = percent_decode(value.trim()) else {
            return Err(format!("entry {key:?} with a broken percent escape"));
        };
        pairs.push((key.to_owned(), value));
    }
    Ok(pairs)
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = (rest.next()? as char).to_digit(16)?;
            let low = (rest.next()? as char).to_digit(16)?;
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
