//! The package of `ktls_loopback`, the README's first example: it depends on little, so that little is built.
