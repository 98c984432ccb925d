//! Vectors of `f32` by name, for the loop in which a device spends its time, and a table in a register.
//!
//! A compiler that is left to find the vectors in blocks of accumulators may not: one shape in eight was computed
//! value by value, fourteen times as slowly, and only on CPUs without AVX-512. Here each register is a value.
//!
//! Invariant: whatever the vector, each of its values is computed as [`Lanes::mul_add`](super::Lanes::mul_add)
//! computes it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256i, __m512, _mm256_fmadd_ps, _mm256_shuffle_epi8, _mm512_fmadd_ps};
#[cfg(target_arch = "x86_64")]
use std::mem::transmute;

use super::{Baseline, Lanes};

/// A register's values. Only kernels have any, and a kernel runs only where the CPU has the instructions.
pub(in crate::device::cpu) trait Vector: Copy {
    /// Values of a vector.
    const WIDTH: usize;

    fn splat(value: f32) -> Self;

    /// The first [`WIDTH`](Vector::WIDTH) values.
    fn load(values: &[f32]) -> Self;

    /// Over the first [`WIDTH`](Vector::WIDTH) values.
    fn store(self, values: &mut [f32]);

    /// `self · factor + term`.
    fn mul_add(self, factor: Self, term: Self) -> Self;
}

impl Vector for [f32; 4] {
    const WIDTH: usize = 4;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; 4]
    }

    #[inline(always)]
    fn load(values: &[f32]) -> Self {
        *values.first_chunk().expect("a vector of values")
    }

    #[inline(always)]
    fn store(self, values: &mut [f32]) {
        *values.first_chunk_mut().expect("a vector of values") = self;
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        std::array::from_fn(|i| Baseline::mul_add(self[i], factor[i], term[i]))
    }
}

/// Implements [`Vector`] for a type of the architecture's own. Values go in and out by their bits, which is never a
/// call; intrinsics that move them may stay one where the compiler optimises less.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($vector:ty, $width:literal, $mul_add:ident) => {
        impl Vector for $vector {
            const WIDTH: usize = $width;

            #[inline(always)]
            fn splat(value: f32) -> Self {
                // SAFETY: the vector is as many values of 32 bits, and all bits are values.
                unsafe { transmute::<[f32; $width], Self>([value; $width]) }
            }

            #[inline(always)]
            fn load(values: &[f32]) -> Self {
                let values: &[f32; $width] = values.first_chunk().expect("a vector of values");
                // SAFETY: as for `splat`.
                unsafe { transmute::<[f32; $width], Self>(*values) }
            }

            #[inline(always)]
            fn store(self, values: &mut [f32]) {
                // SAFETY: as for `splat`.
                let own = unsafe { transmute::<Self, [f32; $width]>(self) };
                *values.first_chunk_mut().expect("a vector of values") = own;
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                // SAFETY: the CPU has the instruction: this is part of a kernel that runs at its level.
                unsafe { $mul_add(self, factor, term) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector!(__m256, 8, _mm256_fmadd_ps);
#[cfg(target_arch = "x86_64")]
vector!(__m512, 16, _mm512_fmadd_ps);

/// [`Lanes::look_up`](super::Lanes::look_up) from AVX2 on: one instruction where the compiler would look at one code
/// after the other.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn look_up(codes: &[u8; 32], levels: &[i8; 16]) -> [i8; 32] {
    let (mut low, mut table) = ([0; 32], [0; 32]);
    for i in 0..32 {
        // A code above 127 would stand for zero.
        low[i] = codes[i] & 0xf;
        table[i] = levels[i % 16];
    }
    // SAFETY: vectors and arrays have the same bits, all of which are values, and the CPU has the instruction: this is
    // part of a kernel that runs at its level.
    unsafe {
        let (codes, table) = (transmute::<[u8; 32], __m256i>(low), transmute::<[i8; 32], __m256i>(table));
        transmute::<__m256i, [i8; 32]>(_mm256_shuffle_epi8(table, codes))
    }
}
