//! The definition of `add_bias`.

/// `values[r] += bias`, rows as wide as `bias`.
pub fn add_bias(values: &mut [f32], bias: &[f32]) {
    for row in values.chunks_exact_mut(bias.len()) {
        for (value, bias) in row.iter_mut().zip(bias) {
            *value += bias;
        }
    }
}
