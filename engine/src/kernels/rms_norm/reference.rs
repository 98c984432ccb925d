//! The definition of `rms_norm`.

/// `out[r] = input[r] / sqrt(mean(input[r]²) + epsilon) · weight`, rows as wide as `weight`.
pub fn rms_norm(input: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let width = weight.len();
    for (input, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mean_square = input.iter().map(|value| value * value).sum::<f32>() / width as f32;
        let scale = 1.0 / (mean_square + epsilon).sqrt();
        for ((out, input), weight) in out.iter_mut().zip(input).zip(weight) {
            *out = input * scale * weight;
        }
    }
}
