//! Memory that the threads of one step share.
//!
//! A step runs on all threads at once, one stage after the other ([`super::step`]), so a buffer is
//! written by several threads in one stage and read by all in the next. Borrowed slices cannot say that,
//! and a fork and join for each of some 270 stages a token costs more than the arithmetic in them. So the
//! buffers hand out slices unchecked by the borrow checker, and the plan keeps them apart.
//!
//! Invariant: within a stage, no range that one thread writes is read or written by another. The
//! plan ([`super::plan`]) puts ops into one stage only if that holds, and an op's threads write disjoint
//! rows or columns.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::{Pod, Zeroable};
use memmap2::{MmapMut, MmapRaw};

use crate::device::DeviceError;

/// A cache line, so that vector loads do not straddle two.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

const LINE_BYTES: usize = 64;

fn no_memory(what: &str, bytes: usize) -> DeviceError {
    DeviceError::Failed(format!("no memory for {what}: {bytes} bytes"))
}

/// Bytes on cache-line boundaries.
pub(super) struct AlignedBytes {
    lines: Box<[Line]>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zeros; `what` is named if there is no memory for them.
    pub(super) fn new(what: &str, len: usize) -> Result<AlignedBytes, DeviceError> {
        let lines = bytemuck::allocation::try_zeroed_slice_box(len.div_ceil(LINE_BYTES))
            .map_err(|()| no_memory(what, len))?;
        Ok(AlignedBytes { lines, len })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// Values that several threads read and write in turns. Fresh pages of the system, which are zero and take
/// no memory before their first use: a pool that is never filled costs nothing, at start-up least of all.
pub(super) struct SharedBuffer {
    pages: MmapRaw,
    len: usize,
}

impl SharedBuffer {
    /// `len` zeros; `what` is named if there is no memory for them.
    pub(super) fn new(what: &str, len: usize) -> Result<SharedBuffer, DeviceError> {
        let bytes = len.checked_mul(size_of::<f32>()).ok_or_else(|| no_memory(what, usize::MAX))?;
        let pages = MmapMut::map_anon(bytes.max(1)).map_err(|_| no_memory(what, bytes))?;
        Ok(SharedBuffer { pages: MmapRaw::from(pages), len })
    }

    #[inline(always)]
    fn pointer(&self, range: &Range<usize>) -> *mut f32 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} values", self.len);
        // Pages are aligned for any value, and every bit pattern is an f32.
        self.pages.as_mut_ptr().cast::<f32>().wrapping_add(range.start)
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
