//! The `limpid` binary.
fn main() {}
