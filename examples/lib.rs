//! Demos of nic-offload, one file each beside this one, and in [`web`] what those of them share that speak HTTP.

#![forbid(unsafe_code)]

pub mod web;
