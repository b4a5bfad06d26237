//! Key files, packets and streams: one program, for one is built and linked sooner than many.

mod keyfile;
mod packets;
mod streams;
