//! Measured runs: scenarios, the facts they report, and the benches.
