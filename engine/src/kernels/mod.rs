//! One folder per op: `mod.rs` (layout, dispatch, limits), the WGSL, `reference.rs` (plain loops in `f32`,
//! the definition of the op) and the tests that compare kernel with reference. [`top_k`] is one for what comes after
//! the ops, `reduce` is what several include.
//!
//! References are written for reading. They are what both devices are compared with; they are no device.

pub mod add;
pub mod add_bias;
pub mod attention;
pub mod embed;
pub mod gate_mul;
pub mod gather_rows;
pub mod matmul;
pub(crate) mod reduce;
pub mod reference_device;
pub mod rms_norm;
pub mod rope;
pub mod store_kv;
pub mod synthetic;
pub mod top_k;
