//! Tests of hosts, NICs and wires together. All are one program, because one program links faster than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod adversary;
mod attach;
mod ci;
mod costs;
mod crowded;
mod datagram_sockets;
mod datagrams;
mod foreign;
mod keyed;
mod locks;
mod nics;
mod overlay;
mod policy;
mod queues;
mod real_peers;
mod record_sizes;
mod rig;
mod room;
mod send_file;
mod tls;
mod tshark;
