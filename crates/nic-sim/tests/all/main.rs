//! Driver and device together: one program, for one is built and linked sooner than many.

mod esp;
mod foreign;
mod lro;
mod nvme;
mod pacing;
mod quic;
mod switched;
mod tls;
