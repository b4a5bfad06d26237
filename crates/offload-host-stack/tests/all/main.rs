//! Tests of the stack against itself, against smoltcp, and against a faulty network, in virtual time.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests report skips and measurements")]

mod nic;
mod packets;
mod pair;
mod wire;

/// Whether the hosts use IPv6. Another test program runs the shared tests over IPv6.
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
