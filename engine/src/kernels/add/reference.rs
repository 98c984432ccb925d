//! The definition of `add`.

/// `out += input`, value by value.
pub fn add(input: &[f32], out: &mut [f32]) {
    for (out, input) in out.iter_mut().zip(input) {
        *out += input;
    }
}
