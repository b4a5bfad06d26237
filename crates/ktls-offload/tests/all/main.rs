//! Tests of TLS streams over emulated NICs. All tests form one program, because one program links faster than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print skip reasons and measurements")]

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
