//! How the layers of a model share one pool of KV blocks, as vLLM's cache groups do.
//!
//! Layers that see the same positions need the same blocks. They form groups, and a sequence has a block table for
//! each group, so that a layer with a window keeps its window's blocks and no more. All groups take their blocks
//! from one pool, whose blocks must be of one size; therefore groups have equally many layers: as many as there
//! are of the rarer kind. The last group of the other kind may have fewer.
//!
//! The n-th layers of all groups share their memory, because a block belongs to one group at a time.
//!
//! Invariant: every layer has one place, no two layers have the same.

use crate::program::{OpKind, Program};

/// Where a layer's keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlace {
    /// Whose block table and slots.
    pub group: usize,
    /// Which of the group's memories.
    pub memory: usize,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Each group's window; `None` where its layers attend to everything. Never empty.
    pub windows: Vec<Option<usize>>,
    /// By layer.
    pub places: Vec<CachePlace>,
    /// Pairs of arrays for keys and values, each of the whole pool.
    pub num_memories: usize,
}

impl CacheLayout {
    /// The layout of a program's layers.
    pub fn of(program: &Program) -> CacheLayout {
        let mut windows = vec![None; program.num_layers];
        for op in &program.ops {
            if let OpKind::Attention { layer, window, .. } = op.kind {
                windows[layer] = window;
            }
        }
        CacheLayout::new(&windows)
    }

    /// The layout of layers with these windows.
    fn new(layers: &[Option<usize>]) -> CacheLayout {
        let of_kind = |windowed: bool| {
            let is_of_kind = move |layer: &usize| layers[*layer].is_some() == windowed;
            (0..layers.len()).filter(is_of_kind).collect::<Vec<usize>>()
        };
        let kinds = [of_kind(false), of_kind(true)];
        let num_memories = kinds.iter().map(Vec::len).filter(|count| *count > 0).min().unwrap_or(0);
        let mut layout = CacheLayout {
            windows: Vec::new(),
            places: vec![CachePlace { group: 0, memory: 0 }; layers.len()],
            num_memories,
        };
        for group in kinds.iter().flat_map(|kind| kind.chunks(num_memories.max(1))) {
            for (memory, layer) in group.iter().enumerate() {
                layout.places[*layer] = CachePlace { group: layout.windows.len(), memory };
            }
            layout.windows.push(layers[group[0]]);
        }
        if layout.windows.is_empty() {
            layout.windows.push(None);
        }
        layout
    }

    /// Groups, at least one.
    pub fn num_groups(&self) -> usize {
        self.windows.len()
    }
}

/// Most blocks that a sequence of `num_tokens` tokens holds at once, of all groups together, if up to
/// `max_num_batched_tokens` of its tokens are computed in a step.
pub fn blocks_per_sequence(
    windows: &[Option<usize>],
    block_size: usize,
    num_tokens: usize,
    max_num_batched_tokens: usize,
) -> usize {
    let all = num_tokens.div_ceil(block_size);
    let of_group = |window: &Option<usize>| match window {
        None => all,
        // What the first token of the step sees beside itself, and the tokens of the step, from anywhere within a
        // block on.
        Some(window) => {
            let seen = (window - 1).saturating_add(max_num_batched_tokens);
            all.min(seen.div_ceil(block_size).saturating_add(1))
        }
    };
    windows.iter().map(of_group).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_one_kind_are_one_group_with_a_memory_each() {
        for window in [None, Some(7)] {
            let layout = CacheLayout::new(&[window; 3]);
            assert_eq!((layout.windows, layout.num_memories), (vec![window], 3));
            let places = [0, 1, 2].map(|memory| CachePlace { group: 0, memory });
            assert_eq!(layout.places, places);
        }
        assert_eq!(CacheLayout::new(&[]).windows, [None]);
    }

    #[test]
    fn groups_of_a_mixed_model_have_as_many_layers_as_there_are_of_the_rarer_kind() {
        // Two of eight layers attend to everything; five groups of two would be ten.
        let layers: Vec<Option<usize>> = (0..8).map(|layer| (layer % 4 != 3).then_some(5)).collect();
        let layout = CacheLayout::new(&layers);
        assert_eq!(layout.windows, [None, Some(5), Some(5), Some(5)]);
        assert_eq!(layout.num_memories, 2);
        let places: Vec<(usize, usize)> =
            layout.places.iter().map(|place| (place.group, place.memory)).collect();
        assert_eq!(places, [(1, 0), (1, 1), (2, 0), (0, 0), (2, 1), (3, 0), (3, 1), (0, 1)]);
        let rare = CacheLayout::new(&[None, None, None, Some(5), None]);
        assert_eq!((rare.windows.len(), rare.num_memories), (5, 1));
    }

    #[test]
    fn a_windowed_group_needs_its_window_and_a_step_but_no_more_than_the_sequence() {
        let blocks = |windows: &[Option<usize>], tokens| blocks_per_sequence(windows, 4, tokens, 6);
        assert_eq!(blocks(&[None], 41), 11);
        // 8 + 6 tokens from the last slot of a block on.
        assert_eq!(blocks(&[Some(9)], 41), 5);
        assert_eq!(blocks(&[None, Some(9), Some(9)], 41), 21);
        assert_eq!(blocks(&[Some(9)], 7), 2);
        assert_eq!(blocks(&[Some(usize::MAX)], 41), 11);
    }
}
