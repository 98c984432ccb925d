//! Chores that CI and people share: `cargo xtask <chore>`.
fn main() {}
