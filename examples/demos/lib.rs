//! The library of the demo `resync_story`: [`story`]. The demos are the files `../*.rs` named in `Cargo.toml`. The
//! other examples teach, and depend only on the crates that they teach.

#![forbid(unsafe_code)]

pub mod story;
