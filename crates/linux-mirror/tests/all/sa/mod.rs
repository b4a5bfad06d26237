//! The mirror of SAs against a kernel whose messages another crate makes.
//!
//! - `kernel`: a model of a kernel's SAs and policies, which speaks netlink by `netlink-packet-xfrm`;
//! - `messages`: what is read from its messages, and what it reads from ours;
//! - `stream`: the protocol of agent and mirror, cut and joined anyhow;
//! - `replay`: kernel, agent and mirror together: what the kernel has is there, after any history.

mod kernel;
mod messages;
mod replay;
mod stream;
