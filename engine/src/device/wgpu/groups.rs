//! Which ops of a program one dispatch computes together.
//!
//! A dispatch costs the same however little it does, so products of the same input become one, and the rope of queries
//! and keys goes with the way into the cache. On software rasterisers, where it costs most, products norm their input
//! themselves, and gate and up end in their product.
//!
//! Invariant: a group computes what its ops would one after the other, but for buffers that nobody reads any more.

use std::ops::Range;

use super::shader::Mapping;
use crate::kernels::matmul::MAX_OUTPUTS;
use crate::program::{BufferId, Op, OpKind, Program, WeightId};

/// Neighbouring ops and how they are computed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    /// Places in the program.
    pub(super) ops: Range<usize>,
    pub(super) how: How,
    /// Products do this norm of their input themselves. It is the first of their ops, or of those of a group before.
    pub(super) norm: Option<Norm>,
}

/// A norm that is done by the products of what it norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Norm {
    /// Its place in the program.
    pub(super) op: usize,
    pub(super) input: BufferId,
    pub(super) weight: WeightId,
    pub(super) epsilon: f32,
}

impl Group {
    /// What is computed, but for a norm.
    pub(super) fn rest<'p>(&self, program: &'p Program) -> &'p [Op] {
        let own_norm = self.norm.is_some_and(|norm| norm.op == self.ops.start);
        &program.ops[self.ops.start + usize::from(own_norm)..self.ops.end]
    }
}

/// What becomes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// One op, as it is.
    Alone,
    /// Products of the same input, their weights one after the other.
    Joined,
    /// Gate and up products and the gating.
    Gated,
    /// Rope of queries, rope of keys, and the keys' and values' way into the cache.
    RopeAndStore,
}

/// The groups of a program, in order.
pub(super) fn groups(program: &Program, mapping: Mapping) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut first = 0;
    while first < program.ops.len() {
        let own_norm = norm_in_products(program, first, mapping);
        let begin = first + usize::from(own_norm.is_some());
        let (count, how) = if mapping.is_software() && is_gated(program, begin) {
            (3, How::Gated)
        } else if is_rope_and_store(program, begin) {
            (3, How::RopeAndStore)
        } else {
            match joined(program, begin) {
                0 | 1 => (1, How::Alone),
                count => (count, How::Joined),
            }
        };
        let norm = own_norm.or_else(|| norm_before(program, begin, mapping));
        groups.push(Group { ops: first..begin + count, how, norm });
        first = begin + count;
    }
    groups
}

/// The norm at `place`, if all that is read of what it writes are products, which can do it themselves.
fn norm_in_products(program: &Program, place: usize, mapping: Mapping) -> Option<Norm> {
    let OpKind::RmsNorm { input, weight, out, epsilon } = program.ops[place].kind else { return None };
    let width = program.buffers[input.0].width;
    // Whole rows, in whole blocks.
    if !mapping.is_software()
        || input == out
        || program.weights[weight.0].columns != width
        || !width.is_multiple_of(32)
    {
        return None;
    }
    let is_product = |op: &Op| {
        let OpKind::MatMul { input: read, out: written, accumulate: false, .. } = op.kind else {
            return false;
        };
        read == out && written != input
    };
    if out == program.logits || !program.ops.get(place + 1).is_some_and(is_product) {
        return None;
    }
    let mut input_is_there = true;
    for op in &program.ops[place + 1..] {
        if uses(&op.kind).0.contains(&out) && !(is_product(op) && input_is_there) {
            return None;
        }
        match changed(&op.kind) {
            Some(id) if id == out => break,
            Some(id) if id == input => input_is_there = false,
            _ => (),
        }
    }
    Some(Norm { op: place, input, weight, epsilon })
}

/// The norm that the product at `place` does itself, from before another product that did.
fn norm_before(program: &Program, place: usize, mapping: Mapping) -> Option<Norm> {
    let OpKind::MatMul { input, .. } = program.ops[place].kind else { return None };
    let written = program.ops[..place].iter().rposition(|op| changed(&op.kind) == Some(input))?;
    norm_in_products(program, written, mapping)
}

/// Products from `first` on that share their input and format and write outputs of their own.
fn joined(program: &Program, first: usize) -> usize {
    let mut outs: Vec<BufferId> = Vec::new();
    let mut shared = None;
    for op in program.ops[first..].iter().take(MAX_OUTPUTS) {
        let OpKind::MatMul { input, weight, out, accumulate: false } = op.kind else { break };
        let of = (input, program.weights[weight.0].format, program.weights[weight.0].columns);
        if *shared.get_or_insert(of) != of || outs.contains(&out) || users_of(program, weight) > 1 {
            break;
        }
        outs.push(out);
    }
    outs.len()
}

fn is_gated(program: &Program, first: usize) -> bool {
    let kinds = kinds(program, first);
    let [
        OpKind::MatMul { out: one, .. },
        OpKind::MatMul { out: other, .. },
        OpKind::GateMul { gate, up, out, .. },
    ] = kinds[..]
    else {
        return false;
    };
    // Up may come before gate in a program, but does in none.
    (gate, up) == (one, other)
        && joined(program, first) >= 2
        && (out == gate || is_dead(program, first + 3, gate))
        && is_dead(program, first + 3, up)
}

fn is_rope_and_store(program: &Program, first: usize) -> bool {
    let kinds = kinds(program, first);
    let [
        OpKind::Rope { buffer: query, rotation, style, head_size, .. },
        OpKind::Rope { buffer: turned, rotation: r, style: s, head_size: h, .. },
        OpKind::StoreKv { key, .. },
    ] = kinds[..]
    else {
        return false;
    };
    turned == key
        && query != key
        && (rotation, style, head_size) == (r, s, h)
        && rotation.rotary > 0
        && head_size.is_multiple_of(4)
        && head_size == program.head_size
        && is_dead(program, first + 3, key)
}

fn kinds(program: &Program, first: usize) -> Vec<OpKind> {
    program.ops[first..].iter().take(3).map(|op| op.kind.clone()).collect()
}

fn users_of(program: &Program, weight: WeightId) -> usize {
    let uses = |kind: &OpKind| match *kind {
        OpKind::Embed { table, .. } => table == weight,
        OpKind::MatMul { weight: id, .. } | OpKind::RmsNorm { weight: id, .. } => id == weight,
        _ => false,
    };
    program.ops.iter().filter(|op| uses(&op.kind)).count()
}

/// What an op reads, and what it writes without reading it.
pub(super) fn uses(kind: &OpKind) -> (Vec<BufferId>, Option<BufferId>) {
    match *kind {
        OpKind::Embed { out, .. } => (vec![], Some(out)),
        OpKind::RmsNorm { input, out, .. } | OpKind::GatherRows { input, out } => (vec![input], Some(out)),
        OpKind::MatMul { input, out, accumulate: false, .. } => (vec![input], Some(out)),
        OpKind::MatMul { input, out, .. } => (vec![input, out], None),
        OpKind::AddBias { buffer, .. } | OpKind::Rope { buffer, .. } => (vec![buffer], None),
        OpKind::StoreKv { key, value, .. } => (vec![key, value], None),
        OpKind::Attention { query, out, .. } => (vec![query], Some(out)),
        OpKind::GateMul { gate, up, out, .. } => (vec![gate, up], Some(out)),
        OpKind::Add { input, out } => (vec![input, out], None),
    }
}

/// What is another after an op.
fn changed(kind: &OpKind) -> Option<BufferId> {
    match *kind {
        OpKind::Embed { out, .. }
        | OpKind::RmsNorm { out, .. }
        | OpKind::MatMul { out, .. }
        | OpKind::Attention { out, .. }
        | OpKind::GateMul { out, .. }
        | OpKind::Add { out, .. }
        | OpKind::GatherRows { out, .. } => Some(out),
        OpKind::AddBias { buffer, .. } | OpKind::Rope { buffer, .. } => Some(buffer),
        OpKind::StoreKv { .. } => None,
    }
}

/// Whether nobody reads from the op `from` on what is in the buffer now.
fn is_dead(program: &Program, from: usize, buffer: BufferId) -> bool {
    for op in &program.ops[from..] {
        let (read, written) = uses(&op.kind);
        if read.contains(&buffer) {
            return false;
        }
        if written == Some(buffer) {
            return true;
        }
    }
    buffer != program.logits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::synthetic::{LlamaShape, SyntheticModel};

    const SOFTWARE: Mapping = Mapping::Software { shuffle: true };

    fn program() -> Program {
        SyntheticModel::new(&LlamaShape { num_layers: 1, ..LlamaShape::TINY }, 1).program
    }

    fn shapes(program: &Program, mapping: Mapping) -> Vec<(usize, How)> {
        groups(program, mapping).into_iter().map(|group| (group.ops.len(), group.how)).collect()
    }

    #[test]
    fn a_layer_is_six_dispatches_on_software_and_nine_on_hardware() {
        let (alone, attention) =
            ((1, How::Alone), [(3, How::RopeAndStore), (1, How::Alone), (1, How::Alone)]);
        let software = shapes(&program(), SOFTWARE);
        assert_eq!(software[1], (4, How::Joined));
        assert_eq!(software[2..5], attention);
        assert_eq!(software[5..7], [(4, How::Gated), alone]);
        assert_eq!(software[8..], [(2, How::Alone)], "the output norm and the logits");
        let hardware = shapes(&program(), Mapping::Hardware { subgroups: true });
        assert_eq!(hardware[1..3], [alone, (3, How::Joined)]);
        assert_eq!(hardware[3..6], attention);
        assert_eq!(hardware[6..10], [alone, (2, How::Joined), alone, alone]);
        let all: usize = software.iter().map(|(count, _)| count).sum();
        assert_eq!(all, program().ops.len());
    }

    #[test]
    fn what_is_read_later_is_computed_on_its_own() {
        let mut program = program();
        let gate = program.ops.iter().position(|op| matches!(op.kind, OpKind::GateMul { .. }));
        let OpKind::GateMul { up, .. } = program.ops[gate.expect("there is one")].kind else {
            unreachable!()
        };
        let down = gate.expect("there is one") + 1;
        let OpKind::MatMul { input, .. } = &mut program.ops[down].kind else { panic!("down follows") };
        *input = up;
        assert!(groups(&program, SOFTWARE).iter().all(|group| group.how != How::Gated));
    }

    #[test]
    fn products_of_other_formats_stay_apart() {
        use crate::tensor_type::TensorType;
        let mut program = program();
        let OpKind::MatMul { weight, .. } = program.ops[3].kind else { panic!("the key's product") };
        let format = program.weights[weight.0].format;
        program.weights[weight.0].format =
            if format == TensorType::F32 { TensorType::F16 } else { TensorType::F32 };
        let software = groups(&program, SOFTWARE);
        let shapes: Vec<_> = software[1..4].iter().map(|group| (group.ops.len(), group.how)).collect();
        assert_eq!(shapes, [(2, How::Alone), (1, How::Alone), (1, How::Alone)]);
        // Each norms its input; the norm's op is the first one's.
        assert!(software[1].norm.is_some_and(|norm| norm.op == 1));
        assert!(software[1..4].iter().all(|group| group.norm == software[1].norm));
        assert!(software[1..4].iter().all(|group| group.rest(&program).len() == 1));
    }

    #[test]
    fn a_norm_that_others_read_or_whose_input_changes_is_computed_on_its_own() {
        let program = program();
        let norms =
            |program: &Program| groups(program, SOFTWARE).iter().filter(|group| group.norm.is_some()).count();
        assert_eq!(norms(&program), 3, "of attention, of the feed-forward network, of the output");
        let OpKind::RmsNorm { input, out, .. } = program.ops[1].kind else { panic!("a norm comes first") };
        // Something that is no product reads it after the products.
        let mut read = program.clone();
        read.ops.insert(5, Op { name: "read".to_owned(), kind: OpKind::Add { input: out, out: input } });
        assert_eq!(norms(&read), 2);
        // The input changes before the last product.
        let mut changed = program.clone();
        let other = changed.buffers.len();
        changed.buffers.push(changed.buffers[input.0].clone());
        let kind = OpKind::Add { input: BufferId(other), out: input };
        changed.ops.insert(3, Op { name: "change".to_owned(), kind });
        assert_eq!(norms(&changed), 2);
        // A product writes what it would norm.
        let mut overwritten = program.clone();
        let OpKind::MatMul { out: written, .. } = &mut overwritten.ops[4].kind else { panic!("the value") };
        *written = input;
        assert_eq!(norms(&overwritten), 2);
        // Nothing follows.
        let mut ends = program.clone();
        ends.ops.truncate(2);
        assert_eq!(norms(&ends), 0);
        // Rows that do not end with a block.
        let mut narrow = program;
        narrow.buffers[input.0].width -= 1;
        let OpKind::RmsNorm { weight, .. } = narrow.ops[1].kind else { unreachable!() };
        narrow.weights[weight.0].columns -= 1;
        assert!(norms(&narrow) < 3);
    }
}
