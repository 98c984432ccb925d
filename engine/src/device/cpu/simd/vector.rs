//! Vectors of `f32` by name, for the loop in which a device spends its time.
//!
//! A compiler that is left to find the vectors in blocks of accumulators may not: one shape in eight was computed
//! value by value, fourteen times as slowly, and only on CPUs without AVX-512. Here each register is a value.
//!
//! Invariant: whatever the vector, each of its values is computed as [`Lanes::mul_add`](super::Lanes::mul_add)
//! computes it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps,
};

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

/// Implements [`Vector`] for a type of the architecture's own.
#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($vector:ty, $width:literal, $splat:ident, $load:ident, $store:ident, $mul_add:ident) => {
        impl Vector for $vector {
            const WIDTH: usize = $width;

            #[inline(always)]
            fn splat(value: f32) -> Self {
                // SAFETY: the CPU has the instructions: this is part of a kernel that runs at their level.
                unsafe { $splat(value) }
            }

            #[inline(always)]
            fn load(values: &[f32]) -> Self {
                let values: &[f32; $width] = values.first_chunk().expect("a vector of values");
                // SAFETY: the same, and there are as many values as are read.
                unsafe { $load(values.as_ptr()) }
            }

            #[inline(always)]
            fn store(self, values: &mut [f32]) {
                let values: &mut [f32; $width] = values.first_chunk_mut().expect("a vector of values");
                // SAFETY: the same, and there is room for as many as are written.
                unsafe { $store(values.as_mut_ptr(), self) }
            }

            #[inline(always)]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                // SAFETY: as for `splat`.
                unsafe { $mul_add(self, factor, term) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector!(__m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
#[cfg(target_arch = "x86_64")]
vector!(__m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps);
