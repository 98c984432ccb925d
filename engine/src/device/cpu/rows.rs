//! The ops that treat each row on its own: norms, rotation, gating.
//!
//! Each works on the rows one thread was given. They are short; what counts is that a row's result does not
//! depend on the other rows, and that sums have a fixed order: 16 lanes, then the lanes.

#![allow(clippy::needless_range_loop)] // as in `packed`: adaptors may not be inlined

use super::packed::PackedWeight;
use super::simd::{Kernel, Lanes, exp};
use crate::program::{Activation, RopeStyle};

const LANES: usize = 16;

/// Σ of `map` over the values, in 16 lanes; the rest of a row goes to the first lanes.
#[inline(always)]
pub(super) fn lane_sum<L: Lanes>(values: &[f32], map: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = map(lanes[lane], chunk[lane]);
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        lanes[lane] = map(lanes[lane], *value);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// `out = input / sqrt(mean(input²) + epsilon) · weight` for each run as wide as the weight; no `input` means that `out` holds it.
pub(super) struct RmsNorm<'a> {
    pub(super) input: Option<&'a [f32]>,
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f32,
    pub(super) out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.weight.len();
        if let Some(input) = self.input {
            self.out.copy_from_slice(input);
        }
        for row in self.out.chunks_exact_mut(width) {
            let squares = lane_sum::<L>(row, |sum, value| L::mul_add(value, value, sum));
            let scale = 1.0 / (squares / width as f32 + self.epsilon).sqrt();
            for (value, weight) in row.iter_mut().zip(self.weight) {
                *value = *value * scale * weight;
            }
        }
    }
}

/// `values[r] += bias`.
pub(super) struct AddBias<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) bias: &'a [f32],
}

impl Kernel for AddBias<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for row in self.values.chunks_exact_mut(self.bias.len()) {
            for (value, bias) in row.iter_mut().zip(self.bias) {
                *value += bias;
            }
        }
    }
}

/// `out += input`.
pub(super) struct Add<'a> {
    pub(super) input: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for Add<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        self.out.iter_mut().zip(self.input).for_each(|(out, input)| *out += input);
    }
}

/// `out = activation(gate) · up`; no `gate` means that `out` holds it, likewise `up`.
pub(super) struct GateMul<'a> {
    pub(super) activation: Activation,
    pub(super) gate: Option<&'a [f32]>,
    pub(super) up: Option<&'a [f32]>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for GateMul<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        // Both are the value times the sigmoid of something; for GELU see its definition.
        let silu = |gate: f32| gate / (1.0 + exp::<L>(-gate));
        let gelu = |gate: f32| {
            const FACTOR: f32 = 1.595_769_2;
            gate / (1.0 + exp::<L>(-FACTOR * (gate + 0.044715 * gate * gate * gate)))
        };
        match self.activation {
            Activation::Silu => self.apply(silu),
            Activation::Gelu => self.apply(gelu),
        }
    }
}

impl GateMul<'_> {
    #[inline(always)]
    fn apply(self, activation: impl Fn(f32) -> f32) {
        match (self.gate, self.up) {
            (Some(gate), Some(up)) => {
                for ((out, gate), up) in self.out.iter_mut().zip(gate).zip(up) {
                    *out = activation(*gate) * up;
                }
            }
            (None, Some(up)) => {
                self.out.iter_mut().zip(up).for_each(|(out, up)| *out = activation(*out) * up);
            }
            (Some(gate), None) => {
                self.out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= activation(*gate));
            }
            (None, None) => self.out.iter_mut().for_each(|out| *out *= activation(*out)),
        }
    }
}

/// Rotates heads in place by the angles of their rows.
pub(super) struct Rope<'a> {
    pub(super) values: &'a mut [f32],
    /// `[row][rotary]`: cosines of all pairs, then sines.
    pub(super) angles: &'a [f32],
    pub(super) row_width: usize,
    pub(super) head_size: usize,
    pub(super) rotary: usize,
    pub(super) style: RopeStyle,
}

impl Kernel for Rope<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let rows = self.values.chunks_exact_mut(self.row_width);
        for (row, angles) in rows.zip(self.angles.chunks_exact(self.rotary)) {
            let (cosines, sines) = angles.split_at(self.rotary / 2);
            for head in row.chunks_exact_mut(self.head_size) {
                let head = &mut head[..self.rotary];
                let turns = cosines.iter().zip(sines);
                match self.style {
                    RopeStyle::Pairs => {
                        for (pair, (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                            let [a, b] = *pair;
                            *pair = [a * cos - b * sin, a * sin + b * cos];
                        }
                    }
                    RopeStyle::Halves => {
                        let (first, second) = head.split_at_mut(self.rotary / 2);
                        for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(turns) {
                            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                        }
                    }
                }
            }
        }
    }
}

/// The angles of rows at `positions`: for each row the cosines of all pairs, then the sines, all times `magnitude`.
pub(super) fn rope_angles(positions: &[u32], frequencies: &[f32], magnitude: f32, out: &mut [f32]) {
    for (position, out) in positions.iter().zip(out.chunks_exact_mut(2 * frequencies.len())) {
        let (cosines, sines) = out.split_at_mut(frequencies.len());
        for ((cos, sin), frequency) in cosines.iter_mut().zip(sines).zip(frequencies) {
            let (sine, cosine) = (*position as f32 * frequency).sin_cos();
            (*sin, *cos) = (sine * magnitude, cosine * magnitude);
        }
    }
}

/// `out[t] = table[tokens[t]] · scale`.
pub(super) fn embed(tokens: &[u32], table: &PackedWeight, scale: f32, out: &mut [f32]) {
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(table.columns)) {
        table.row(*token as usize, out);
        out.iter_mut().for_each(|value| *value *= scale);
    }
}
