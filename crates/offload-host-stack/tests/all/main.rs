//! The stack against itself, against smoltcp, and against whatever a network may do, in virtual time.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod nic;
mod packets;
mod pair;
mod wire;

/// The tests that IPv6 shares run once more over IPv6.
const OVER_SIX: bool = false;

mod autoconf;
mod ecn;
mod far;
mod goodput;
mod hostile;
mod listening;
mod liveness;
mod memory;
mod messages;
mod neighbours;
mod path;
mod path_mtu;
mod records;
mod recovery;
mod reopening;
mod room;
mod shell;
mod six;
mod smoltcp_peer;
mod states;
mod transfer;
mod udp;
