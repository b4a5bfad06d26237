//! The engines by themselves, and nodes over them.

mod engine;
mod nodes;
