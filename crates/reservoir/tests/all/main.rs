//! Servers and copies in virtual time, and the program: one program, for one is built and linked sooner than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod bounds;
mod console;
#[cfg(feature = "third-party")]
mod kill;
#[cfg(feature = "third-party")]
mod nic;
