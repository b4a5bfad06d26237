//! The package of `ktls_loopback`, the README's first example. The package has few dependencies, so that the first
//! build is short.
