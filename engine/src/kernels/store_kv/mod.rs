//! The `store_kv` op.

pub mod reference;
