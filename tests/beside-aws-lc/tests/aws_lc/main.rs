//! Random messages: the same bytes as AWS-LC makes of them.

mod aeads;
#[path = "../../../../crates/offload-transforms/tests/all/pieces.rs"]
mod pieces;
mod transforms;
