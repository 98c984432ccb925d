//! The model store: names and sources to files on disk. Stub.
