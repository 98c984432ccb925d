//! Which activations are textures: on software adapters, where loading from one is vector code, as many as can be.
//!
//! Nobody can write to a texture that is read, so what an op updates has two of them, in turn.
//!
//! Invariant: an activation is a texture only if all that have to do with it can read or write it as one.

use std::collections::HashMap;

use super::dispatch::row_capacity;
use super::gpu::{Array, Gpu, Options};
use super::groups::{Group, How, uses};
use super::shader::{Mapping, Texel, chunk, stride};
use crate::device::{DeviceError, DeviceLimits};
use crate::kernels::attention::cache_in_texels;
use crate::kernels::store_kv::turns_fours;
use crate::program::{Buffer, BufferId, OpKind, Program};

/// The logits and the buffers of a program that its dispatches read or write; others are not on the device.
pub(super) struct Activations(HashMap<BufferId, Arrays>);

impl Activations {
    /// Where a buffer's values are after the ops that there are so far.
    ///
    /// # Panics
    /// No dispatch has to do with it.
    pub(super) fn now(&self, id: BufferId) -> &Array {
        &self.0[&id].now
    }

    /// What the next op that updates a buffer reads and writes.
    ///
    /// # Panics
    /// No dispatch has to do with it.
    pub(super) fn update(&mut self, id: BufferId) -> [Array; 2] {
        self.0.get_mut(&id).expect("what is updated is there").update()
    }

    /// All arrays of a buffer.
    #[cfg(test)]
    pub(super) fn arrays(&self, id: BufferId) -> impl Iterator<Item = &Array> {
        let Arrays { now, next } = &self.0[&id];
        std::iter::once(now).chain(next)
    }
}

/// Where the values of a buffer of the program are.
struct Arrays {
    /// Where it is after the ops that there are so far.
    now: Array,
    /// Where the next op that updates it puts it, if that is another texture.
    next: Option<Array>,
}

impl Arrays {
    fn update(&mut self) -> [Array; 2] {
        let read = self.now.clone();
        if let Some(next) = &mut self.next {
            std::mem::swap(&mut self.now, next);
        }
        [read, self.now.clone()]
    }
}

/// One for each buffer of the program that a group reads or writes, and for the logits.
pub(super) fn allocate(
    gpu: &Gpu,
    program: &Program,
    groups: &[Group],
    limits: &DeviceLimits,
    options: Options,
) -> Result<Activations, DeviceError> {
    let extent = |buffer: &Buffer| extent(buffer.width, row_capacity(buffer.rows, limits), options);
    let in_texels = in_texels(program, groups, options.mapping, |buffer| extent(buffer).is_some());
    let updated: Vec<BufferId> = groups.iter().filter_map(|group| updated(program, group)).collect();
    let handled = groups.iter().flat_map(|group| handled(program, group, options.mapping));
    let mut all = HashMap::new();
    for id in handled.map(|(id, _)| id).chain([program.logits]) {
        if all.contains_key(&id) {
            continue;
        }
        let buffer = &program.buffers[id.0];
        let name = format!("buffer {}", buffer.name);
        let arrays = match extent(buffer).filter(|_| in_texels[id.0]) {
            Some(extent) => {
                let texture = || gpu.texture(&name, extent, Texel::Floats).map(Array::Texels);
                let is_updated = updated.contains(&id);
                Arrays { now: texture()?, next: is_updated.then(texture).transpose()? }
            }
            None => {
                let bytes = 4 * row_capacity(buffer.rows, limits) * stride(buffer.width) as u64;
                Arrays { now: Array::Buffer(gpu.storage(&name, bytes, options)?), next: None }
            }
        };
        all.insert(id, arrays);
    }
    Ok(Activations(all))
}

/// For each buffer of the program, whether it is a texture, a row of texels for each of its rows. Not all `fit`.
fn in_texels(
    program: &Program,
    groups: &[Group],
    mapping: Mapping,
    fits: impl Fn(&Buffer) -> bool,
) -> Vec<bool> {
    let can_be = |buffer| mapping == Mapping::Software { shuffle: true } && fits(buffer);
    let mut in_texels: Vec<bool> = program.buffers.iter().map(can_be).collect();
    in_texels[program.logits.0] = false;
    for group in groups {
        for (buffer, can_be) in handled(program, group, mapping) {
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

/// What a group updates in place, if it is a buffer.
fn updated(program: &Program, group: &Group) -> Option<BufferId> {
    match (group.how, &group.rest(program)[0].kind) {
        (How::RopeAndStore, OpKind::Rope { buffer, .. }) => Some(*buffer),
        (How::Alone, OpKind::MatMul { out, accumulate: true, .. } | OpKind::Add { out, .. }) => Some(*out),
        (How::Alone, OpKind::RmsNorm { input, out, .. }) if input == out => Some(*out),
        _ => None,
    }
}

/// What a group reads and writes, and whether it can if that is a texture.
fn handled(program: &Program, group: &Group, mapping: Mapping) -> Vec<(BufferId, bool)> {
    let ops = group.rest(program);
    // Who norms its input reads what is to be normed.
    let read = |input| group.norm.map_or(input, |norm| norm.input);
    let in_fours = |id: BufferId| chunk(program.buffers[id.0].width) == 4;
    let cache_in_texels = cache_in_texels(mapping, program.head_size, program.value_head_size);
    if let (How::RopeAndStore, OpKind::Rope { rotation, style, .. }) = (group.how, &ops[0].kind) {
        let can_be = cache_in_texels && turns_fours(rotation.rotary, *style);
        return together(program, group).into_iter().map(|id| (id, can_be)).collect();
    }
    if let (How::Gated, OpKind::MatMul { input, .. }, OpKind::GateMul { out, .. }) =
        (group.how, &ops[0].kind, &ops[ops.len() - 1].kind)
    {
        return vec![(read(*input), true), (*out, in_fours(*out))];
    }
    let of = |kind: &OpKind| match *kind {
        OpKind::Embed { out, .. } => vec![(out, true)],
        OpKind::GatherRows { input, out } => vec![(input, true), (out, true)],
        OpKind::Add { input, out } => vec![(input, false), (out, true)],
        OpKind::MatMul { input, out, .. } => vec![(read(input), true), (out, in_fours(out))],
        OpKind::RmsNorm { input, weight, out, .. } => {
            let can_be = chunk(program.weights[weight.0].columns) == 4;
            vec![(input, can_be), (out, can_be)]
        }
        OpKind::Attention { query, out, .. } => {
            let can_be = cache_in_texels && query != out;
            vec![(query, can_be), (out, can_be)]
        }
        _ => {
            let (read, written) = uses(kind);
            read.into_iter().chain(written).map(|id| (id, false)).collect()
        }
    };
    ops.iter().flat_map(|op| of(&op.kind)).collect()
}

/// Buffers that a group can only handle if all or none of them are textures.
fn together(program: &Program, group: &Group) -> Vec<BufferId> {
    let ops = group.rest(program);
    match group.how {
        How::Alone | How::Gated => Vec::new(),
        How::Joined => ops.iter().filter_map(|op| uses(&op.kind).1).collect(),
        How::RopeAndStore => ops.iter().flat_map(|op| uses(&op.kind).0).collect(),
    }
}

/// Width and height of an activation's texture; `None` if the adapter has none so large.
fn extent(width: usize, rows: u64, options: Options) -> Option<[u32; 2]> {
    let allowed = u64::from(options.max_texel_rows);
    let texels = stride(width) as u64 / 4;
    (texels <= allowed && rows <= allowed).then_some([texels as u32, rows as u32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::wgpu::groups::groups;
    use crate::kernels::synthetic::{LlamaShape, SyntheticModel};
    use crate::program::WeightId;

    const SHUFFLE: Mapping = Mapping::Software { shuffle: true };

    fn program() -> Program {
        SyntheticModel::new(&LlamaShape::TINY, 1).program
    }

    /// Names of the buffers that are none.
    fn buffers(program: &Program, mapping: Mapping, fits: impl Fn(&Buffer) -> bool) -> Vec<&'static str> {
        let in_texels = in_texels(program, &groups(program, mapping), mapping, fits);
        let buffers = program.buffers.iter().zip(in_texels);
        buffers.filter(|(_, in_texels)| !in_texels).map(|(buffer, _)| buffer.name).collect()
    }

    #[test]
    fn all_but_the_logits_are_textures_where_lanes_are_handed_round_and_nothing_is_elsewhere() {
        let program = program();
        assert_eq!(buffers(&program, SHUFFLE, |_| true), ["logits"]);
        for mapping in [Mapping::Software { shuffle: false }, Mapping::Hardware { subgroups: true }] {
            assert_eq!(buffers(&program, mapping, |_| true).len(), program.buffers.len());
        }
    }

    #[test]
    fn what_one_op_cannot_take_from_a_texture_is_a_buffer_and_all_that_is_written_with_it() {
        let mut program = program();
        let attention = program.ops.iter().position(|op| matches!(op.kind, OpKind::Attention { .. }));
        let at = attention.expect("there is one");
        let OpKind::Attention { query, .. } = program.ops[at].kind else { unreachable!() };
        let mut bias = program.ops[at].clone();
        bias.kind = OpKind::AddBias { buffer: query, bias: WeightId(0) };
        program.ops.insert(at, bias);
        let expected = ["query", "key", "value", "logits"];
        assert_eq!(buffers(&program, SHUFFLE, |_| true), expected);
        assert_eq!(buffers(&super::tests::program(), SHUFFLE, |buffer| buffer.name != "key"), expected);
    }

    #[test]
    fn the_residual_stream_and_the_turned_queries_are_updated() {
        let names = |program: &Program| -> Vec<&'static str> {
            let groups = groups(program, SHUFFLE);
            let updated = groups.iter().filter_map(|group| updated(program, group));
            updated.map(|id| program.buffers[id.0].name).collect()
        };
        let mut program = program();
        assert_eq!(names(&program)[..3], ["query", "hidden", "hidden"]);
        assert_eq!(names(&program).last(), Some(&"hidden"));
        // A norm in place.
        let at = program.ops.len() - 2;
        let OpKind::RmsNorm { input: last, out, .. } = &mut program.ops[at].kind else { panic!("the norm") };
        (*out, program.logits) = (*last, *last);
        program.ops.truncate(at + 1);
        assert_eq!(names(&program).last(), Some(&"last"));
    }

    #[test]
    fn what_products_keep_to_themselves_is_handled_by_none() {
        let program = program();
        let groups = groups(&program, SHUFFLE);
        let handled: Vec<_> = groups.iter().flat_map(|group| handled(&program, group, SHUFFLE)).collect();
        let is_left = |index: &usize| handled.iter().all(|(id, _)| id.0 != *index);
        let left = (0..program.buffers.len()).filter(is_left).map(|index| program.buffers[index].name);
        assert_eq!(left.collect::<Vec<_>>(), ["normed", "up", "last_normed"]);
    }

    #[test]
    fn an_activation_too_large_for_a_texture_has_none() {
        let options = |max_texel_rows| Options {
            mapping: SHUFFLE,
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
