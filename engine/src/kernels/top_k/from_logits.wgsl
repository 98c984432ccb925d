// Candidates from logits, which are read as bits: nothing is computed with them, so none is rounded or flushed to zero.

@group(0) @binding(3) var<storage, read> input: array<u32>;

// A number in the order of the floats: NaN above all, both zeros the same, none as low as NOTHING's.
fn key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0xffffffffu;
    }
    if (magnitude == 0u || magnitude == bits) {
        return magnitude | 0x80000000u;
    }
    return ~bits;
}

fn load(index: u32, id: u32) -> vec2<u32> {
    return vec2<u32>(key(input[index]), id);
}
