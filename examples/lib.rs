//! Demos of nic-offload, one file each beside this one; [`web`] has what those of them share that speak HTTP, [`story`]
//! what `resync_story` tells, [`keys`] IPsec for hosts.

#![forbid(unsafe_code)]

pub mod keys;
pub mod story;
pub mod web;
