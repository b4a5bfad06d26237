//! Demos of nic-offload, one file each beside this one; [`web`] has what those of them share that speak HTTP, [`story`]
//! what `resync_story` tells, [`loopback`] what those share that send one file several ways, [`files`] what keeps inputs
//! from being written over.

#![forbid(unsafe_code)]

pub mod files;
pub mod loopback;
pub mod story;
pub mod web;
