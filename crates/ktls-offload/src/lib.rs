//! TLS records over a stream, on an offload device or on the CPU.
