// Quanta of fewer than 8 bits, four at a time, and words of scales that lie at halves of words.

// Values 4j and following of 32 nibbles: the low nibbles of the 16 bytes are values 0 to 15, the high ones 16 to 31.
fn nibbles_of(words: vec4<u32>, j: u32) -> vec4<u32> {
    let word = words[j & 3u] >> ((j >> 2u) * 4u);
    return vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(15u);
}

// Values 4j and following of 32 pairs of bits.
fn crumbs_of(words: vec2<u32>, j: u32) -> vec4<u32> {
    let word = select(words.x, words.y, j >= 4u) >> ((j & 3u) * 8u);
    return vec4<u32>(word, word >> 2u, word >> 4u, word >> 6u) & vec4<u32>(3u);
}

// Values 4j and following of 32 bits.
fn bits_of(word: u32, j: u32) -> vec4<u32> {
    let four = word >> (4u * j);
    return vec4<u32>(four, four >> 1u, four >> 2u, four >> 3u) & vec4<u32>(1u);
}

// The word that begins at this half.
fn scale_word(half: u32) -> u32 {
    let low = scale_at(half / 2u);
    if ((half & 1u) == 0u) {
        return low;
    }
    return (low >> 16u) | (scale_at(half / 2u + 1u) << 16u);
}

// Group g's two numbers of 6 bits, the groups without gaps from this half on.
fn six_bit_pair(first_half: u32, g: u32) -> vec2<u32> {
    let word = scale_word(first_half + 12u * g / 16u) >> (12u * g % 16u);
    return vec2<u32>(word, word >> 6u) & vec2<u32>(63u);
}

// What a half at the low end of a word stands for.
fn half_of(word: u32) -> f32 {
    return unpack2x16float(word).x;
}
