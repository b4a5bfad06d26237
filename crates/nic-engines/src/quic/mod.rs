//! QUIC packets with short headers (RFC 9001 5): sealed on transmit, opened on receive.
//!
//! A connection has one context per direction, for all its paths and connection IDs. The state contains the packet
//! numbers of the paths; the held part contains keys and the path of each connection ID.
//!
//! - `transmit`, `receive`: the work in each direction; `paths`: packet numbers.
//!
//! Invariants: no number of a path is sealed twice; a number counts as opened only after its tag has been verified; a
//! packet that is not opened is unchanged.

mod config;
mod counters;
mod paths;
mod receive;
mod transmit;

use bytes::BytesMut;
pub use config::QuicEngineConfig;
pub use counters::QuicCounters;
use nic_engine::{Context, Engine, FrameLookup, ImageReader, ImageWriter, OpenedFrame, PacketEngine};
use offload_api::quic::{QuicCommand, QuicContext, QuicPort};
use offload_api::{Direction, KeyBytes, PacketAsk, QuicContexts, QuicKey, TxPacket};
use offload_base::QuickHash;
use offload_formats::Headers;
use offload_quic::{HeaderKey, PacketKey};
use paths::PathNumbers;
use receive::Seen;
use std::collections::HashMap;
use transmit::DatagramSealer;

/// The QUIC engine.
#[derive(Debug, Default)]
pub(crate) struct QuicEngine {
    /// Length of connection IDs, by local port.
    ports: HashMap<u16, u8, QuickHash>,
}

/// The evictable state of a connection in one direction.
#[derive(Debug)]
pub(crate) struct QuicState {
    direction: Direction,
    paths: PathNumbers,
}

/// The constant part of a context.
#[derive(Debug)]
pub(crate) struct QuicHeld {
    header: HeaderKey,
    /// Keys by key phase.
    keys: [Option<QuicKeySlot>; 2],
    /// Path of each destination connection ID that the host chose.
    cids: HashMap<KeyBytes, u32, QuickHash>,
}

/// A key and its generation.
#[derive(Debug)]
struct QuicKeySlot {
    number: u64,
    key: PacketKey,
}

impl Engine for QuicEngine {
    const NAME: &'static str = QuicContexts::ENGINE;
    type Spec = QuicContext;
    type Command = QuicCommand;
    type Change = QuicPort;
    type State = QuicState;
    type Objects = QuicHeld;
    type Counters = QuicCounters;

    fn create(&mut self, direction: Direction, context: QuicContext) -> Option<(QuicState, QuicHeld)> {
        let QuicContext { header, generation, key } = context;
        // A context with two ciphers could not process any packet.
        if header.cipher() != key.cipher() {
            return None;
        }
        let mut held = QuicHeld { header: HeaderKey::new(&header), keys: [None, None], cids: HashMap::default() };
        held.set_key(generation, &key);
        Some((QuicState { direction, paths: PathNumbers::default() }, held))
    }

    fn save(state: &QuicState, image: &mut ImageWriter<'_>) {
        image.put_u8(u8::from(state.direction == Direction::Receive));
        state.paths.save(image);
    }

    fn load(image: &mut ImageReader<'_>) -> Option<QuicState> {
        let direction = if image.take_u8()? == 0 { Direction::Transmit } else { Direction::Receive };
        Some(QuicState { direction, paths: PathNumbers::load(image)? })
    }

    fn command(Context { state, held, .. }: Context<'_, QuicEngine>, command: QuicCommand) {
        match command {
            QuicCommand::SetKey { generation, key } => held.set_key(generation, &key),
            QuicCommand::Learn { key, path, largest } => {
                held.cids.insert(key, path);
                state.paths.learn(path, largest);
            }
            QuicCommand::Forget { key } => {
                // The path is forgotten with its last connection ID; another ID may still lead to the same path.
                if let Some(path) = held.cids.remove(&key)
                    && held.cids.values().all(|of| *of != path)
                {
                    state.paths.forget(path);
                }
            }
        }
    }

    fn change(&mut self, QuicPort { port, cid_bytes }: QuicPort) {
        match cid_bytes {
            Some(bytes) => self.ports.insert(port, bytes),
            None => self.ports.remove(&port),
        };
    }

    fn forget(&mut self) {
        *self = QuicEngine::default();
    }
}

impl PacketEngine for QuicEngine {
    type Facts = Seen;
    type Encapsulation = DatagramSealer;

    fn look(&self, frame: &[u8], headers: &Headers) -> FrameLookup<Seen> {
        match self.find(frame, headers) {
            Some((key, seen)) => FrameLookup::Key(key, seen),
            None => FrameLookup::Nothing,
        }
    }

    fn open(
        &mut self,
        context: Context<'_, QuicEngine>,
        frame: &[u8],
        seen: &Seen,
        counters: &mut QuicCounters,
    ) -> OpenedFrame {
        receive::open(context, frame, seen, counters)
    }

    fn begin(
        &mut self,
        context: Context<'_, QuicEngine>,
        ask: PacketAsk,
        packet: &mut TxPacket,
        counters: &mut QuicCounters,
    ) -> Option<DatagramSealer> {
        DatagramSealer::begin(&context, ask.into(), packet).map_err(|why| why.count(counters)).ok()
    }

    fn wrap(
        &mut self,
        context: Context<'_, QuicEngine>,
        sealing: &mut DatagramSealer,
        plain: &[u8],
        _longest: usize,
        counters: &mut QuicCounters,
    ) -> Option<BytesMut> {
        sealing.seal(context, plain, counters).map_err(|why| why.count(counters)).ok()
    }

    fn note_missing(counters: &mut QuicCounters) -> bool {
        transmit::QuicDrop::Context.count(counters);
        true
    }
}

impl QuicHeld {
    fn set_key(&mut self, generation: u64, key: &QuicKey) {
        let slot = QuicKeySlot { number: generation, key: PacketKey::new(key) };
        self.keys[phase_of(generation)] = Some(slot);
    }
}

/// Returns the key phase of a generation: 0 first, then alternating (RFC 9001 6.1).
fn phase_of(generation: u64) -> usize {
    (generation & 1) as usize
}
