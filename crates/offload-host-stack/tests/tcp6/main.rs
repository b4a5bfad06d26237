//! The tests of `tests/tcp` that are not of IPv4's own, over IPv6.

#[path = "../tcp/nic.rs"]
mod nic;
#[path = "../tcp/packets.rs"]
mod packets;
#[path = "../tcp/pair.rs"]
mod pair;
#[path = "../tcp/wire.rs"]
mod wire;

#[path = "../tcp/ecn.rs"]
mod ecn;
#[path = "../tcp/hostile.rs"]
mod hostile;
#[path = "../tcp/path_mtu.rs"]
mod path_mtu;
#[path = "../tcp/records.rs"]
mod records;
#[path = "../tcp/room.rs"]
mod room;
#[path = "../tcp/shell.rs"]
mod shell;
#[path = "../tcp/smoltcp_peer.rs"]
mod smoltcp_peer;
#[path = "../tcp/states.rs"]
mod states;
#[path = "../tcp/transfer.rs"]
mod transfer;
#[path = "../tcp/udp.rs"]
mod udp;

const OVER_SIX: bool = true;
