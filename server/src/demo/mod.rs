//! `limpid demo`. Stub.
