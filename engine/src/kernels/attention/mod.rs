//! The `attention` op: a workgroup for each row and each few heads, online softmax over the paged cache.

use crate::device::wgpu::shader::{Access, Kernel, Mapping, Texel, Variant, Work, stride, unrolled};
use crate::kernels::reduce;

pub mod reference;
#[cfg(test)]
mod tests;

use self::reference::AttentionShape;

/// Longest head that `lanes.wgsl` keeps in registers.
const LONGEST_IN_LANES: usize = 256;

/// Whether the cache is in textures: where lanes can be handed round and heads, of keys and of values, are read in
/// fours.
pub(crate) fn cache_in_texels(mapping: Mapping, head_size: usize, value_head_size: usize) -> bool {
    let fits = |size| chunk(size) == 4 && size <= LONGEST_IN_LANES;
    mapping == Mapping::Software { shuffle: true } && fits(head_size) && fits(value_head_size)
}

/// The dispatch. Binds query, keys, values and the output, which may be the query if heads have one size.
pub(crate) fn variants(shape: AttentionShape, mapping: Mapping) -> Vec<Variant> {
    let group = shape.num_heads / shape.num_kv_heads;
    // Heads that share keys are computed together where a load is dear, apart where threads are plenty.
    let (threads, heads) = match mapping {
        Mapping::Software { .. } => (16, (1..=4).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)),
        Mapping::Hardware { .. } => (64, 1),
    };
    let work = Work::Groups { per_rows: (shape.num_heads / heads) as u64, rows: 1 };
    let AttentionShape { head_size, value_head_size, .. } = shape;
    // In chunks.
    let (key_length, value_length) = (head_size / chunk(head_size), value_head_size / chunk(value_head_size));
    let mut constants = vec![
        ("HEADS", heads),
        ("GROUP", group),
        ("KEY_LENGTH", key_length),
        ("VALUE_LENGTH", value_length),
        ("BLOCK_SIZE", shape.block_size),
    ];
    if cache_in_texels(mapping, head_size, value_head_size) {
        let loops = [
            ("key_four", key_length),
            ("position_of_tile", 8),
            ("query_four", key_length.div_ceil(8)),
            ("value_four", value_length.div_ceil(8)),
            ("this_head", heads),
        ];
        let kernel = Kernel::new(
            "attention",
            &[Access::Write, Access::Texels(Texel::Floats), Access::Texels(Texel::Floats), Access::Write],
            &constants,
            &[&unrolled(include_str!("lanes.wgsl"), &loops)],
        );
        return Variant::only(kernel, work);
    }
    constants.extend([("THREADS", threads), ("VALUES", heads)]);
    let dot = match chunk(head_size) {
        4 => include_str!("dot_4.wgsl"),
        _ => include_str!("dot_1.wgsl"),
    };
    let kernel = Kernel::new(
        "attention",
        &[Access::Write, Access::Read, Access::Read, Access::Write],
        &constants,
        &[
            &chunk_source(head_size, value_head_size),
            dot,
            reduce::source(mapping),
            include_str!("attention.wgsl"),
        ],
    );
    Variant::only(kernel, work)
}

/// Parameters for this shape.
pub(crate) fn params(shape: AttentionShape) -> Vec<u32> {
    let stride = |size: usize| (stride(shape.num_heads * size) / chunk(size)) as u32;
    vec![
        shape.num_heads as u32,
        shape.num_kv_heads as u32,
        stride(shape.head_size),
        stride(shape.value_head_size),
        shape.scale.to_bits(),
        shape.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX)),
        shape.cache_group as u32,
    ]
}

/// WGSL that names what is read at once of keys and of values, each of which come in runs of this length.
pub(crate) fn chunk_source(keys: usize, values: usize) -> String {
    let of = |length| if chunk(length) == 4 { "vec4<f32>" } else { "f32" };
    format!("alias KeyChunk = {};\nalias ValueChunk = {};\n", of(keys), of(values))
}

/// How much of a run of this length is read at once.
pub(crate) fn chunk(length: usize) -> usize {
    if length.is_multiple_of(4) { 4 } else { 1 }
}
