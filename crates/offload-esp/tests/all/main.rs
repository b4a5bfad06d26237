//! Published vectors and random packets, in one program, because one program links faster than several.

mod vectors;
mod wrapping;
