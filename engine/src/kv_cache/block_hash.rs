//! Names for the contents of full blocks.
//!
//! The keys and values in a block depend on every token before it, so a block's hash covers its parent's
//! hash and its own tokens, and the chain begins with the request's salt. Two blocks with one hash are
//! taken for equal without looking further, therefore the hash is SHA-256: a collision would hand one
//! client the cache of another.

use sha2::{Digest, Sha256};

use super::Siblings;

/// SHA-256 of a block's tokens and all that came before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// The parent of a sequence's first block. Different salts, and no salt, give different roots.
    pub fn root(salt: Option<&str>) -> BlockHash {
        let mut hasher = Sha256::new();
        match salt {
            Some(salt) => {
                hasher.update([1]);
                hasher.update(salt.as_bytes());
            }
            None => hasher.update([0]),
        }
        BlockHash(hasher.finalize().into())
    }

    /// The parent of the first block of sequences that share with their siblings only.
    pub fn root_of_siblings(siblings: Siblings) -> BlockHash {
        let mut hasher = Sha256::new();
        hasher.update([2]);
        hasher.update(siblings.0.to_le_bytes());
        BlockHash(hasher.finalize().into())
    }

    /// The name of the block with these contents that a group of layers has.
    pub fn in_group(mut self, group: usize) -> BlockHash {
        for (byte, number) in self.0.iter_mut().zip((group as u64).to_le_bytes()) {
            *byte ^= number;
        }
        self
    }

    /// The hash of a full block of `tokens` behind this one.
    pub fn child(&self, tokens: &[u32]) -> BlockHash {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(bytemuck::cast_slice::<u32, u8>(tokens));
        BlockHash(hasher.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tokens_behind_different_parents_or_salts_differ() {
        let root = BlockHash::root(None);
        assert_eq!(root.child(&[1, 2]), root.child(&[1, 2]));
        assert_ne!(root.child(&[1, 2]), root.child(&[2, 1]));
        assert_ne!(root.child(&[1, 2]), root.child(&[1, 3]).child(&[1, 2]));
        assert_ne!(root.child(&[1, 2]), BlockHash::root(Some("")).child(&[1, 2]));
        assert_ne!(BlockHash::root(Some("a")), BlockHash::root(Some("b")));
        assert_ne!(BlockHash::root_of_siblings(Siblings(1)), BlockHash::root_of_siblings(Siblings(2)));
        assert_eq!(root.in_group(0), root);
        assert!([1, 2, 256, 257].iter().all(|group| root.in_group(*group) != root));
        assert_ne!(root.in_group(1), root.in_group(256));
    }
}
