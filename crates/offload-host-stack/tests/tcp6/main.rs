//! The tests of `tests/all` that do not depend on IPv4, run over IPv6.

#[path = "../all/nic.rs"]
mod nic;
#[path = "../all/packets.rs"]
mod packets;
#[path = "../all/pair.rs"]
mod pair;
#[path = "../all/wire.rs"]
mod wire;

#[path = "../all/ecn.rs"]
mod ecn;
#[path = "../all/hostile.rs"]
mod hostile;
#[path = "../all/path_mtu.rs"]
mod path_mtu;
#[path = "../all/records.rs"]
mod records;
#[path = "../all/room.rs"]
mod room;
#[path = "../all/shell.rs"]
mod shell;
#[path = "../all/smoltcp_peer.rs"]
mod smoltcp_peer;
#[path = "../all/states.rs"]
mod states;
#[path = "../all/transfer.rs"]
mod transfer;
#[path = "../all/udp.rs"]
mod udp;

const OVER_SIX: bool = true;
