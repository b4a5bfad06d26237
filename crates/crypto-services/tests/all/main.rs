//! Chains as bytes beside the ciphers they are to equal; fabrics beside closed forms and under changes; controllers on loads; jobs; ports.

mod controllers;
mod fabrics;
mod inline;
mod jobs;
mod suites;
