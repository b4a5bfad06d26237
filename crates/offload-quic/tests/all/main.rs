//! Published vectors and others' code: one program, for one is built and linked sooner than many.

mod peers;
mod vectors;
