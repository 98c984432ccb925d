//! The `attention` op: a workgroup for each row and each few heads, online softmax over the paged cache.
//!
//! On GPUs a few rows with a long past leave most of the device idle that way, so their pasts are split: a workgroup for
//! each [`PARTITION`] of positions as well, and a second dispatch that joins what they gave. Invariant: both ways give
//! the same bits.

use crate::device::wgpu::shader::{
    Access, FOUR, Kernel, Mapping, Place, Texel, Variant, Work, chunk, chunk_type, input_source,
    output_source, stride, unrolled,
};
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

/// Positions that are attended to together, from a multiple of it on.
pub(crate) const PARTITION: usize = 256;

/// Most rows whose pasts are split: more keep a GPU busy as they are.
pub(crate) const SPLIT_ROWS: usize = 16;

/// Threads of a workgroup on hardware.
const THREADS: usize = 64;

/// The dispatch. Binds query, keys, values and the output, which may be the query if heads have one size. Where the cache
/// is in texels, query and output may be too.
pub(crate) fn variants(shape: AttentionShape, mapping: Mapping, [query, out]: [Place; 2]) -> Vec<Variant> {
    let group = shape.num_heads / shape.num_kv_heads;
    // Heads that share keys are computed together where a load is dear, apart where threads are plenty.
    let (threads, heads) = match mapping {
        Mapping::Software { .. } => (16, (1..=4).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)),
        Mapping::Hardware { .. } => (THREADS, 1),
    };
    let work = Work::Groups { per_rows: (shape.num_heads / heads) as u64, rows: 1 };
    let AttentionShape { head_size, value_head_size, .. } = shape;
    if cache_in_texels(mapping, head_size, value_head_size) {
        let (key_length, value_length) = lengths(shape);
        let loops = [
            ("key_four", key_length),
            ("position_of_tile", 8),
            ("query_four", key_length.div_ceil(8)),
            ("value_four", value_length.div_ceil(8)),
            ("this_head", heads),
        ];
        const CACHE: Access = Access::Texels(Texel::Floats);
        let kernel = Kernel::new(
            "attention",
            &[query.read(), CACHE, CACHE, out.written()],
            &constants(shape, heads),
            &[
                &input_source("query", 3, query, FOUR),
                &output_source("out", 6, out, FOUR),
                &unrolled(include_str!("lanes.wgsl"), &loops),
            ],
        );
        return Variant::only(kernel, work);
    }
    let storage = &[Access::Write, Access::Read, Access::Read, Access::Write];
    let parts = [include_str!("tiles.wgsl"), include_str!("write_out.wgsl"), include_str!("whole.wgsl")];
    Variant::only(in_tiles("attention", shape, mapping, (threads, heads), storage, &parts), work)
}

/// The two dispatches for rows whose pasts are split. The first has a workgroup for each row and head, and as many of
/// them as there are partitions, in the third dimension; it binds query, keys, values, sums and totals. The second binds
/// sums, totals and the output.
pub(crate) fn split_variants(shape: AttentionShape, mapping: Mapping) -> [Vec<Variant>; 2] {
    let kernel = |name, storage, parts: &[&str]| {
        let kernel = in_tiles(name, shape, mapping, (THREADS, 1), storage, parts);
        Variant::only(kernel, Work::Groups { per_rows: shape.num_heads as u64, rows: 1 })
    };
    let attend = &[Access::Write, Access::Read, Access::Read, Access::Write, Access::Write];
    let join = &[Access::Write, Access::Write, Access::Write];
    [
        kernel("attention", attend, &[include_str!("tiles.wgsl"), include_str!("partition.wgsl")]),
        kernel(
            "attention_join",
            join,
            &[include_str!("write_out.wgsl"), include_str!("join_partitions.wgsl")],
        ),
    ]
}

/// Values that sums and totals have for each row, with room for this many partitions.
pub(crate) fn split_widths(num_heads: usize, value_head_size: usize, partitions: usize) -> [usize; 2] {
    [value_head_size, 2].map(|width| num_heads * partitions * width)
}

/// A kernel of the parts that walk positions in tiles, and these.
fn in_tiles(
    name: &'static str,
    shape: AttentionShape,
    mapping: Mapping,
    (threads, heads): (usize, usize),
    storage: &[Access],
    parts: &[&str],
) -> Kernel {
    let mut constants = constants(shape, heads);
    constants.extend([("THREADS", threads), ("VALUES", heads), ("PARTITION", PARTITION)]);
    let dot = match chunk(shape.head_size) {
        4 => include_str!("dot_4.wgsl"),
        _ => include_str!("dot_1.wgsl"),
    };
    let chunks = chunk_source(shape.head_size, shape.value_head_size);
    let reducing = reduce::source(mapping, &parts.concat());
    Kernel::new(name, storage, &constants, &[&chunks, dot, include_str!("attend.wgsl"), &reducing])
}

/// Lengths of a head's keys and values, in chunks.
fn lengths(shape: AttentionShape) -> (usize, usize) {
    let length = |size: usize| size / chunk(size);
    (length(shape.head_size), length(shape.value_head_size))
}

fn constants(shape: AttentionShape, heads: usize) -> Vec<(&'static str, usize)> {
    let (key_length, value_length) = lengths(shape);
    vec![
        ("HEADS", heads),
        ("GROUP", shape.num_heads / shape.num_kv_heads),
        ("KEY_LENGTH", key_length),
        ("VALUE_LENGTH", value_length),
        ("BLOCK_SIZE", shape.block_size),
    ]
}

/// Parameters for this shape, and room for this many partitions where they are spread.
pub(crate) fn params(shape: AttentionShape, partitions: usize) -> Vec<u32> {
    let stride = |size: usize| (stride(shape.num_heads * size) / chunk(size)) as u32;
    vec![
        shape.num_heads as u32,
        shape.num_kv_heads as u32,
        stride(shape.head_size),
        stride(shape.value_head_size),
        shape.scale.to_bits(),
        shape.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX)),
        shape.cache_group as u32,
        partitions as u32,
    ]
}

/// WGSL that names what is read at once of keys and of values, each of which come in runs of this length.
pub(crate) fn chunk_source(keys: usize, values: usize) -> String {
    format!("alias KeyChunk = {};\nalias ValueChunk = {};\n", chunk_type(keys), chunk_type(values))
}
