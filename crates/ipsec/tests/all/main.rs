//! Tests of key files, packets and streams. One program, because one is built and linked faster than many.

mod keyfile;
mod packets;
mod streams;
