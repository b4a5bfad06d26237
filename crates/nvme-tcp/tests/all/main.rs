//! NVMe/TCP hosts and targets over emulated NICs, in-memory streams and scripted peers. A single test program, because
//! it builds and links faster than many.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod bed;
mod changed_namespaces;
mod conformance;
mod endurance;
mod events;
mod faulty;
mod given_up;
mod host;
mod host_conformance;
mod jobs;
mod lost_tasks;
mod made_by_hand;
mod memory;
mod offload;
mod oracle;
mod pair;
mod pdu;
mod rig;
mod stalled;
mod tshark;
mod volumes;
