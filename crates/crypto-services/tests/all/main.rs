//! Chains as bytes beside the ciphers they are to equal; fabrics beside closed forms and under changes; controllers on loads; jobs; ports; records of real handshakes.

mod controllers;
mod fabrics;
mod inline;
mod jobs;
mod records;
mod suites;
