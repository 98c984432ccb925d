//! The `matmul` op.

pub mod reference;
