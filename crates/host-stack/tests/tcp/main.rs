//! The stack against itself, against smoltcp, and against whatever a network may do, in virtual time.

mod nic;
mod pair;
mod wire;

mod goodput;
mod hostile;
mod liveness;
mod neighbours;
mod path_mtu;
mod records;
mod room;
mod shell;
mod smoltcp_peer;
mod states;
mod transfer;
mod udp;
