//! Tests of ciphers against other implementations, of fabrics against closed forms and under changes, of controllers on
//! loads, of job queues and ports, and of records after real handshakes.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod controllers;
mod fabrics;
mod inline;
mod jobs;
mod records;
mod suites;
