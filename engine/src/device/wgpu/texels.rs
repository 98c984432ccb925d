//! Which activations are textures: on software adapters the inputs of products, which are read far more often than
//! they are written.
//!
//! Invariant: an activation is a texture only if all that have to do with it can read or write it as one.

use super::gpu::Options;
use super::groups::{Group, How, uses};
use super::shader::{Mapping, chunk, stride};
use crate::kernels::attention::cache_in_texels;
use crate::program::{BufferId, OpKind, Program};

/// For each buffer of the program, whether it is a texture, a row of texels for each of its rows.
pub(super) fn in_texels(program: &Program, groups: &[Group], mapping: Mapping) -> Vec<bool> {
    let mut in_texels = vec![mapping == Mapping::Software { shuffle: true }; program.buffers.len()];
    in_texels[program.logits.0] = false;
    for group in groups {
        for (buffer, can_be) in handled(program, group, mapping) {
            in_texels[buffer.0] &= can_be;
        }
    }
    in_texels
}

/// What a group reads and writes, and whether it can if that is a texture.
fn handled(program: &Program, group: &Group, mapping: Mapping) -> Vec<(BufferId, bool)> {
    let ops = &program.ops[group.ops.clone()];
    let in_fours = |id: BufferId| chunk(program.buffers[id.0].width) == 4;
    match (group.how, &ops[0].kind) {
        (How::Gated, OpKind::MatMul { input, .. }) => {
            let OpKind::GateMul { out, .. } = ops[2].kind else { unreachable!("the gating") };
            vec![(*input, true), (out, in_fours(out))]
        }
        (How::Alone, OpKind::RmsNorm { input, weight, out, .. }) => {
            let can_be = input != out && chunk(program.weights[weight.0].columns) == 4;
            vec![(*input, false), (*out, can_be)]
        }
        (How::Alone, OpKind::Attention { query, out, .. }) => {
            let can_be = query != out && cache_in_texels(mapping, program.head_size, program.value_head_size);
            vec![(*query, false), (*out, can_be)]
        }
        _ => {
            let mut handled = Vec::new();
            for op in ops {
                match op.kind {
                    OpKind::MatMul { input, out, .. } => handled.extend([(input, true), (out, false)]),
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
