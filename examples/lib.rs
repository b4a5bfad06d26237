//! Demos of nic-offload, one file each beside this one. Shared parts: [`web`] for those that speak HTTP, [`outside`] for those
//! whose wire may end outside the emulation, [`story`] for `resync_story`, [`iperf3`] for what `tap_server` serves beside a
//! folder, [`volume`] for disks that hold ciphertext, [`switching`] for the switch
//! of other processes' virtual machines. What programs and `nicbench` share is the crate `nicbench`.

#![forbid(unsafe_code)]

pub mod iperf3;
pub mod outside;
pub mod story;
pub mod switching;
pub mod volume;
pub mod web;
