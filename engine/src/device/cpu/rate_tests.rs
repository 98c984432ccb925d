//! Whether the compiler made vector code of the kernels, on every level this CPU has.
//!
//! A kernel whose vectors it did not find computes the same values ten times as slowly, and no other test sees it:
//! which shapes it finds depends on the level, and the fastest machine uses one level only. It depends on the profile,
//! too, so that this sees the profile of the tests; `.ci/run` looks at the release's with `limpid bench kernels`.

use std::hint::black_box;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::matmul::{MatMulOut, MatMulScratch, matmul_panel};
use super::packed::PackedWeight;
use super::peak::{fastest, flops_per_second};
use super::shared::SharedBuffer;
use super::simd::SimdLevel;
use crate::kernels::synthetic::random_weight;
use crate::program::Weight;
use crate::tensor_type::TensorType;

/// Columns of the weight, whose panel stays in the cache.
const COLUMNS: usize = 1024;
/// Products in one measurement.
const PRODUCTS: usize = 10;
/// Vector code reaches 0.4 to 1 with one thread to itself; code that computes value by value reaches 0.06 on AVX2.
const FAIR_SHARE: f64 = 0.15;

/// Multiplications and additions a second of products of `rows` input rows, on one thread.
fn rate(level: SimdLevel, packed: &PackedWeight, rows: usize) -> f64 {
    let input = vec![0.5; rows * COLUMNS];
    let buffer = SharedBuffer::new("test", rows * packed.rows).unwrap();
    let mut scratch = MatMulScratch::new(rows);
    let seconds = fastest(|| {
        for _ in 0..PRODUCTS {
            let out = MatMulOut { buffer: &buffer, accumulate: false };
            // SAFETY: one thread.
            unsafe { matmul_panel(level, packed, 0, black_box(&input), out, &mut scratch) };
        }
    });
    (2 * PRODUCTS * rows * COLUMNS * packed.rows) as f64 / seconds
}

#[test]
fn products_take_a_fair_share_of_what_each_level_computes() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for level in SimdLevel::available() {
        let peak = flops_per_second(level);
        for format in TensorType::ALL {
            let weight = Weight { name: format.name().to_owned(), format, rows: 32, columns: COLUMNS };
            let packed = PackedWeight::new(&weight, &random_weight(&weight, &mut random), 1).unwrap();
            // Few rows spend their time on expanding the weights; many have it expanded once.
            for rows in [16, 32] {
                let share = rate(level, &packed, rows) / peak;
                assert!(
                    share > FAIR_SHARE,
                    "{} {} {rows} rows: {share:.3} of {:.1} GFLOP/s",
                    level.name(),
                    format.name(),
                    peak / 1e9
                );
            }
        }
    }
}
