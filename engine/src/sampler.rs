//! Chooses tokens from logits. Stub.
