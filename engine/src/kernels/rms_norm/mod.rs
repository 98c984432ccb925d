//! The `rms_norm` op.

pub mod reference;
