//! TLS streams over emulated NICs: one program, for one is built and linked sooner than many.

mod cancelled;
mod endings;
mod events;
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
