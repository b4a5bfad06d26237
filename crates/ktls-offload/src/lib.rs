//! TLS records over a stream, on an offload device or on the CPU.
//!
//! rustls shakes hands; from there on this crate makes and opens the records itself, over any
//! [`SegmentStream`]. If there is a NIC below that knows TLS, [`KtlsStream::offload`]
//! hands it the keys, and the CPU no longer touches the payload; if there is none, or it refuses, or is lost half way,
//! the same stream goes on in software, record by record. The peer cannot tell the difference: the bytes on the wire
//! are the same.
//!
//! ```text
//!   application     AsyncRead, AsyncWrite, zero-copy chunks, or a SegmentStream for a protocol above
//!       |
//!   KtlsStream      stream/: closing, alerts, key updates, contexts of the device
//!       |           messages.rs: what comes after the handshake beside data
//!   records         record/: made and taken apart; sealer.rs: seals what the device was to seal
//!       |
//!   SegmentStream   a TCP with metadata, or TokioSegments around a socket
//! ```
//!
//! [`connect`] has an example of a whole connection. TLS 1.2 and TLS 1.3, with AES-128-GCM, AES-256-GCM or
//! ChaCha20-Poly1305. Who wants to negotiate anew (TLS 1.2) is told no.
//!
//! With feature `file`, `send_file` sends files without copying them, and `SharedWrites` does it below an HTTP library.
//!
//! Over an ordinary socket, for which there is [`TokioSegments`](offload_api::TokioSegments), this is a TLS implementation like others, in software.
//!
//! # Features
//! - `tokio` (on by default): a [`KtlsStream`] reads and writes as tokio's streams do, and [`TokioSegments`](offload_api::TokioSegments) carry it over one. Without it
//!   there are chunks ([`KtlsStream::next_chunk`], [`KtlsStream::send_chunk`]) over any [`SegmentStream`].
//! - `file`: `send_file` and `SharedWrites`.
//! - `lookaside`: `LookasideStream`, whose records an accelerator seals and opens by jobs.
//! - `meter`: `base::cost::Meter` tells where the CPU time went. Without it that costs nothing.
//! - `rustls` (on by default): `connect` and `accept`, which shake hands. Without it keys come from elsewhere ([`KtlsStream::new`]).
//! - `ring` (on by default), `aws-lc-rs`: who seals and opens whole records, and what rustls has of cryptography. With both, ring seals, and
//!   rustls wants to be told (`CryptoProvider::install_default`). With neither, the crate works with its own AEADs alone, and a
//!   configuration of rustls needs a provider of yours.

#![forbid(unsafe_code)]

mod aead;
mod alert;
mod counters;
mod error;
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
pub use counters::{TlsCounters, tls_stat};
pub use error::TlsError;
#[cfg(feature = "rustls")]
pub use handshake::{HandshakeError, Negotiated, accept, connect, traffic_key};
pub use keys::{FixedKeys, KeySchedule, ScheduleError, TrafficKeys, UnsupportedKey};
#[cfg(feature = "lookaside")]
pub use lookaside::{LookasideCounters, LookasideStream, RunLookaside};
#[cfg(feature = "file")]
pub use send_file::{Blocking, FilePieces, InPlace, LentPieces, SendFileError, SharedWrites, WriteCounters, send_file};
pub use stream::KtlsStream;
pub use stream::offload::{NotOffloaded, Offload, Offloaded, Outcome};

pub use offload_api::{Handle, Refused, RxSegment, SegmentStream, TlsKey, TlsSuite, TlsVersion};
pub use offload_base::counters::{CounterSet, Counters};
#[cfg(feature = "rustls")]
pub use rustls;
/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {bytes, offload_api as api, offload_base as base};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
