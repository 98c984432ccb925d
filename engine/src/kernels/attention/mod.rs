//! The `attention` op: a workgroup for each row and each few heads, online softmax over the paged cache.

use crate::device::wgpu::shader::{Access, Kernel, Mapping, Texel, Variant, Work, stride, unrolled};

pub mod reference;
#[cfg(test)]
mod tests;

use self::reference::AttentionShape;

/// Longest head that `lanes.wgsl` keeps in registers.
const LONGEST_IN_LANES: usize = 256;

/// Whether the cache is in textures: where lanes can be handed round and heads are read in fours.
pub(crate) fn cache_in_texels(mapping: Mapping, head_size: usize) -> bool {
    mapping == Mapping::Software { shuffle: true }
        && head_size.is_multiple_of(4)
        && head_size <= LONGEST_IN_LANES
}

/// The dispatch. Binds query, keys, values and the output, which may be the query.
pub(crate) fn variants(shape: AttentionShape, mapping: Mapping) -> Vec<Variant> {
    let group = shape.num_heads / shape.num_kv_heads;
    // Heads that share keys are computed together where a load is dear, apart where threads are plenty.
    let (threads, heads) = match mapping {
        Mapping::Software { .. } => (16, (1..=4).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)),
        Mapping::Hardware => (64, 1),
    };
    let work = Work::Groups { per_rows: (shape.num_heads / heads) as u64, rows: 1 };
    if cache_in_texels(mapping, shape.head_size) {
        let length = shape.head_size / 4;
        let loops = [
            ("key_four", length),
            ("position_of_tile", 8),
            ("owned_four", length.div_ceil(8)),
            ("this_head", heads),
        ];
        let kernel = Kernel::new(
            "attention",
            &[Access::Write, Access::Texels(Texel::Floats), Access::Texels(Texel::Floats), Access::Write],
            &[
                ("HEADS", heads),
                ("GROUP", group),
                ("HEAD_SIZE", shape.head_size),
                ("BLOCK_SIZE", shape.block_size),
            ],
            &[&unrolled(include_str!("lanes.wgsl"), &loops)],
        );
        return Variant::only(kernel, work);
    }
    let constants = [
        ("THREADS", threads),
        ("HEADS", heads),
        ("GROUP", group),
        ("HEAD_SIZE", shape.head_size),
        ("BLOCK_SIZE", shape.block_size),
    ];
    let kernel = Kernel::new(
        "attention",
        &[Access::Write, Access::Read, Access::Read, Access::Write],
        &constants,
        &[chunk_source(shape.head_size), include_str!("attention.wgsl")],
    );
    Variant::only(kernel, work)
}

/// Parameters for this shape.
pub(crate) fn params(shape: AttentionShape) -> Vec<u32> {
    let chunk = chunk(shape.head_size);
    vec![
        shape.num_heads as u32,
        (stride(shape.num_heads * shape.head_size) / chunk) as u32,
        (shape.num_kv_heads * shape.head_size / chunk) as u32,
        shape.scale.to_bits(),
        shape.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX)),
        shape.cache_group as u32,
    ]
}

/// WGSL that says what is read at once: `Chunk`.
pub(crate) fn chunk_source(head_size: usize) -> &'static str {
    match chunk(head_size) {
        4 => include_str!("chunk_4.wgsl"),
        _ => include_str!("chunk_1.wgsl"),
    }
}

/// Values read at once.
pub(crate) fn chunk(head_size: usize) -> usize {
    if head_size.is_multiple_of(4) { 4 } else { 1 }
}
