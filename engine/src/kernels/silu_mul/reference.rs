//! The definition of `silu_mul`.

/// `out = gate · sigmoid(gate) · up`, value by value.
pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + (-gate).exp()) * up;
    }
}
