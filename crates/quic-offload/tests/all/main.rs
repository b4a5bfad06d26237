//! QUIC between two hosts in virtual time, and over the kernel's sockets.

mod adversary;
mod faults;
mod life;
mod noq;
mod paths;
mod rig;
mod transfer;
