//! Servers, copies, and the program, in virtual time. There is one test program because one program builds and links
//! faster than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod bounds;
mod console;
#[cfg(feature = "third-party")]
mod kill;
#[cfg(feature = "third-party")]
mod nic;
