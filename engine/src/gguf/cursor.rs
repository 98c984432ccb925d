//! Reading numbers and strings from a byte slice without ever leaving it.

use super::GgufError;

/// Where a string lies in the file. It stays there; nothing is copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Span {
    /// The bytes, of the slice that the span was read from.
    pub(super) fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start..self.start + self.len]
    }
}

/// A position in a byte slice. Every read checks how much is left first.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn at(bytes: &'a [u8], position: usize) -> Cursor<'a> {
        Cursor { bytes, position: position.min(bytes.len()) }
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next `len` bytes; `what` is for the message if they are not there.
    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        match usize::try_from(len) {
            Ok(len) if len <= left => {
                let taken = &self.bytes[self.position..self.position + len];
                self.position += len;
                Ok(taken)
            }
            _ => Err(GgufError::Truncated { what, offset: self.position, needed: len, left }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take returns exactly as many bytes as asked"))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: a 64-bit length, then as many bytes.
    pub(super) fn string(&mut self, what: &'static str) -> Result<Span, GgufError> {
        let len = self.u64(what)?;
        let start = self.position;
        Ok(Span { start, len: self.take(len, what)?.len() })
    }

    /// A 64-bit count of things of at least `each` bytes, refused if they cannot all be in the file. This is
    /// what keeps a 24-byte file from asking for gigabytes.
    pub(super) fn count(&mut self, what: &'static str, each: usize) -> Result<u64, GgufError> {
        let count = self.u64(what)?;
        self.check_count(count, what, each)
    }

    pub(super) fn check_count(&self, count: u64, what: &'static str, each: usize) -> Result<u64, GgufError> {
        let left = self.left();
        if count > (left / each) as u64 {
            return Err(GgufError::Count { what, count, each, offset: self.position, left });
        }
        Ok(count)
    }
}
