#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod aead;
mod alert;
#[cfg(feature = "rustls")]
mod connector;
mod counters;
mod error;
#[cfg(feature = "rustls")]
mod exporter;
#[cfg(feature = "rustls")]
mod handshake;
mod keys;
#[cfg(feature = "lookaside")]
mod lookaside;
mod messages;
mod record;
mod sealer;
#[cfg(feature = "file")]
mod send_file;
mod stream;

pub use alert::AlertDescription;
#[cfg(feature = "rustls")]
pub use connector::{TlsAcceptor, TlsConnector};
pub use counters::{TlsCounters, tls_stat};
pub use error::TlsError;
#[cfg(feature = "rustls")]
pub use handshake::{HandshakeError, Negotiated, StartHandshake, accept, connect, traffic_key};
pub use keys::{FixedKeys, KeySchedule, ScheduleError, TrafficKeys, UnsupportedKey};
#[cfg(feature = "lookaside")]
pub use lookaside::{LookasideCounters, LookasideStream, RunLookaside};
#[cfg(feature = "file")]
pub use send_file::{Blocking, FilePieces, InPlace, LentPieces, SendFileError, SharedWrites, WriteCounters, send_file};
pub use stream::KtlsStream;
pub use stream::offload::{NotOffloaded, Offload, OffloadOutcome, Offloaded};

pub use offload_api::{ContextRefusal, Handle, RxSegment, SegmentStream, TlsKey, TlsSuite, TlsVersion};
pub use offload_base::counters::{CounterSet, Counters};
#[cfg(feature = "rustls")]
pub use rustls;
/// Re-exports of the crates whose types appear in this API, so that a program needs no other dependency.
pub use {bytes, offload_api as api, offload_base as base};
