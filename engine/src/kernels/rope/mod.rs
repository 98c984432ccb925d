//! The `rope` op.

pub mod reference;
