//! Published vectors, and comparison with other implementations, in one program, because one program links faster than
//! several.

mod peers;
mod vectors;
