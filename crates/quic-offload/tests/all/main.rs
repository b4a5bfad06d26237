//! QUIC between two hosts in virtual time, and over the kernel's sockets.

mod faults;
mod life;
mod paths;
mod rig;
mod transfer;
