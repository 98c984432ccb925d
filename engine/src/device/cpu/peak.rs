//! What the CPU can do at most: bytes a second that all threads read, and multiplications and additions a second.
//!
//! Both loops are written as the kernels are, for the same instructions, so that an op's share of the peak says how
//! well the op is written and not how well the compiler knows the CPU.

use std::hint::black_box;
use std::time::Instant;

use super::CpuDevice;
#[cfg(test)]
use super::simd::SimdLevel;
use super::simd::{Kernel, Lanes};
use crate::device::Peak;

/// Values that each thread reads: 64 MiB, more than a share of any cache.
const VALUES: usize = 16 << 20;
/// Chains of multiplications, of [`WIDTH`] values each: enough for every unit of a core, few enough for its registers.
const CHAINS: usize = 10;
/// Values of the widest vector.
const WIDTH: usize = 16;
/// Steps of each chain.
const STEPS: usize = 200_000;
/// Runs, of which the fastest counts.
const RUNS: usize = 5;

impl CpuDevice {
    /// Measures; takes about a second.
    pub(super) fn peak(&mut self) -> Peak {
        let (level, threads) = (self.memory.level, self.scratch.len());
        let mut values: Vec<(Vec<f32>, f32)> = (0..threads).map(|_| (vec![1.0; VALUES], 0.0)).collect();
        let read = fastest(|| {
            self.team.run(&mut values, |_, (values, sum)| level.run(Sum { values, sum }));
        });
        let mut chains: Vec<Chains> = vec![[[1.0; WIDTH]; CHAINS]; threads];
        let computed = fastest(|| {
            self.team.run(&mut chains, |_, chains| level.run(MultiplyAdd(chains)));
        });
        black_box((&values, &chains));
        Peak {
            bytes_per_second: (4 * VALUES * threads) as f64 / read,
            flops_per_second: (2 * CHAINS * WIDTH * STEPS * threads) as f64 / computed,
        }
    }
}

/// Multiplications and additions a second of one thread at a level.
#[cfg(test)]
pub(super) fn flops_per_second(level: SimdLevel) -> f64 {
    let mut chains: Chains = [[1.0; WIDTH]; CHAINS];
    let computed = fastest(|| level.run(MultiplyAdd(&mut chains)));
    black_box(&chains);
    (2 * CHAINS * WIDTH * STEPS) as f64 / computed
}

/// Seconds of the fastest of some runs.
pub(super) fn fastest(mut run: impl FnMut()) -> f64 {
    let seconds = |_| {
        let started = Instant::now();
        run();
        started.elapsed().as_secs_f64()
    };
    (0..RUNS).map(seconds).fold(f64::INFINITY, f64::min)
}

struct Sum<'a> {
    values: &'a [f32],
    sum: &'a mut f32,
}

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut sums = [0.0f32; 128];
        for values in self.values.chunks_exact(128) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += value;
            }
        }
        *self.sum = black_box(sums).iter().sum();
    }
}

type Chains = [[f32; WIDTH]; CHAINS];

struct MultiplyAdd<'a>(&'a mut Chains);

impl Kernel for MultiplyAdd<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (factor, term) = (black_box(0.999f32), black_box(0.001f32));
        let mut chains = *self.0;
        for _ in 0..STEPS {
            for chain in &mut chains {
                for value in chain {
                    *value = L::mul_add(*value, factor, term);
                }
            }
        }
        *self.0 = chains;
    }
}
