//! The `gather_rows` op.

pub mod reference;
