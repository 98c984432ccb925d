//! Collects everything that is wrong, and fails once with all of it.

use std::fmt::Display;

/// A list of unmet expectations. Dropping it without [`Gaps::assert_none`] loses them, so the compiler
/// complains about an unused one.
#[must_use]
#[derive(Debug, Default)]
pub struct Gaps {
    found: Vec<String>,
}

impl Gaps {
    /// Notes a gap unless `met`.
    pub fn expect(&mut self, met: bool, otherwise: impl Display) {
        if !met {
            self.found.push(otherwise.to_string());
        }
    }

    /// Notes a gap unless both sides are equal.
    pub fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: impl Display, found: T, wanted: T) {
        if found != wanted {
            self.found.push(format!("{what}: found {found:?}, wanted {wanted:?}"));
        }
    }

    /// Notes a gap unless the value is there, and hands the value on.
    pub fn some<T>(&mut self, what: impl Display, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.found.push(format!("{what}: absent"));
        }
        value
    }

    /// Notes a gap.
    pub fn note(&mut self, gap: impl Display) {
        self.found.push(gap.to_string());
    }

    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Panics with all gaps, and with `context` to understand them by.
    #[track_caller]
    pub fn assert_none(self, context: impl Display) {
        assert!(
            self.found.is_empty(),
            "{} gap(s):\n  {}\n\n{context}",
            self.found.len(),
            self.found.join("\n  ")
        );
    }
}
