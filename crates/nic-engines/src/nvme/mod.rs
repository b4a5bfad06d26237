//! The NVMe/TCP engines. The receive engine follows PDUs as their bytes arrive, places data into the buffers of
//! commands and checks digests. The transmit engine computes digests.
//!
//! - `framing`: the layout of a PDU, from its first bytes;
//! - `cursor`: a position in a PDU;
//! - `receive`: the stream: gaps, searching, tracking, resync requests;
//! - `placement`: the buffers of commands;
//! - `open_block`: a cipher block split over packets;
//! - `transmit`: digests of sent data, and stages for sent data;
//! - `sealing`: division of sent data into blocks.
//!
//! Source: Pismenny et al., "Autonomous NIC Offloads", ASPLOS 2021, and the ULP DDP series proposed for Linux.

mod config;
mod counters;
mod cursor;
mod framing;
mod open_block;
mod placement;
mod receive;
mod sealing;
#[cfg(test)]
mod through_stages;
mod transmit;

use bytes::BytesMut;
pub use config::NvmeTcpEngineConfig;
use core::convert::Infallible;
use core::ops::Range;
pub use counters::NvmeTcpCounters;
use nic_engine::{
    Context, Engine, EngineDescription, ImageReader, ImageWriter, OutOfStep, ReceivedPayload, StageKeys, StageMakers,
    Stages, StreamEngine, TransmitResync,
};
use nic_rings::packet::MAX_PIECES;
use offload_api::rx::NvmeVerdict;
use offload_api::{
    Capabilities, Direction, Handle, NvmeTcpContext, NvmeTcpContexts, NvmeTcpLimits, NvmeTcpStages, Piece, Verdict,
};
use offload_base::Seq;
use placement::Placement;
use receive::{NvmeReceive, ReceivedPdus};
use transmit::NvmeTransmit;

/// The NVMe/TCP engine.
#[derive(Debug)]
pub(crate) struct NvmeTcpEngine {
    limits: NvmeTcpLimits,
    transmit_resync: TransmitResync,
    stages: StageMakers,
}

impl NvmeTcpEngine {
    /// Makes an engine with a configuration.
    pub(crate) fn new(config: &NvmeTcpEngineConfig) -> NvmeTcpEngine {
        let limits = NvmeTcpLimits { max_pieces: MAX_PIECES, io_threshold: config.io_threshold };
        NvmeTcpEngine { limits, transmit_resync: config.transmit_resync, stages: StageMakers::default() }
    }
}

/// The evictable state of a context, by direction.
#[derive(Debug)]
pub(crate) enum NvmeState {
    Transmit(NvmeTransmit),
    Receive(NvmeReceive),
}

impl Engine for NvmeTcpEngine {
    const NAME: &'static str = NvmeTcpContexts::ENGINE;
    type Spec = NvmeTcpContext;
    type Command = NvmeTcpStages;
    type Change = Infallible;
    type State = NvmeState;
    /// Buffers of commands, for receive contexts. Stages, for both directions.
    type Objects = Placement;
    type Counters = NvmeTcpCounters;

    fn take_stages(&mut self, stages: &StageMakers) {
        self.stages = stages.clone();
    }

    fn stage_keys(held: &mut Placement) -> Option<&mut StageKeys> {
        Some(held.keys())
    }

    fn command(context: Context<'_, NvmeTcpEngine>, stages: NvmeTcpStages) {
        // Stages of a receive context arrive with its buffers.
        // A receive context ignores the command.
        if let NvmeState::Transmit(_) = context.state {
            context.held.seal_with(stages);
        }
    }

    fn describe(&self, engine: &mut EngineDescription) {
        engine.info.capabilities = Capabilities::new(self.limits);
        engine.transmit_resync = Some(self.transmit_resync);
        engine.publish = counters::publish;
        engine.info.looks_ahead = Piece::BLOCK as usize - 1;
    }

    fn create(&mut self, _: Direction, spec: NvmeTcpContext) -> Option<(NvmeState, Placement)> {
        let state = match spec {
            NvmeTcpContext::Receive { start, config } => NvmeState::Receive(NvmeReceive::new(config, start)),
            NvmeTcpContext::Transmit => NvmeState::Transmit(NvmeTransmit::default()),
        };
        Some((state, Placement::with(self.stages.clone())))
    }

    fn save(state: &NvmeState, image: &mut ImageWriter<'_>) {
        match state {
            NvmeState::Transmit(engine) => {
                image.put_u8(TRANSMIT);
                engine.write(image);
            }
            NvmeState::Receive(engine) => {
                image.put_u8(RECEIVE);
                engine.write(image);
            }
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<NvmeState> {
        match image.take_u8()? {
            TRANSMIT => NvmeTransmit::read(image).map(NvmeState::Transmit),
            RECEIVE => NvmeReceive::read(image).map(NvmeState::Receive),
            _ => None,
        }
    }

    fn question(state: &NvmeState) -> Option<Seq> {
        match state {
            NvmeState::Receive(engine) => engine.question(),
            NvmeState::Transmit(_) => None,
        }
    }

    fn answer(
        &mut self,
        context: Option<Context<'_, NvmeTcpEngine>>,
        (header, number): (Seq, Option<u64>),
        counters: &mut NvmeTcpCounters,
    ) {
        if let Some(Context { state: NvmeState::Receive(engine), .. }) = context {
            counters.rx_nvmeotcp_resync += u64::from(engine.answer(header, number.is_some()));
        }
    }

    fn place(held: &mut Placement, command: u64, pieces: Vec<Piece>, stages: Option<NvmeTcpStages>) {
        // Command identifiers have 16 bits, so a larger number matches no command.
        if let Ok(command) = u16::try_from(command) {
            held.insert(command, pieces, stages);
        }
    }

    fn unplace(held: &mut Placement, command: u64) {
        if let Ok(command) = u16::try_from(command) {
            held.remove(command);
        }
    }
}

impl StreamEngine for NvmeTcpEngine {
    const COUNTS_UNITS: bool = false;

    fn receive(
        context: Context<'_, NvmeTcpEngine>,
        payload: &mut ReceivedPayload<'_>,
        counters: &mut NvmeTcpCounters,
    ) -> Option<Verdict> {
        let Context { state: NvmeState::Receive(engine), held: placement, .. } = context else { return None };
        let seq = payload.seq();
        let received = match payload.content() {
            None => engine.receive(seq, payload.wire(), placement),
            Some(content) if payload.is_opened() => {
                engine.receive_content(seq, &content.parts, payload.opened(), placement)
            }
            // The host gets the packet undecrypted, so no data are placed.
            Some(content) => engine.pass_over(content, payload.end(), payload.opened()),
        };
        let ReceivedPdus { verdict, placed, lost } = received;
        // `lead` bytes were counted by no earlier packet, because they were placed only now.
        counters.rx_nvmeotcp_checked += u64::from(verdict == NvmeVerdict::Good);
        counters.rx_nvmeotcp_drop += u64::from(lost);
        counters.rx_nvmeotcp_packets += u64::from(!placed.is_empty());
        counters.rx_nvmeotcp_bytes += placed.iter().map(|(_, piece)| (piece.lead() + piece.len()) as u64).sum::<u64>();
        counters.rx_nvmeotcp_opened_bytes += placed.iter().map(|(_, piece)| length(piece.opened())).sum::<u64>();
        payload.place(placed);
        match verdict {
            NvmeVerdict::NotChecked => None,
            NvmeVerdict::Good => Some(Verdict::Done),
            NvmeVerdict::ResyncRequested => Some(Verdict::Asks),
        }
    }

    fn count_from(_: Context<'_, NvmeTcpEngine>, _: u64) -> bool {
        false
    }

    fn begin(context: Context<'_, NvmeTcpEngine>, start: Seq) -> bool {
        let NvmeState::Transmit(engine) = context.state else { return false };
        engine.set_progress(start);
        true
    }

    fn expects(state: &NvmeState, seq: Seq) -> Option<bool> {
        match state {
            NvmeState::Transmit(engine) => Some(engine.expects(seq)),
            NvmeState::Receive(_) => None,
        }
    }

    fn transmit(
        context: Context<'_, NvmeTcpEngine>,
        at: Seq,
        bytes: &[u8],
        out: &mut BytesMut,
    ) -> Result<u64, OutOfStep> {
        let NvmeState::Transmit(engine) = context.state else { return Err(OutOfStep) };
        Ok(engine.fill(at, bytes, out, context.held.seals(), None)?.digests)
    }

    fn keys_to_receive(
        context: Context<'_, NvmeTcpEngine>,
        payload: &ReceivedPayload<'_>,
        key: &mut dyn FnMut(Handle),
    ) {
        let Context { state: NvmeState::Receive(engine), held: placement, .. } = context else { return };
        if placement.keys().is_empty() {
            return;
        }
        let command = &mut |command| placement.keys_of(command).for_each(&mut *key);
        match payload.content() {
            None => engine.commands(payload.seq(), payload.wire(), command),
            Some(content) if payload.is_opened() => {
                engine.commands_in_content(payload.seq(), &content.parts, payload.opened(), command);
            }
            Some(_) => {}
        }
    }

    fn keys_to_transmit(context: Context<'_, NvmeTcpEngine>, bytes: &[u8], key: &mut dyn FnMut(Handle)) {
        let NvmeState::Transmit(engine) = context.state else { return };
        let seals = context.held.seals();
        // Without stages no PDU is marked, and the look-up would cost time per packet.
        if !seals.is_empty() {
            engine.stages_in(bytes, &mut |stages| {
                seals.get(&stages).into_iter().flat_map(Stages::keys).for_each(&mut *key)
            });
        }
    }

    fn works_on_whole_packets(context: &Context<'_, NvmeTcpEngine>) -> bool {
        !context.held.seals().is_empty()
    }

    fn transmit_whole(
        context: Context<'_, NvmeTcpEngine>,
        at: Seq,
        bytes: &[u8],
        ahead: &[u8],
        out: &mut BytesMut,
        counters: Option<&mut NvmeTcpCounters>,
    ) -> Result<(), OutOfStep> {
        let NvmeState::Transmit(engine) = context.state else { return Err(OutOfStep) };
        let filled = engine.fill(at, bytes, out, context.held.seals(), Some(ahead))?;
        if let Some(counters) = counters {
            counters.tx_nvmeotcp_digests += filled.digests;
            counters.tx_nvmeotcp_sealed_bytes += filled.sealed;
        }
        Ok(())
    }

    fn note_sent(digests: u64, counters: &mut NvmeTcpCounters) {
        counters.tx_nvmeotcp_digests += digests;
    }
}

fn length(range: Range<u64>) -> u64 {
    range.end - range.start
}

const TRANSMIT: u8 = 1;
const RECEIVE: u8 = 2;
