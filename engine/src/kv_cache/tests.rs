//! The pool against a naive twin, and the rules of sharing.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// The pool's rules written down without any thought of cost.
struct Twin {
    free: VecDeque<u32>,
    references: Vec<u32>,
    /// In the order of registration.
    registered: Vec<(BlockHash, u32)>,
}

impl Twin {
    fn new(num_blocks: u32) -> Twin {
        Twin {
            free: (1..num_blocks).collect(),
            references: vec![0; num_blocks as usize],
            registered: Vec::new(),
        }
    }

    fn has_hash(&self, id: u32) -> bool {
        self.registered.iter().any(|(_, block)| *block == id)
    }

    fn allocate(&mut self) -> u32 {
        let id = self.free.pop_front().expect("a free block");
        self.registered.retain(|(_, block)| *block != id);
        self.references[id as usize] = 1;
        id
    }

    fn touch(&mut self, id: u32) {
        self.free.retain(|block| *block != id);
        self.references[id as usize] += 1;
    }

    fn release(&mut self, ids: &[u32]) {
        let mut to_head = Vec::new();
        for id in ids.iter().rev() {
            self.references[*id as usize] -= 1;
            if self.references[*id as usize] == 0 {
                if self.has_hash(*id) { self.free.push_back(*id) } else { to_head.push(*id) }
            }
        }
        for id in to_head.into_iter().rev() {
            self.free.push_front(id);
        }
    }

    fn lookup(&self, hash: &BlockHash) -> Option<u32> {
        self.registered.iter().find(|(known, _)| known == hash).map(|(_, id)| *id)
    }
}

#[derive(Clone, Debug)]
enum Action {
    /// A new owner takes this many blocks, as far as they are there.
    Take(usize),
    /// An owner registers its first block without a hash under this hash.
    Register { owner: usize, hash: u32 },
    /// A new owner shares the block found for this hash.
    Share(u32),
    /// An owner gives all back.
    Release(usize),
    /// A block is forgotten.
    Forget(u32),
    /// Everything is forgotten, if nothing is held.
    Reset,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..5usize).prop_map(Action::Take),
        6 => (0..8usize, 0..6u32).prop_map(|(owner, hash)| Action::Register { owner, hash }),
        3 => (0..6u32).prop_map(Action::Share),
        4 => (0..8usize).prop_map(Action::Release),
        1 => (1..12u32).prop_map(Action::Forget),
        1 => Just(Action::Reset),
    ]
}

proptest! {
    #[test]
    fn pool_answers_as_its_naive_twin(actions in prop::collection::vec(action(), 1..200)) {
        const BLOCKS: u32 = 12;
        let name = |hash: u32| BlockHash::root(None).child(&[hash]);
        let mut pool = BlockPool::new(BLOCKS as usize);
        let mut twin = Twin::new(BLOCKS);
        let mut owners: Vec<Vec<BlockId>> = Vec::new();
        let raw = |ids: &[BlockId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        for action in actions {
            match action {
                Action::Take(count) => {
                    let count = count.min(pool.num_free());
                    let taken: Vec<_> = (0..count).map(|_| pool.allocate()).collect();
                    prop_assert_eq!(raw(&taken), (0..count).map(|_| twin.allocate()).collect::<Vec<_>>());
                    owners.push(taken);
                }
                Action::Register { owner, hash } => {
                    let bare = owners.get(owner).and_then(|ids| ids.iter().find(|id| pool.hash(**id).is_none()));
                    if let Some(&id) = bare {
                        pool.register(id, name(hash));
                        twin.registered.push((name(hash), id.0));
                    }
                }
                Action::Share(hash) => {
                    let found = pool.lookup(&name(hash));
                    prop_assert_eq!(found.map(|id| id.0), twin.lookup(&name(hash)));
                    if let Some(id) = found {
                        pool.touch(id);
                        twin.touch(id.0);
                        owners.push(vec![id]);
                    }
                }
                Action::Release(owner) => {
                    if owner < owners.len() {
                        let ids = owners.remove(owner);
                        pool.release(&ids);
                        twin.release(&raw(&ids));
                    }
                }
                Action::Forget(number) => {
                    pool.forget(BlockId(number));
                    twin.registered.retain(|(_, id)| *id != number);
                }
                Action::Reset => {
                    let idle = owners.iter().all(Vec::is_empty);
                    prop_assert_eq!(pool.reset(), idle);
                    if idle {
                        twin.registered.clear();
                    }
                }
            }
            let free: Vec<_> = pool.free_blocks().map(|id| id.0).collect();
            prop_assert_eq!(free, twin.free.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(pool.num_free(), twin.free.len());
            for number in 1..BLOCKS {
                prop_assert_eq!(pool.hash(BlockId(number)).is_some(), twin.has_hash(number));
            }
            pool.assert_invariants(&twin.references);
        }
    }
}

/// A sequence that holds blocks for all its tokens, sharing what it can; answers the tokens it shares.
fn admit(cache: &mut KvCache, tokens: &[u32], salt: Option<&str>) -> (BlockTable, usize) {
    let table = cache.table(salt, None);
    admit_table(cache, table, tokens)
}

fn admit_table(cache: &mut KvCache, mut table: BlockTable, tokens: &[u32]) -> (BlockTable, usize) {
    let mut hits = Prefix::default();
    cache.extend_hashes(&mut table, tokens);
    cache.find_prefix(&table, tokens.len(), &mut hits);
    assert!(cache.can_allocate(&table, &hits, tokens.len()));
    cache.allocate(&mut table, &hits, tokens.len(), Instant::now());
    (table, hits.num_blocks() * cache.block_size())
}

#[test]
fn last_token_of_a_fully_cached_prompt_is_left_to_compute() {
    let mut cache = KvCache::new(&[None], 16, 4, true);
    let tokens: Vec<u32> = (0..9).collect();
    let (first, hit) = admit(&mut cache, &tokens[..8], None);
    assert_eq!(hit, 0);
    let (second, hit) = admit(&mut cache, &tokens[..8], None);
    assert_eq!(hit, 4, "8 tokens in blocks of 4: the whole last block again");
    let (third, hit) = admit(&mut cache, &tokens, None);
    assert_eq!(hit, 8);
    assert_eq!(first.blocks(0)[0], third.blocks(0)[0]);
    assert_eq!(first.blocks(0)[1], third.blocks(0)[1], "the block registered first is taken");
    assert_ne!(second.blocks(0)[1], third.blocks(0)[1]);
    cache.assert_invariants([&first, &second, &third].into_iter());
}

#[test]
fn salts_and_switching_off_keep_prefixes_apart() {
    let tokens = [7; 9];
    let mut cache = KvCache::new(&[None], 16, 4, true);
    admit(&mut cache, &tokens, Some("a"));
    assert_eq!(admit(&mut cache, &tokens, Some("b")).1, 0);
    assert_eq!(admit(&mut cache, &tokens, None).1, 0);
    assert_eq!(admit(&mut cache, &tokens, Some("a")).1, 8);
    let mut cache = KvCache::new(&[None], 16, 4, false);
    admit(&mut cache, &tokens, None);
    assert_eq!(admit(&mut cache, &tokens, None).1, 0);
}

#[test]
fn without_prefix_caching_siblings_share_and_nobody_else_does() {
    let tokens = [7; 9];
    let mut cache = KvCache::new(&[None], 16, 4, false);
    let mut admit_of = |siblings| {
        let table = cache.table(None, siblings);
        admit_table(&mut cache, table, &tokens)
    };
    let (first, hit) = admit_of(Some(Siblings(1)));
    assert_eq!(hit, 0);
    let (second, hit) = admit_of(Some(Siblings(1)));
    assert_eq!((hit, &second.blocks(0)[..2]), (8, &first.blocks(0)[..2]));
    let (other, hit) = admit_of(Some(Siblings(2)));
    assert_eq!(hit, 0);
    let (alone, hit) = admit_of(None);
    assert_eq!(hit, 0);
    cache.assert_invariants([&first, &second, &other, &alone].into_iter());
}

#[test]
fn residency_is_watched_only_where_prefixes_are_cached() {
    for enable_prefix_caching in [true, false] {
        let mut cache = KvCache::new(&[None], 4, 2, enable_prefix_caching);
        cache.sample_residency(1.0);
        for round in 0..2 {
            let (mut table, _) = admit(&mut cache, &[round; 6], None);
            cache.free(&mut table);
        }
        let expected = if enable_prefix_caching { 3 } else { 0 };
        assert_eq!(cache.take_evicted().len(), expected, "the second round overwrites the first");
        assert_eq!(cache.take_evicted(), []);
    }
}

#[test]
fn freed_blocks_are_found_until_they_are_overwritten_tail_first() {
    let mut cache = KvCache::new(&[None], 6, 2, true);
    let tokens = [1, 2, 3, 4, 5, 6, 7];
    let (mut table, _) = admit(&mut cache, &tokens, None);
    let prefix = table.blocks(0)[..2].to_vec();
    assert_eq!((cache.usage(), cache.num_free()), (0.8, 1));
    cache.free(&mut table);
    assert_eq!((cache.usage(), cache.num_free()), (0.0, 5));
    // Three new blocks take the partial one, which has no hash, the unused one, and the prefix's tail.
    let (other, _) = admit(&mut cache, &[9, 9, 9, 9, 9], None);
    let mut hits = Prefix::default();
    cache.find_prefix(&table, tokens.len(), &mut hits);
    assert_eq!(hits.groups, [prefix]);
    assert!(!cache.can_allocate(&table, &hits, 5), "the hits themselves take the last free blocks");
    assert!(cache.can_allocate(&table, &hits, 4));
    cache.assert_invariants([&other].into_iter());
}

#[test]
fn forgotten_blocks_are_not_found_and_stay_held() {
    let mut cache = KvCache::new(&[None], 8, 2, true);
    let tokens = [1, 2, 3, 4, 5];
    let (mut first, _) = admit(&mut cache, &tokens, None);
    cache.forget(&mut first, 2);
    let (second, hit) = admit(&mut cache, &tokens, None);
    assert_eq!(hit, 2);
    cache.assert_invariants([&first, &second].into_iter());
}

#[test]
fn reset_needs_an_idle_pool() {
    let mut cache = KvCache::new(&[None], 8, 2, true);
    let (mut table, _) = admit(&mut cache, &[1, 2, 3], None);
    assert!(!cache.reset_prefix_cache());
    cache.free(&mut table);
    assert!(cache.reset_prefix_cache());
    assert_eq!(admit(&mut cache, &[1, 2, 3], None).1, 0);
}

#[test]
#[should_panic(expected = "given back more often than taken")]
fn giving_a_block_back_twice_panics() {
    let mut pool = BlockPool::new(4);
    let id = pool.allocate();
    pool.release(&[id]);
    pool.release(&[id]);
}

/// A sequence that was computed to its end, its windows slid, and given back.
fn compute_and_free(cache: &mut KvCache, tokens: &[u32]) {
    let (mut table, _) = admit(cache, tokens, None);
    cache.slide(&mut table, tokens.len());
    cache.free(&mut table);
}

#[test]
fn a_window_gives_back_what_no_later_token_sees() {
    let mut cache = KvCache::new(&[None, Some(5)], 32, 4, true);
    let tokens: Vec<u32> = (0..23).collect();
    let (mut table, _) = admit(&mut cache, &tokens, None);
    assert_eq!((table.blocks(0).len(), table.blocks(1).len()), (6, 6));
    let before = cache.num_free();
    // The token at position 8 sees 4 to 8: the first block has passed.
    cache.slide(&mut table, 8);
    assert_eq!((table.blocks(1)[0], cache.num_free()), (BlockId::NULL, before + 1));
    cache.slide(&mut table, 11);
    assert_eq!(cache.num_free(), before + 1, "position 7 is still seen");
    cache.slide(&mut table, 23);
    assert_eq!(cache.num_free(), before + 4);
    assert!(table.blocks(0).iter().all(|id| *id != BlockId::NULL));
    assert_eq!(cache.windowed_usage(), 2.0 / 31.0);
    cache.assert_invariants([&table].into_iter());
    cache.free(&mut table);
    assert_eq!((cache.usage(), cache.windowed_usage()), (0.0, 0.0));
    cache.assert_invariants(std::iter::empty());
}

#[test]
fn a_prefix_needs_the_window_before_its_end_and_no_more_of_windowed_groups() {
    let tokens: Vec<u32> = (0..25).collect();
    let mut cache = KvCache::new(&[None, Some(6)], 64, 4, true);
    compute_and_free(&mut cache, &tokens);
    let (table, hit) = admit(&mut cache, &tokens, None);
    assert_eq!(hit, 24);
    // The token at 24 sees 19 to 24, in blocks 4 to 6.
    let windowed = table.blocks(1);
    assert!(
        windowed[..4].iter().all(|id| *id == BlockId::NULL)
            && windowed[4..].iter().all(|id| *id != BlockId::NULL)
    );
    assert!(table.blocks(0)[..6].iter().all(|id| *id != BlockId::NULL));
    cache.assert_invariants([&table].into_iter());
}

#[test]
fn a_prefix_ends_where_every_group_still_has_what_it_needs() {
    let tokens: Vec<u32> = (0..25).collect();
    for (lost_group, lost_block, expected) in [(0, 2, 8), (1, 5, 20), (1, 4, 16), (1, 0, 24), (2, 5, 20)] {
        let mut cache = KvCache::new(&[None, Some(6), Some(6)], 64, 4, true);
        let (mut table, _) = admit(&mut cache, &tokens, None);
        cache.pool.forget(table.blocks(lost_group)[lost_block]);
        cache.free(&mut table);
        assert_eq!(admit(&mut cache, &tokens, None).1, expected, "group {lost_group}, block {lost_block}");
    }
    // At the beginning of a sequence a window needs only what there is.
    let mut cache = KvCache::new(&[Some(20)], 64, 4, true);
    compute_and_free(&mut cache, &tokens[..9]);
    assert_eq!(admit(&mut cache, &tokens, None).1, 8);
    // A window of one token needs nothing before it.
    let mut cache = KvCache::new(&[Some(1)], 64, 4, true);
    assert_eq!(admit(&mut cache, &tokens, None).1, 24);
}

#[test]
fn what_is_forgotten_is_not_found_behind_a_window_either() {
    let tokens: Vec<u32> = (0..25).collect();
    let mut cache = KvCache::new(&[Some(3)], 32, 4, true);
    let (mut table, _) = admit(&mut cache, &tokens, None);
    cache.slide(&mut table, 25);
    cache.forget(&mut table, 0);
    cache.free(&mut table);
    assert_eq!(cache.num_evictable(), 0);
}
