//! Which activations are textures: on software adapters the inputs of products, and queries, keys and values, all of
//! which are read far more often than they are written.
//!
//! Invariant: an activation is a texture only if all that have to do with it can read or write it as one.

use super::gpu::Options;
use super::groups::{Group, How, uses};
use super::shader::{Mapping, chunk, stride};
use crate::kernels::attention::cache_in_texels;
use crate::kernels::store_kv::turns_fours;
use crate::program::{BufferId, OpKind, Program};

/// For each buffer of the program, whether it is a texture, a row of texels for each of its rows.
pub(super) fn in_texels(program: &Program, groups: &[Group], mapping: Mapping) -> Vec<bool> {
    let mut in_texels = vec![mapping == Mapping::Software { shuffle: true }; program.buffers.len()];
    in_texels[program.logits.0] = false;
    for (index, group) in groups.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &groups[before]);
        for (buffer, can_be) in handled(program, group, before, groups, mapping) {
            in_texels[buffer.0] &= can_be;
        }
    }
    // What is written or turned together is all of one kind.
    loop {
        let before = in_texels.clone();
        for group in groups {
            let together = together(program, group);
            if together.iter().any(|id| !in_texels[id.0]) {
                together.iter().for_each(|id| in_texels[id.0] = false);
            }
        }
        if in_texels == before {
            return in_texels;
        }
    }
}

/// The queries that a group turns.
pub(super) fn turned_query(program: &Program, group: &Group) -> Option<BufferId> {
    match (group.how, &program.ops[group.ops.start].kind) {
        (How::RopeAndStore, OpKind::Rope { buffer, .. }) => Some(*buffer),
        _ => None,
    }
}

/// What a group reads and writes, and whether it can if that is a texture.
fn handled(
    program: &Program,
    group: &Group,
    before: Option<&Group>,
    groups: &[Group],
    mapping: Mapping,
) -> Vec<(BufferId, bool)> {
    let ops = &program.ops[group.ops.clone()];
    let in_fours = |id: BufferId| chunk(program.buffers[id.0].width) == 4;
    let cache_in_texels = cache_in_texels(mapping, program.head_size, program.value_head_size);
    match (group.how, &ops[0].kind) {
        (How::Gated, OpKind::MatMul { input, .. }) => {
            let OpKind::GateMul { out, .. } = ops[2].kind else { unreachable!("the gating") };
            vec![(*input, true), (out, in_fours(out))]
        }
        (How::RopeAndStore, OpKind::Rope { buffer, rotation, style, .. }) => {
            let OpKind::StoreKv { key, value, .. } = ops[2].kind else { unreachable!("the store") };
            let can_be = cache_in_texels && turns_fours(rotation.rotary, *style);
            [*buffer, key, value].map(|id| (id, can_be)).to_vec()
        }
        (How::Alone, OpKind::RmsNorm { input, weight, out, .. }) => {
            let can_be = input != out && chunk(program.weights[weight.0].columns) == 4;
            vec![(*input, false), (*out, can_be)]
        }
        (How::Alone, OpKind::Attention { query, out, .. }) => {
            // Turned queries are elsewhere; they are all turned right before, or none is.
            let turned = |group: &Group| turned_query(program, group) == Some(*query);
            let is_known = before.is_some_and(turned) || !groups.iter().any(turned);
            vec![(*query, cache_in_texels && query != out && is_known), (*out, cache_in_texels && query != out)]
        }
        _ => {
            let mut handled = Vec::new();
            for op in ops {
                match op.kind {
                    OpKind::MatMul { input, out, accumulate, .. } => {
                        handled.extend([(input, true), (out, !accumulate && in_fours(out))]);
                    }
                    ref kind => {
                        let (read, written) = uses(kind);
                        handled.extend(read.into_iter().chain(written).map(|id| (id, false)));
                    }
                }
            }
            handled
        }
    }
}

/// Buffers that a group can only handle if all or none of them are textures.
fn together(program: &Program, group: &Group) -> Vec<BufferId> {
    let ops = &program.ops[group.ops.clone()];
    match group.how {
        How::Alone | How::Gated => Vec::new(),
        How::Joined => ops.iter().filter_map(|op| uses(&op.kind).1).collect(),
        How::RopeAndStore => ops.iter().flat_map(|op| uses(&op.kind).0).collect(),
    }
}

/// Width and height of an activation's texture; `None` if the adapter has none so large.
pub(super) fn extent(width: usize, rows: u64, options: Options) -> Option<[u32; 2]> {
    let allowed = u64::from(options.max_texel_rows);
    let texels = stride(width) as u64 / 4;
    (texels <= allowed && rows <= allowed).then_some([texels as u32, rows as u32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::wgpu::groups::groups;
    use crate::kernels::synthetic::{LlamaShape, SyntheticModel};

    fn names(program: &Program, mapping: Mapping) -> Vec<&'static str> {
        let in_texels = in_texels(program, &groups(program, mapping), mapping);
        let buffers = program.buffers.iter().zip(in_texels);
        buffers.filter(|(_, in_texels)| *in_texels).map(|(buffer, _)| buffer.name).collect()
    }

    #[test]
    fn the_inputs_of_products_are_textures_where_lanes_are_handed_round_and_nothing_else_is() {
        let program = SyntheticModel::new(&LlamaShape::TINY, 1).program;
        // The last norm is in place here. Nobody touches `up`, which ends in the gated product.
        assert_eq!(
            names(&program, Mapping::Software { shuffle: true }),
            ["normed", "attended", "gate", "up"]
        );
        for mapping in [Mapping::Software { shuffle: false }, Mapping::Hardware { subgroups: true }] {
            assert_eq!(names(&program, mapping), [""; 0]);
        }
    }

    #[test]
    fn what_an_op_of_another_kind_reads_or_writes_is_a_buffer() {
        let mut program = SyntheticModel::new(&LlamaShape::TINY, 1).program;
        let attention = program.ops.iter().position(|op| matches!(op.kind, OpKind::Attention { .. }));
        let at = attention.expect("there is one");
        let OpKind::Attention { out, .. } = program.ops[at].kind else { unreachable!() };
        let mut bias = program.ops[at].clone();
        bias.kind = OpKind::AddBias { buffer: out, bias: crate::program::WeightId(0) };
        program.ops.insert(at + 1, bias);
        assert!(!names(&program, Mapping::Software { shuffle: true }).contains(&"attended"));
    }

    #[test]
    fn an_activation_too_large_for_a_texture_has_none() {
        let options = |max_texel_rows| Options {
            mapping: Mapping::Software { shuffle: true },
            max_binding: 1 << 20,
            max_workgroups: 1,
            max_texel_rows,
            timestamps: false,
        };
        assert_eq!(extent(33, 100, options(100)), Some([16, 100]));
        assert_eq!(extent(33, 101, options(100)), None);
        assert_eq!(extent(401, 100, options(100)), None);
    }
}
