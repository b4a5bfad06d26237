//! Tests of the mirror of SAs with a fake kernel, which builds its messages with another crate.
//!
//! - `kernel`: a fake kernel with SAs and policies, which speaks netlink through `netlink-packet-xfrm`.
//! - `messages`: parsing of its messages, and its parsing of ours.
//! - `stream`: the protocol of agent and mirror, split at arbitrary places.
//! - `replay`: kernel, agent and mirror together; the mirror equals the kernel after any history.

mod kernel;
mod messages;
mod replay;
mod stream;
