//! `limpid bench`. Stub.
