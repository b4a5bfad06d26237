//! The traits of a NIC's engines, which process packets in the device, with a state of constant size for every flow or
//! association.
//!
//! An engine is a type that creates contexts, saves contexts to host memory and loads saved ones ([`Engine`]), and that
//! processes the bytes of a flow ([`StreamEngine`]), whole packets ([`PacketEngine`]), or jobs from memory to memory
//! ([`JobEngine`]). The device knows engines by number, calls them by handle, and names no engine in its code.
//! `nic_sim::nic_with` adds engines to the built-in ones, and [`Contexts`](offload_api::Contexts) gives protocols
//! access.
//!
//! Stream engines process the payload of one flow in the order of arrival. The engines of a flow are layered: each
//! processes the content of the units of the layer below.
//!
//! A minimal engine removes a mask from all bytes that a flow receives. Without units, this engine never loses its
//! position:
//!
//! ```
//! use core::convert::Infallible;
//! use nic_sim::engine::{
//!     Context, Engine, Engines, ImageReader, ImageWriter, NoCounters, OutOfStep, ReceivedPayload, StreamEngine,
//! };
//! use nic_sim::wire::Port;
//! use nic_sim::{Delays, NicConfig, nic_with};
//! use offload_api::{Direction, FlowKey, Key, Layer, NetDevice, NewContext, Verdict};
//! # use bytes::{Bytes, BytesMut};
//! # use offload_api::{NoRecords, TxAsk, TxPacket};
//! # use offload_base::{Instant, Seq};
//!
//! #[derive(Debug)]
//! struct Unmask;
//!
//! impl Engine for Unmask {
//!     const NAME: &'static str = "unmask";
//!     type Spec = u8;
//!     type Command = Infallible;
//!     type Change = Infallible;
//!     type State = u8;
//!     type Objects = ();
//!     type Counters = NoCounters;
//!
//!     fn create(&mut self, _: Direction, mask: u8) -> Option<(u8, ())> {
//!         Some((mask, ()))
//!     }
//!
//!     fn save(mask: &u8, image: &mut ImageWriter<'_>) {
//!         image.put_u8(*mask);
//!     }
//!
//!     fn load(image: &mut ImageReader<'_>) -> Option<u8> {
//!         image.take_u8()
//!     }
//! }
//!
//! impl StreamEngine for Unmask {
//!     fn receive(at: Context<'_, Unmask>, payload: &mut ReceivedPayload<'_>, _: &mut NoCounters) -> Option<Verdict> {
//!         let opened = payload.open(|wire, buffer| {
//!             buffer.extend(wire.iter().map(|byte| byte ^ *at.state));
//!             (true, ())
//!         });
//!         opened.map(|()| Verdict::Done)
//!     }
//! #   fn count_from(_: Context<'_, Unmask>, _: u64) -> bool { false }
//! #   fn begin(_: Context<'_, Unmask>, _: Seq) -> bool { false }
//! #   fn expects(_: &u8, _: Seq) -> Option<bool> { None }
//! #   fn transmit(
//! #       _: Context<'_, Unmask>, _: Seq, _: &[u8], _: &mut BytesMut,
//! #   ) -> Result<u64, OutOfStep> { Err(OutOfStep) }
//! #   fn note_sent(_: u64, _: &mut NoCounters) {}
//!     // Receives only: the methods for sending are hidden here.
//! }
//!
//! let config = NicConfig { delays: Delays::NONE, ..NicConfig::default() };
//! let (mut device, mut driver) = nic_with(config, |engines: &mut Engines| engines.add_stream(Unmask, 100));
//! // A protocol finds the engine by name, and creates a context for a flow.
//! let flow = FlowKey::tcp("10.0.0.2:5000".parse()?, "10.0.0.1:443".parse()?);
//! let contexts = driver.contexts().expect("there is one from outside");
//! let engine = contexts.engine("unmask").expect("this one").number;
//! let (direction, keys, spec) = (Direction::Receive, vec![Key::Flow(flow, Layer::FIRST)], Box::new(0x20u8));
//! let new = NewContext { engine, direction, flow: Some(flow), keys, spec };
//! let context = contexts.create(new).map_err(|(refused, _)| refused)?;
//! # let now = Instant::ZERO;
//! device.process(now);
//! # let header = [
//! #     255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 0, 69, 0, 0, 46, 0, 0, 64, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
//! #     1, 187, 19, 136, 0, 0, 0, 0, 0, 0, 0, 0, 80, 16, 1, 0, 0, 0, 0, 0,
//! # ];
//! # let ask = TxAsk { checksum: true, ..TxAsk::default() };
//! # let packet = TxPacket { header: header[..].into(), fragments: [b"hEADER"[..].into()].into_iter().collect(), ask };
//! # let (mut far, mut sender) = nic_sim::nic(NicConfig { delays: Delays::NONE, ..NicConfig::default() });
//! # let _sent = sender.transmit(now, packet, &NoRecords);
//! # sender.flush(now);
//! # far.process(now);
//! # let frame = far.poll_frame(now).expect("it leaves");
//! // A segment with "hEADER" arrives.
//! device.receive_frame(now, frame);
//! device.process(now);
//! let packet = driver.receive(now).expect("it came");
//! assert!(packet.frame.ends_with(b"Header"));
//! assert_eq!(packet.meta.marks.for_engine(engine).map(|mark| (mark.context, mark.verdict)), Some((context, Verdict::Done)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Engine`]: contexts of any engine; [`StreamEngine`], [`PacketEngine`], [`JobEngine`]: processing of bytes,
//!   packets and jobs;
//! - [`ReceivedPayload`]: a packet's payload on its way through stream engines; [`Stages`]: further processing of the
//!   data in units;
//! - [`ImageWriter`], [`ImageReader`]: a context's state in host memory;
//! - [`Engines`]: the engines of a NIC; [`hosted`]: the device's interface to them, not needed by authors of engines.
//!
//! Two tests contain larger engines, with everything that an offload must handle:
//! `crates/offload-testbed/tests/all/foreign.rs` (units that the NIC follows, loses and finds again in both directions,
//! and the protocol above) and `crates/nic-sim/tests/all/foreign.rs` (whole packets).

#![forbid(unsafe_code)]

mod engine;
mod engines;
pub mod hosted;
mod image;
mod job;
mod packet;
mod payload;
mod slab;
mod stage;
mod stream;

pub use engine::{Context, Engine, EngineCounters, NoCounters};
pub use engines::Engines;
pub use image::{ContextImage, ImageReader, ImageWriter};
pub use job::JobEngine;
pub use nic_rings::{ContextCounters, EngineDescription, TransmitResync};
pub use offload_formats::Headers;
pub use packet::{EgressClaim, FrameLookup, InnerPosition, OpenedFrame, PacketEngine};
pub use payload::{ByteRanges, ReceivedPayload, UnitContent};
pub use stage::{
    KeyPlace, LentObject, NamedStage, Stage, StageKeys, StageMakers, StageRun, StageState, StageStates, Stages,
};
pub use stream::{OutOfStep, StreamEngine};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
