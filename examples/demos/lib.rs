//! The library of the demo `resync_story`: [`story`]. The demos are the files `../*.rs` that `Cargo.toml` names; the other examples
//! teach, and build with the crates that they teach only.

#![forbid(unsafe_code)]

pub mod story;
