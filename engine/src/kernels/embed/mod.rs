//! The `embed` op.

pub mod reference;
