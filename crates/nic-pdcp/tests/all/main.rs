//! The engines by themselves, and nodes over them.

mod engine;
mod limits;
mod nodes;
mod world;
