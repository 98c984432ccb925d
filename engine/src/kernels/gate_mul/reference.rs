//! The definition of `gate_mul`.

use crate::program::Activation;

/// `out = activation(gate) · up`, value by value.
pub fn gate_mul(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate * sigmoid(slope(activation, *gate)) * up;
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Both activations are the value times the sigmoid of something.
fn slope(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x,
        Activation::Gelu => 2.0 * (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x),
    }
}
