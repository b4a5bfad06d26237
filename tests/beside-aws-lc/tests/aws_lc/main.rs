//! Random messages give the same bytes as AWS-LC.

mod aeads;
#[path = "../../../../crates/offload-transforms/tests/all/pieces.rs"]
mod pieces;
mod transforms;
