//! What a protocol may ask of an offload NIC, and what the NIC tells about a packet: traits and plain types.
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
//! - [`flow`], [`mod@unit`]: the names things go by: flows, device contexts, records and PDUs;
//! - [`tx`], [`rx`]: a packet on its way out and in, with what is asked of or told by the device; [`mark`]: what its engines told; [`datagram`]: a
//!   datagram, with what was asked or told of its packet;
//! - [`fragmentation`]: a packet on its way out, cut into IP fragments;
//! - [`device`]: [`NetDevice`], what a stack sees of a NIC; [`tls`], [`nvme`], [`quic`], [`ipsec`], [`rss`]: its TLS, NVMe/TCP,
//!   QUIC and IPsec faces, and the one that spreads packets over queues; [`record`]: how TLS records are made up;
//! - [`job`]: [`JobQueue`], jobs for engines that work from memory to memory;
//! - [`again`]: when a device that refused for the time being is asked again;
//! - [`source`]: [`RecordSource`] and [`Sealer`], by which a transport keeps encrypted streams alive on its own;
//! - [`stream`]: [`SegmentStream`], what a protocol over TCP sees of a transport; [`socket`]: [`DatagramSocket`], the same over
//!   UDP.
//!
//! Nothing here does any work, except [`fragmentation`], which an IPsec layer and a stack share; and nothing here knows a
//! particular device or transport. Behind feature `tokio` there are adapters: `TokioTimers` are a tokio runtime's timers,
//! `TokioSegments` makes a stream of tokio a [`SegmentStream`], and `TokioDatagrams` a kernel's UDP socket a
//! [`DatagramSocket`]. They are here because protocols need them to run without a device, and none of them is to know another, or a stack, for
//! that.

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

pub use again::AskAgain;
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
    OffloadKind, Policy, Prefix, Protection, SaParams, SaRefused, Selector, Template, UdpEncapsulation,
};
pub use job::{Done, Integrity, Job, JobQueue, JobStatus, Outcome, Way};
pub use key::{Key, KeyBytes};
pub use mark::{ContextEvent, Mark, Marks, PacketMark, Verdict};
pub use nvme::{
    MarkedData, NvmeTcpConfig, NvmeTcpContext, NvmeTcpContexts, NvmeTcpLimits, NvmeTcpStages, PROTECTION_STAGE,
    XTS_STAGE, XtsStage,
};
pub use offload_formats::{FlowKey, Protocol, flow};
pub use quic::{QuicAsk, QuicCipher, QuicContext, QuicContexts, QuicHeaderKey, QuicKey, QuicVerdict};
pub use record::{RecordFormat, TlsSuite, TlsVersion};
pub use refused::Refused;
pub use rss::RssDevice;
pub use rx::{Piece, PieceHome, Placements, RxBuf, RxMeta, RxPacket, RxSegment};
pub use slots::Slots;
pub use socket::{DatagramSocket, SendLimits, SendRefused, SocketEvent};
pub use source::{Lookup, NoRecords, QueuedBytes, RecordSource, SealError, Sealer};
pub use stream::{NextPiece, SegmentStream, SendTurn, SentBytes};
pub use tls::{TlsCapabilities, TlsContext, TlsContexts, TlsKey};
#[cfg(all(feature = "tokio", target_os = "linux"))]
pub use tokio_datagrams::TokioDatagrams;
#[cfg(feature = "tokio")]
pub use tokio_segments::{ByteStream, TokioSegments};
#[cfg(feature = "tokio")]
pub use tokio_timers::TokioTimers;
pub use tx::{DropReason, Header, PacketAsk, Sent, StreamAsk, TxAsk, TxPacket};
pub use typed::TypedContexts;
pub use unit::{Handle, LAYERS, Layer, TxTag, Unit, UnitTag, engines};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
