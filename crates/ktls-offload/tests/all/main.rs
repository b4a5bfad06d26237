//! TLS streams over emulated NICs: one program, for one is built and linked sooner than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod cancelled;
mod endings;
mod events;
mod floods;
mod handshake;
mod kernel_loopback;
mod lookaside;
mod misbehaviour;
mod offload;
mod rekey;
mod resync;
mod returning;
mod rig;
mod schedules;
mod trust;
