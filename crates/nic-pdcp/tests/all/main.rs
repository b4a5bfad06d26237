//! The engines by themselves, and nodes over them.

mod engine;
mod faulty;
mod limits;
mod nodes;
mod queues;
mod world;
