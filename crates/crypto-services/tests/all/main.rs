//! Chains as bytes beside the ciphers they are to equal; fabrics beside closed forms and under changes; controllers on loads; jobs.

mod controllers;
mod fabrics;
mod jobs;
mod suites;
