//! Doubly linked lists threaded through vectors of links, so that a block leaves the middle of a list in
//! constant time and no operation allocates.
//!
//! A list owns no links: every call gets the vector that all lists over it share. Invariant: a block is in
//! at most one of the lists that share a vector.

use super::BlockId;

/// A block's neighbours in the list it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    previous: Option<BlockId>,
    next: Option<BlockId>,
}

/// The two ends of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockList {
    first: Option<BlockId>,
    last: Option<BlockId>,
}

impl BlockList {
    /// The block at the head.
    pub(super) fn first(&self) -> Option<BlockId> {
        self.first
    }

    /// Appends at the tail.
    pub(super) fn push_back(&mut self, links: &mut [Links], id: BlockId) {
        links[id.index()] = Links { previous: self.last, next: None };
        match self.last {
            Some(last) => links[last.index()].next = Some(id),
            None => self.first = Some(id),
        }
        self.last = Some(id);
    }

    /// Inserts before the head.
    pub(super) fn push_front(&mut self, links: &mut [Links], id: BlockId) {
        links[id.index()] = Links { previous: None, next: self.first };
        match self.first {
            Some(first) => links[first.index()].previous = Some(id),
            None => self.last = Some(id),
        }
        self.first = Some(id);
    }

    /// Takes a block of this list out of it.
    pub(super) fn remove(&mut self, links: &mut [Links], id: BlockId) {
        let Links { previous, next } = std::mem::take(&mut links[id.index()]);
        match previous {
            Some(previous) => links[previous.index()].next = next,
            None => self.first = next,
        }
        match next {
            Some(next) => links[next.index()].previous = previous,
            None => self.last = previous,
        }
    }

    /// The blocks from head to tail.
    pub(super) fn iter<'a>(&self, links: &'a [Links]) -> impl Iterator<Item = BlockId> + 'a {
        std::iter::successors(self.first, |id| links[id.index()].next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_from_head_middle_and_tail() {
        let mut links = vec![Links::default(); 5];
        let mut list = BlockList::default();
        for number in [1, 2, 3] {
            list.push_back(&mut links, BlockId(number));
        }
        list.push_front(&mut links, BlockId(4));
        let order = |list: &BlockList, links: &[Links]| list.iter(links).map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(order(&list, &links), [4, 1, 2, 3]);
        list.remove(&mut links, BlockId(1));
        assert_eq!(order(&list, &links), [4, 2, 3]);
        list.remove(&mut links, BlockId(4));
        list.remove(&mut links, BlockId(3));
        assert_eq!((order(&list, &links), list.first), (vec![2], list.last));
        list.remove(&mut links, BlockId(2));
        assert_eq!(list, BlockList::default());
    }
}
