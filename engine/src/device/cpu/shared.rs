//! Memory that the threads of one step share.
//!
//! A step runs on all threads at once with a barrier between stages ([`super::team`]), so a buffer is
//! written by several threads in one stage and read by all in the next. Borrowed slices cannot say that,
//! and a fork and join for each of some 270 stages a token costs more than the arithmetic in them. So the
//! buffers hand out slices unchecked by the borrow checker, and the plan keeps them apart.
//!
//! Invariant: between two barriers, no range that one thread writes is read or written by another. The
//! plan ([`super::plan`]) puts ops into one stage only if that holds, and an op's threads write disjoint
//! rows or columns.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::{Pod, Zeroable};

use crate::device::DeviceError;

/// A cache line, so that vector loads do not straddle two.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

const LINE_BYTES: usize = 64;

/// Zeroed memory, or an error where the system has none.
fn allocate<T: Zeroable>(what: &str, lines: usize) -> Result<Box<[T]>, DeviceError> {
    bytemuck::allocation::try_zeroed_slice_box(lines)
        .map_err(|()| DeviceError::Failed(format!("no memory for {what}: {} bytes", lines * LINE_BYTES)))
}

/// Bytes on cache-line boundaries.
pub(super) struct AlignedBytes {
    lines: Box<[Line]>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zeros; `what` is named if there is no memory for them.
    pub(super) fn new(what: &str, len: usize) -> Result<AlignedBytes, DeviceError> {
        Ok(AlignedBytes { lines: allocate(what, len.div_ceil(LINE_BYTES))?, len })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// Values that several threads read and write in turns.
pub(super) struct SharedBuffer {
    lines: Box<[UnsafeCell<Line>]>,
    len: usize,
}

// SAFETY: access from several threads goes through the unsafe methods, whose callers keep the module's
// invariant, and through `store`, which is atomic.
unsafe impl Sync for SharedBuffer {}

impl SharedBuffer {
    /// `len` zeros; `what` is named if there is no memory for them.
    pub(super) fn new(what: &str, len: usize) -> Result<SharedBuffer, DeviceError> {
        Ok(SharedBuffer { lines: allocate(what, len.div_ceil(16))?, len })
    }

    #[inline(always)]
    fn pointer(&self, range: &Range<usize>) -> *mut f32 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} values", self.len);
        // `UnsafeCell<Line>` is laid out as `[f32; 16]`, so the lines are one array of values.
        let base = UnsafeCell::raw_get(self.lines.as_ptr()).cast::<f32>();
        base.wrapping_add(range.start)
    }

    /// Values to read.
    ///
    /// # Safety
    /// Nobody writes any of them while the slice lives.
    #[inline(always)]
    pub(super) unsafe fn read(&self, range: Range<usize>) -> &[f32] {
        let pointer = self.pointer(&range);
        // SAFETY: `pointer` checked that the range lies inside the allocation, all of which is initialised;
        // the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(pointer, range.len()) }
    }

    /// Values to write.
    ///
    /// # Safety
    /// Nobody else reads or writes any of them while the slice lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn write(&self, range: Range<usize>) -> &mut [f32] {
        let pointer = self.pointer(&range);
        // SAFETY: inside the allocation, as in `read`; the caller keeps everyone else away.
        unsafe { std::slice::from_raw_parts_mut(pointer, range.len()) }
    }

    /// Stores one value. Two threads may store to the same index; one of the two values stays.
    ///
    /// # Safety
    /// Nobody holds a slice over the value meanwhile.
    #[inline(always)]
    pub(super) unsafe fn store(&self, index: usize, value: f32) {
        let pointer = self.pointer(&(index..index + 1)).cast::<u32>();
        // SAFETY: the value lies inside the allocation and is aligned; all accesses meanwhile are atomic.
        unsafe { AtomicU32::from_ptr(pointer) }.store(value.to_bits(), Ordering::Relaxed);
    }
}
