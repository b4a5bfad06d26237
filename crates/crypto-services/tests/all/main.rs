//! Chains as bytes beside the ciphers they are to equal; fabrics beside closed forms and under changes; controllers on loads; jobs; ports; records of real handshakes.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

mod controllers;
mod fabrics;
mod inline;
mod jobs;
mod records;
mod suites;
