//! All algorithms beside vectors and others' code: one program, for one is built and linked sooner than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod ipsec_mb;
mod long;
mod peer;
mod test_sets;
mod vectors;
