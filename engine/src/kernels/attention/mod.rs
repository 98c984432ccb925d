//! The `attention` op.

pub mod reference;
