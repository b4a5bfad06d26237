//! Demos of nic-offload, one file each beside this one; [`web`] has what those of them share that speak HTTP, [`outside`]
//! what those share whose wire may end outside the emulation, [`loopback`] those that send one file several ways, [`story`] what
//! `resync_story` tells, [`iperf3`] what `tap_server` serves beside a folder, [`files`] what keeps inputs from being written
//! over.

#![forbid(unsafe_code)]

pub mod files;
pub mod iperf3;
pub mod loopback;
pub mod outside;
pub mod story;
pub mod web;
