//! Back-ends beside each other, beside others' code and beside vectors: one program, for one is built and linked sooner than many.

mod aes;
mod common;
mod differential;
mod limits;
mod vectors;
