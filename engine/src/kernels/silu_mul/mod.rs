//! The `silu_mul` op.

pub mod reference;
