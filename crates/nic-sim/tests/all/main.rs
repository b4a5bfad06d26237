//! Driver and device together, in one test program, because one program links faster than many.

mod esp;
mod foreign;
mod lro;
mod nvme;
mod pacing;
mod quic;
mod switched;
mod tls;
