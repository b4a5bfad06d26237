//! Published vectors and any packet: one program, for one is built and linked sooner than many.

mod vectors;
mod wrapping;
