//! Which vector instructions the CPU has, and how a kernel is compiled for each.
//!
//! Kernels are plain loops over arrays of fixed length, shaped so that the compiler turns them into vector
//! code. A kernel is a value that implements [`Kernel`]; [`SimdLevel::run`] calls it inside a function that
//! has the level's instructions enabled, and everything marked `#[inline(always)]` below is compiled anew
//! with them. No kernel names an instruction; where too much hangs on what the compiler finds, a kernel's values
//! are [`Vector`]s and its tables are looked up by [`Lanes::look_up`], and the one hint by name is [`prefetch`].
//!
//! Invariant: a level exists only where the CPU was asked and said yes ([`SimdLevel::available`]), so
//! running a kernel at a level never meets an instruction the CPU lacks.

mod vector;

pub(super) use vector::Vector;

/// A set of vector instructions to compile kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimdLevel(Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    /// What the compilation target always has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl SimdLevel {
    /// What every machine of the target architecture can run.
    pub(super) const BASELINE: SimdLevel = SimdLevel(Instructions::Baseline);

    /// The levels this CPU can run, slowest first; never empty.
    pub(super) fn available() -> Vec<SimdLevel> {
        #[allow(unused_mut)]
        let mut levels = vec![SimdLevel::BASELINE];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            levels.push(SimdLevel(Instructions::Avx2));
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                levels.push(SimdLevel(Instructions::Avx512));
            }
        }
        levels
    }

    /// The fastest level of this CPU.
    pub(super) fn best() -> SimdLevel {
        SimdLevel::available().pop().unwrap_or(SimdLevel::BASELINE)
    }

    /// For the log and the device info: `avx512f`, `avx2`, `neon` or `portable`.
    pub(super) fn name(self) -> &'static str {
        match self.0 {
            Instructions::Baseline if cfg!(target_arch = "aarch64") => "neon",
            Instructions::Baseline => "portable",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "avx512f",
        }
    }

    /// Runs a kernel with the level's instructions.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self.0 {
            Instructions::Baseline => kernel.run::<Baseline>(),
            // SAFETY: the level was made by `available`, which asked the CPU for these instructions.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { run_avx2(kernel) },
            // SAFETY: the same.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { run_avx512(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) {
    kernel.run::<Avx2>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn run_avx512<K: Kernel>(kernel: K) {
    kernel.run::<Avx512>();
}

/// Work to be compiled for every level. `run` and all it calls per value must be `#[inline(always)]`:
/// a function that is not inlined is compiled without the level's instructions.
pub(super) trait Kernel {
    fn run<L: Lanes>(self);
}

/// How many accumulators the vector registers of a level hold.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // each architecture has some of them
pub(super) enum Registers {
    /// 8 rows of 32 values: 32 registers of 16 values, half of them accumulators.
    Rows8Columns32,
    /// 6 rows of 16 values: 16 registers of 8 values, or 32 of 4.
    Rows6Columns16,
    /// 4 rows of 8 values: 16 registers of 4 values.
    Rows4Columns8,
}

/// What a kernel may ask about the level it is compiled for.
pub(super) trait Lanes {
    /// There is a fused multiply-add. Without one, `f32::mul_add` would be a slow library call.
    const FMA: bool;
    /// Best block of accumulators for a matrix product.
    const REGISTERS: Registers;
    /// What a register holds.
    type Vector: Vector;

    /// `a · b + c`, rounded once where the level can.
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }

    /// What each code, of which the low four bits count, stands for.
    #[inline(always)]
    fn look_up(codes: &[u8; 32], levels: &[i8; 16]) -> [i8; 32] {
        let mut out = [0; 32];
        for i in 0..32 {
            out[i] = levels[usize::from(codes[i] & 0xf)];
        }
        out
    }
}

/// Asks the memory for `bytes` bytes from `start` on, which need not be a valid address. Weights and cache are
/// read once a step, and the hardware's own prefetching begins anew at each page: asking ahead makes
/// decoding a third faster.
#[inline(always)]
pub(super) fn prefetch<T>(start: *const T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint; the address is not accessed as the program sees it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.cast::<i8>().wrapping_add(offset)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

struct Baseline;
#[cfg(target_arch = "x86_64")]
struct Avx2;
#[cfg(target_arch = "x86_64")]
struct Avx512;

impl Lanes for Baseline {
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
    const REGISTERS: Registers =
        if cfg!(target_arch = "aarch64") { Registers::Rows6Columns16 } else { Registers::Rows4Columns8 };
    type Vector = [f32; 4];
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    const FMA: bool = true;
    const REGISTERS: Registers = Registers::Rows6Columns16;
    type Vector = std::arch::x86_64::__m256;

    #[inline(always)]
    fn look_up(codes: &[u8; 32], levels: &[i8; 16]) -> [i8; 32] {
        vector::look_up(codes, levels)
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    const FMA: bool = true;
    const REGISTERS: Registers = Registers::Rows8Columns32;
    type Vector = std::arch::x86_64::__m512;

    #[inline(always)]
    fn look_up(codes: &[u8; 32], levels: &[i8; 16]) -> [i8; 32] {
        vector::look_up(codes, levels)
    }
}

/// `e^x` to about two units in the last place. Below −87 and above 88 it stays at the value there; NaN
/// stays NaN. The same steps for every value, so a vector of them and a lone one agree to the bit.
#[inline(always)]
pub(super) fn exp<L: Lanes>(x: f32) -> f32 {
    // Adding 1.5 · 2^23 leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = L::mul_add(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, the first of few bits, so that the remainder is exact.
    let r = L::mul_add(n, -355.0 / 512.0, x);
    let r = L::mul_add(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    p = L::mul_add(p, r, 1.398_199_9e-3);
    p = L::mul_add(p, r, 8.333_452e-3);
    p = L::mul_add(p, r, 4.166_579_6e-2);
    p = L::mul_add(p, r, 1.666_666_5e-1);
    p = L::mul_add(p, r, 5e-1);
    let e = L::mul_add(p, r * r, r + 1.0);
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()) << 23;
    e * f32::from_bits(exponent.wrapping_add(0x3f80_0000))
}

/// IEEE half precision to single, written so that it compiles to vector code.
#[inline(always)]
pub(super) fn half_to_f32(half: u16) -> f32 {
    let bits = u32::from(half);
    // The magnitude's bits, moved into place, are the value divided by 2^112; subnormals included.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | ((bits & 0x8000) << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a mut [f32]);

    impl Kernel for Exp<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            for value in self.0 {
                *value = exp::<L>(*value);
            }
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place_on_every_level() {
        let inputs: Vec<f32> = (-8700..=8800).map(|i| i as f32 * 0.01).collect();
        for level in SimdLevel::available() {
            let mut values = inputs.clone();
            level.run(Exp(&mut values));
            for (x, value) in inputs.iter().zip(&values) {
                let exact = f64::from(*x).exp();
                let error = (f64::from(*value) - exact).abs() / exact;
                assert!(error < 2.5e-7, "{} exp({x}) = {value}, not {exact}", level.name());
            }
        }
    }

    #[test]
    fn exp_keeps_nan_and_is_finite_far_outside_its_range() {
        for level in SimdLevel::available() {
            let mut values = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -1e30, 1e30];
            level.run(Exp(&mut values));
            assert!(values[0].is_nan());
            assert!(values[1..].iter().all(|value| value.is_finite()), "{values:?}");
            assert!(values[1] < 1e-37 && values[2] > 1e38, "{values:?}");
        }
    }

    #[test]
    fn every_half_becomes_what_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{bits:#x}: {ours} {theirs}");
        }
    }
}
