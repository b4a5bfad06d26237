//! Shared parts of the servers and clients of this package: [`web`] for HTTP, [`outside`] for wires that end outside
//! the emulation, [`iperf3`] for `tap_server`, [`volume`] for encrypted disks, [`switching`] for the switch of virtual
//! machines in other processes.

#![forbid(unsafe_code)]

pub mod iperf3;
pub mod outside;
pub mod switching;
pub mod volume;
pub mod web;
