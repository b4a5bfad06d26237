//! Tests of the engines alone, and of nodes that use them.

mod engine;
mod faulty;
mod limits;
mod nodes;
mod queues;
mod world;
