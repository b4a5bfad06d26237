//! Traits and plain types between protocols, transports and the drivers of offload NICs: requests to a device, and its
//! verdicts on packets.
//!
//! ```text
//!  protocol (TLS, NVMe/TCP)
//!    |  SegmentStream            ^  Sealer: makes units safe to send
//!    v                           |  when no device will
//!  transport (TCP)
//!    |  NetDevice                ^  RecordSource: the units that are
//!    v                           |  not acknowledged yet
//!  driver of a NIC
//! ```
//!
//! - [`flow`], [`mod@unit`]: identifiers of flows, device contexts, records and PDUs;
//! - [`tx`], [`rx`]: outgoing and received packets with the requests to the device and its verdicts; [`mark`]: verdicts
//!   of the engines; [`datagram`]: UDP datagrams with the same metadata;
//! - [`fragmentation`]: cuts an outgoing packet into IP fragments;
//! - [`device`]: [`NetDevice`], the interface of a NIC to a stack; [`tls`], [`nvme`], [`quic`], [`ipsec`], [`rss`]: the
//!   interfaces for TLS, NVMe/TCP, QUIC, IPsec and receive-side scaling; [`record`]: the framing of TLS records;
//! - [`job`]: [`JobQueue`], jobs for engines that work from memory to memory;
//! - [`again`]: backoff after a device has refused a context for lack of space;
//! - [`source`]: [`RecordSource`] and [`Sealer`], with which a transport retransmits encrypted streams without the
//!   application;
//! - [`stream`]: [`SegmentStream`], the interface of a TCP transport to a protocol; [`socket`]: [`DatagramSocket`], the
//!   same for UDP.
//!
//! This crate contains interfaces and no implementations, except [`fragmentation`], which the IPsec layer and the stack
//! share. No item depends on a particular device or transport.
//!
//! Feature `tokio` adds adapters for programs without a device: `TokioTimers` are the timers of a tokio runtime,
//! `TokioSegments` turns a tokio stream into a [`SegmentStream`], and `TokioDatagrams` turns a kernel UDP socket into a
//! [`DatagramSocket`]. The adapters are in this crate because every protocol needs them and protocols must not depend
//! on each other.

#![forbid(unsafe_code)]

pub mod again;
pub mod contexts;
pub mod datagram;
pub mod device;
mod direction;
#[cfg(feature = "mock")]
mod event_log;
pub mod fragmentation;
pub mod ipsec;
pub mod job;
pub mod key;
pub mod mark;
#[cfg(feature = "mock")]
pub mod mock;
pub mod nvme;
pub mod quic;
pub mod record;
mod refused;
pub mod rss;
pub mod rx;
pub mod slots;
pub mod socket;
pub mod source;
pub mod stream;
pub mod tls;
#[cfg(all(feature = "tokio", target_os = "linux"))]
mod tokio_datagrams;
#[cfg(feature = "tokio")]
mod tokio_segments;
#[cfg(feature = "tokio")]
mod tokio_timers;
pub mod tx;
mod typed;
pub mod unit;

pub use again::ContextBackoff;
pub use contexts::{
    Capabilities, CommandRing, ContextNews, Contexts, EngineInfo, NewContext, ResyncMode, Spec, StageSpec,
};
pub use datagram::{Datagram, EcnCodepoint, TxDatagram};
pub use device::{DeviceEvent, NetDevice, PathCaps};
pub use direction::Direction;
#[cfg(feature = "mock")]
pub use event_log::EventLog;
pub use ipsec::{
    Action, DontFragment, EspAsk, EspKey, EspMode, EspSuite, EspVerdict, IpsecDevice, Lifetime, Limit, Limits,
    OffloadKind, Policy, Prefix, Protection, SaParams, SaRefusal, Selector, Template, UdpEncapsulation,
};
pub use job::{CompletedJob, Integrity, Job, JobOutcome, JobQueue, JobStatus, Way};
pub use key::{Key, KeyBytes};
pub use mark::{ContextEvent, Mark, Marks, PacketMark, Verdict};
pub use nvme::{
    MarkedData, NvmeTcpConfig, NvmeTcpContext, NvmeTcpContexts, NvmeTcpLimits, NvmeTcpStages, PROTECTION_STAGE,
    XTS_STAGE, XtsStage,
};
pub use offload_formats::{FlowKey, Protocol, flow};
pub use quic::{QuicAsk, QuicCipher, QuicContext, QuicContexts, QuicHeaderKey, QuicKey, QuicVerdict};
pub use record::{RecordFormat, TlsSuite, TlsVersion};
pub use refused::ContextRefusal;
pub use rss::RssDevice;
pub use rx::{Piece, PieceHome, Placements, RxBuf, RxMeta, RxPacket, RxSegment};
pub use slots::Slots;
pub use socket::{DatagramSocket, SendLimits, SendRefusal, SocketEvent};
pub use source::{Lookup, NoRecords, QueuedBytes, RecordSource, SealError, Sealer};
pub use stream::{NextPiece, SegmentStream, SendProgress, SentBytes};
pub use tls::{TlsCapabilities, TlsContext, TlsContexts, TlsKey};
#[cfg(all(feature = "tokio", target_os = "linux"))]
pub use tokio_datagrams::TokioDatagrams;
#[cfg(feature = "tokio")]
pub use tokio_segments::{ByteStream, TokioSegments};
#[cfg(feature = "tokio")]
pub use tokio_timers::TokioTimers;
pub use tx::{DropReason, Header, PacketAsk, StreamAsk, TransmitResult, TxAsk, TxPacket};
pub use typed::TypedContexts;
pub use unit::{Handle, LAYERS, Layer, TxTag, Unit, UnitTag, engines};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
