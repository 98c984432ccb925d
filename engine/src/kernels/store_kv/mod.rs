//! The `store_kv` op: a thread for each chunk of a row; alone, or in one with the `rope`s of queries and keys.

use crate::device::wgpu::shader::{
    Access, ELEMENTS, FOUR, Kernel, Place, Texel, Variant, Work, chunk, input_source, output_source, stride,
};
use crate::kernels::attention::chunk_source;
use crate::program::RopeStyle;

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch for rows of keys and of values of these widths. Binds the rows' keys and values and the layer's two
/// caches.
pub(crate) fn variants([key, value]: [usize; 2], in_texels: bool) -> Vec<Variant> {
    const BUFFERS: &[Access] = &[Access::Read, Access::Read, Access::Write, Access::Write];
    const TEXELS: &[Access] = &[Access::Read, Access::Read, Access::WriteTexels, Access::WriteTexels];
    let kernel = Kernel::new(
        "store_kv",
        if in_texels { TEXELS } else { BUFFERS },
        &[("WORKGROUP", ELEMENTS), ("CACHE_KEYS", 5), ("CACHE_VALUES", 6)],
        &[&chunk_source(key, value), cache_source(in_texels), include_str!("store_kv.wgsl")],
    );
    let per_row = (key / chunk(key)).max(value / chunk(value)) as u64;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of these widths and a layer of this cache group.
pub(crate) fn params(widths: [usize; 2], cache_group: usize) -> Vec<u32> {
    let mut params = in_chunks(widths);
    params.push(cache_group as u32);
    params
}

/// The dispatch that turns queries and keys first, for heads of keys that are read in fours. Binds queries, keys,
/// values and the layer's two caches.
pub(crate) fn rope_variants(query_pairs: usize, [key, value]: [usize; 2], in_texels: bool) -> Vec<Variant> {
    const BUFFERS: &[Access] = &[Access::Write, Access::Read, Access::Read, Access::Write, Access::Write];
    const TEXELS: &[Access] =
        &[Access::Write, Access::Read, Access::Read, Access::WriteTexels, Access::WriteTexels];
    let kernel = Kernel::new(
        "rope_store_kv",
        if in_texels { TEXELS } else { BUFFERS },
        &[("WORKGROUP", ELEMENTS), ("CACHE_KEYS", 6), ("CACHE_VALUES", 7)],
        &[
            &chunk_source(key, value),
            cache_source(in_texels),
            include_str!("rope_params.wgsl"),
            include_str!("rope_store_kv.wgsl"),
        ],
    );
    let per_row = (query_pairs + key / 4 + value / chunk(value)) as u64;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Whether `rope_texel_variants` can turn so many of a head's values in this style, if the cache is in texels: pairs have
/// to be in one four, or in fours that are all of them partners.
pub(crate) fn turns_fours(rotary: usize, style: RopeStyle) -> bool {
    rotary.is_multiple_of(match style {
        RopeStyle::Pairs => 4,
        RopeStyle::Halves => 8,
    })
}

/// The same with textures alone. Binds queries, keys, values, the turned queries and the layer's two caches.
pub(crate) fn rope_texel_variants(head_size: usize, widths: [usize; 2]) -> Vec<Variant> {
    const FLOATS: Access = Access::Texels(Texel::Floats);
    const STORAGE: &[Access] =
        &[FLOATS, FLOATS, FLOATS, Access::WriteTexels, Access::WriteTexels, Access::WriteTexels];
    // A few rows have few threads.
    const WORKGROUP: usize = 8;
    let input = |name, binding| input_source(name, binding, Place::Texels, FOUR);
    let kernel = Kernel::new(
        "rope_store_texels",
        STORAGE,
        &[("WORKGROUP", WORKGROUP), ("CACHE_KEYS", 7), ("CACHE_VALUES", 8)],
        &[
            &chunk_source(widths[0], widths[1]),
            cache_source(true),
            &input("query", 3),
            &input("key", 4),
            &input("value", 5),
            &output_source("turned", 6, Place::Texels, FOUR),
            include_str!("rope_params.wgsl"),
            include_str!("rope_store_texels.wgsl"),
        ],
    );
    Variant::only(kernel, Work::Elements { per_row: head_size as u64 / 4, workgroup: WORKGROUP as u64 })
}

/// Parameters for keys and values of these widths in a layer of this cache group, and queries whose rope is told as
/// `rope::params` tells it.
pub(crate) fn rope_params(widths: [usize; 2], cache_group: usize, rope: [u32; 7]) -> Vec<u32> {
    let [num_heads, head_size, pairs, query_stride, words_before, partner, next] = rope;
    let mut params = vec![num_heads * pairs, head_size, pairs, query_stride];
    params.extend(in_chunks(widths));
    params.extend([words_before, partner, next, cache_group as u32]);
    params
}

/// Width of a row and distance to the next, of keys and of values.
fn in_chunks(widths: [usize; 2]) -> Vec<u32> {
    let in_chunks = |width| [width / chunk(width), stride(width) / chunk(width)];
    widths.into_iter().flat_map(in_chunks).map(|count| count as u32).collect()
}

fn cache_source(in_texels: bool) -> &'static str {
    if in_texels { include_str!("cache_texels.wgsl") } else { include_str!("cache_buffer.wgsl") }
}
