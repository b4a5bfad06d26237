//! QUIC between two hosts in virtual time, and over the kernel's sockets.

mod adversary;
mod faults;
mod life;
mod limits;
mod noq;
mod paths;
mod picoquic;
mod rig;
mod transfer;
