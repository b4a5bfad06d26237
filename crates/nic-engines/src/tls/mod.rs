//! The TLS engine: contexts for both directions of a connection.
//!
//! - `record`: the parser of record bytes, shared by both directions;
//! - `transmit`, `receive`: the work in each direction.

mod config;
mod counters;
mod receive;
mod record;
mod transmit;

use bytes::BytesMut;
pub use config::TlsEngineConfig;
use core::convert::Infallible;
pub use counters::TlsEngineCounters;
use nic_engine::{
    Context, Engine, EngineDescription, ImageReader, ImageWriter, OutOfStep, ReceivedPayload, StreamEngine,
};
use offload_api::rx::TlsVerdict;
use offload_api::{
    Capabilities, Direction, ResyncMode, TlsCapabilities, TlsContext, TlsContexts, TlsSuite, TlsVersion, Verdict,
};
use offload_base::Seq;
use receive::TlsReceive;
use record::RecordProtection;
use resumable_aead::{Algorithm, Key};
use transmit::TlsTransmit;

/// The TLS engine.
#[derive(Debug)]
pub(crate) struct TlsEngine {
    config: TlsEngineConfig,
}

impl TlsEngine {
    /// Makes an engine with a configuration.
    pub(crate) fn new(config: &TlsEngineConfig) -> TlsEngine {
        TlsEngine { config: config.clone() }
    }
}

/// The evictable state of a context, by direction.
#[derive(Debug)]
pub(crate) enum TlsState {
    Transmit(TlsTransmit),
    Receive(TlsReceive),
}

impl Engine for TlsEngine {
    const NAME: &'static str = TlsContexts::ENGINE;
    type Spec = TlsContext;
    type Command = Infallible;
    type Change = Infallible;
    type State = TlsState;
    type Objects = Key;
    type Counters = TlsEngineCounters;

    fn describe(&self, engine: &mut EngineDescription) {
        engine.info.resync = self.config.resync;
        engine.info.pool = self.config.context_pool;
        engine.info.capabilities = Capabilities::new(KNOWN);
        engine.transmit_resync = Some(self.config.transmit_resync);
        engine.publish = counters::publish;
    }

    fn create(&mut self, direction: Direction, spec: TlsContext) -> Option<(TlsState, Key)> {
        let TlsContext { start, number, key } = spec;
        if !KNOWN.include(&key) {
            return None;
        }
        let expanded = Key::new(algorithm(key.suite())?, key.key()).ok()?;
        let protection = RecordProtection::from_key(&key);
        let state = match direction {
            Direction::Transmit => TlsState::Transmit(TlsTransmit::new(protection)),
            Direction::Receive => {
                let asks = self.config.resync != ResyncMode::CoreHint;
                TlsState::Receive(TlsReceive::new(protection, start, number, asks))
            }
        };
        Some((state, expanded))
    }

    fn save(state: &TlsState, image: &mut ImageWriter<'_>) {
        match state {
            TlsState::Transmit(engine) => {
                image.put_u8(TRANSMIT);
                engine.write(image);
            }
            TlsState::Receive(engine) => {
                image.put_u8(RECEIVE);
                engine.write(image);
            }
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<TlsState> {
        match image.take_u8()? {
            TRANSMIT => TlsTransmit::read(image).map(TlsState::Transmit),
            RECEIVE => TlsReceive::read(image).map(TlsState::Receive),
            _ => None,
        }
    }

    fn question(state: &TlsState) -> Option<Seq> {
        match state {
            TlsState::Receive(engine) => engine.question(),
            TlsState::Transmit(_) => None,
        }
    }

    fn answer(
        &mut self,
        context: Option<Context<'_, TlsEngine>>,
        (header, number): (Seq, Option<u64>),
        counters: &mut TlsEngineCounters,
    ) {
        let of_use = match context {
            Some(Context { state: TlsState::Receive(engine), .. }) => engine.answer(header, number),
            _ => false,
        };
        match (of_use, number) {
            (true, Some(_)) => counters.rx_tls_resync_res_ok += 1,
            _ => counters.rx_tls_resync_res_skip += 1,
        }
    }
}

impl StreamEngine for TlsEngine {
    fn receive(
        context: Context<'_, TlsEngine>,
        payload: &mut ReceivedPayload<'_>,
        counters: &mut TlsEngineCounters,
    ) -> Option<Verdict> {
        let Context { state: TlsState::Receive(engine), held: key, .. } = context else { return None };
        // The position is needed only if another engine wants to see the content, and copying it costs per packet.
        let standing = if payload.is_looked_at() { engine.standing() } else { None };
        let seq = payload.seq();
        let opened = payload.open(|wire, buffer| {
            let received = engine.receive(key, seq, wire, buffer);
            (received.verdict == TlsVerdict::Decrypted, received)
        });
        // An engine below opened the payload already, so the bytes are not records of this layer.
        let Some(received) = opened else {
            payload.show(None);
            return None;
        };
        let content = standing.and_then(|standing| engine.shown(standing, seq, &received, payload.opened()));
        payload.show(content);
        match received.verdict {
            TlsVerdict::Decrypted => {
                counters.rx_tls_decrypted_packets += 1;
                counters.rx_tls_decrypted_bytes += received.walked.body_bytes;
            }
            TlsVerdict::Error => counters.rx_tls_err += 1,
            TlsVerdict::ResyncRequested => counters.rx_tls_resync_req_pkt += 1,
            TlsVerdict::NotDecrypted => {}
        }
        counters.rx_tls_lost += u64::from(received.lost);
        counters.rx_tls_found += u64::from(received.found);
        Some(received.verdict.into())
    }

    fn count_from(context: Context<'_, TlsEngine>, number: u64) -> bool {
        let TlsState::Transmit(engine) = context.state else { return false };
        engine.set_static(number);
        true
    }

    fn begin(context: Context<'_, TlsEngine>, start: Seq) -> bool {
        let TlsState::Transmit(engine) = context.state else { return false };
        engine.set_progress(start);
        true
    }

    fn expects(state: &TlsState, seq: Seq) -> Option<bool> {
        match state {
            TlsState::Transmit(engine) => Some(engine.expects(seq)),
            TlsState::Receive(_) => None,
        }
    }

    fn transmit(context: Context<'_, TlsEngine>, at: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep> {
        let Context { state: TlsState::Transmit(engine), held: key, .. } = context else { return Err(OutOfStep) };
        let walked = engine.encrypt(key, at, bytes, out).map_err(|_| OutOfStep)?;
        Ok(walked.body_bytes)
    }

    fn note_sent(body_bytes: u64, counters: &mut TlsEngineCounters) {
        counters.tx_tls_encrypted_packets += 1;
        counters.tx_tls_encrypted_bytes += body_bytes;
    }
}

fn algorithm(suite: TlsSuite) -> Option<Algorithm> {
    match suite {
        TlsSuite::Aes128Gcm => Some(Algorithm::Aes128Gcm),
        TlsSuite::Aes256Gcm => Some(Algorithm::Aes256Gcm),
        TlsSuite::ChaCha20Poly1305 => Some(Algorithm::ChaCha20Poly1305),
        _ => None,
    }
}

const KNOWN: TlsCapabilities = TlsCapabilities {
    versions: &[TlsVersion::Tls12, TlsVersion::Tls13],
    suites: &[TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305],
};
const TRANSMIT: u8 = 1;
const RECEIVE: u8 = 2;
