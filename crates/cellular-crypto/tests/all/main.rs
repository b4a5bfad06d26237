//! Tests of all algorithms against vectors and other implementations, as one program, which is built and linked faster
//! than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod ipsec_mb;
mod long;
mod peer;
mod test_sets;
mod vectors;
