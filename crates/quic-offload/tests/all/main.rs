//! QUIC between two hosts in virtual time, and over the kernel's sockets.

#![allow(clippy::duplicate_mod, reason = "peer.rs is compiled with the types of each foreign state machine")]

mod adversary;
mod events;
mod faults;
mod handshake;
mod life;
mod limits;
mod noq;
mod paths;
mod picoquic;
#[cfg(feature = "qlog")]
mod qlog;
mod quinn;
mod rig;
mod transfer;
mod waiters;
