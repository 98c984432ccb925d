// Both activations are the value times the sigmoid of something: for GELU, of 2 · √(2/π) · (x + 0.044715 x³).
fn slope(x: f32) -> f32 {
    if (GELU == 1u) {
        return 1.5957691216 * (x + 0.044715 * x * x * x);
    }
    return x;
}
