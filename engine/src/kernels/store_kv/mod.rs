//! The `store_kv` op: a thread for each chunk of a row; alone, or in one with the `rope`s of queries and keys.

use crate::device::wgpu::shader::{Access, ELEMENTS, Kernel, Variant, Work, stride};
use crate::kernels::attention::{chunk, chunk_source};

pub mod reference;
#[cfg(test)]
mod tests;

/// The dispatch for rows of this width. Binds the rows' keys and values and the layer's two caches.
pub(crate) fn variants(width: usize, head_size: usize, in_texels: bool) -> Vec<Variant> {
    const BUFFERS: &[Access] = &[Access::Read, Access::Read, Access::Write, Access::Write];
    const TEXELS: &[Access] = &[Access::Read, Access::Read, Access::WriteTexels, Access::WriteTexels];
    let kernel = Kernel::new(
        "store_kv",
        if in_texels { TEXELS } else { BUFFERS },
        &[("WORKGROUP", ELEMENTS), ("CACHE_KEYS", 5), ("CACHE_VALUES", 6)],
        &[chunk_source(head_size), cache_source(in_texels), include_str!("store_kv.wgsl")],
    );
    let per_row = (width / chunk(head_size)) as u64;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for rows of this width and a layer of this cache group.
pub(crate) fn params(width: usize, head_size: usize, cache_group: usize) -> Vec<u32> {
    let chunk = chunk(head_size);
    vec![(width / chunk) as u32, (stride(width) / chunk) as u32, cache_group as u32]
}

/// The dispatch that turns queries and keys first, for heads that are read in fours. Binds queries, keys, values and
/// the layer's two caches.
pub(crate) fn rope_variants(query_pairs: usize, width: usize, in_texels: bool) -> Vec<Variant> {
    const BUFFERS: &[Access] = &[Access::Write, Access::Read, Access::Read, Access::Write, Access::Write];
    const TEXELS: &[Access] =
        &[Access::Write, Access::Read, Access::Read, Access::WriteTexels, Access::WriteTexels];
    let kernel = Kernel::new(
        "rope_store_kv",
        if in_texels { TEXELS } else { BUFFERS },
        &[("WORKGROUP", ELEMENTS), ("CACHE_KEYS", 6), ("CACHE_VALUES", 7)],
        &[chunk_source(4), cache_source(in_texels), include_str!("rope_store_kv.wgsl")],
    );
    let per_row = (query_pairs + 2 * width / 4) as u64;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for keys of this width in a layer of this cache group, and queries whose rope is told as `rope::params`
/// tells it.
pub(crate) fn rope_params(width: usize, cache_group: usize, rope: [u32; 7]) -> Vec<u32> {
    let [num_heads, head_size, pairs, query_stride, words_before, partner, next] = rope;
    let (kv_width, kv_stride) = ((width / 4) as u32, (stride(width) / 4) as u32);
    let group = cache_group as u32;
    vec![
        num_heads * pairs,
        head_size,
        pairs,
        query_stride,
        kv_width,
        kv_stride,
        words_before,
        partner,
        next,
        group,
    ]
}

fn cache_source(in_texels: bool) -> &'static str {
    if in_texels { include_str!("cache_texels.wgsl") } else { include_str!("cache_buffer.wgsl") }
}
