//! Security associations and policies in the device (RFC 4301 4.4).
//!
//! An SA is a context. Its state contains sequence numbers and usage counts; the held part contains parameters and
//! keys. Policies and events belong to the engine as a whole.
//!
//! - `transmit`, `receive`: the work in each direction.
//!
//! Invariants: a handle finds its SA only while that SA lives; a look-up takes the same time for any number of SAs;
//! each event of an SA is queued once, and waits until the host can be told.

mod config;
mod counters;
mod receive;
mod transmit;

use bytes::BytesMut;
pub use config::EspEngineConfig;
pub use counters::EspCounters;
use nic_engine::{
    Context, EgressClaim, Engine, EngineDescription, FrameLookup, ImageReader, ImageWriter, OpenedFrame, PacketEngine,
};
use offload_api::KeyBytes;
use offload_api::ipsec::{DeviceSaEvent, Packet, PolicyChange, SaCommand};
use offload_api::{CommandRing, ContextEvent, Direction, Handle, Lifetime, OffloadKind, PacketAsk, SaParams, TxPacket};
use offload_base::Instant;
use offload_esp::{EspAt, EspCipher, LifetimeMeter, ReachedLimit, ReplayWindow, SelectorTable, SendNumber};
use offload_formats::IpView;
use offload_formats::frame::{ETHERNET_BYTES, ip_packet};
use offload_formats::{Headers, IpHeaders};
use std::collections::VecDeque;
use transmit::{EspDrop, EspWrapper};

/// The ESP engine.
#[derive(Debug, Default)]
pub(crate) struct EspEngine {
    policies: SelectorTable<Handle>,
    /// Events that the host has not received yet.
    events: VecDeque<ContextEvent>,
}

/// The evictable state of an SA.
#[derive(Debug)]
pub(crate) struct SaState {
    numbers: SequenceNumbers,
    /// Bytes and packets; the host counts time.
    meter: LifetimeMeter,
    exhaustion_told: bool,
}

/// The constant part of an SA.
#[derive(Debug)]
pub(crate) struct SaHeld {
    params: SaParams,
    cipher: EspCipher,
    /// A replay window too large for the context's state. It is a separate buffer, as keys are.
    wide: Option<ReplayWindow>,
}

/// The sequence numbers of an SA.
#[derive(Debug)]
pub(crate) enum SequenceNumbers {
    Send(SendNumber),
    /// Crypto offload uses the window only to restore the upper half of a number and to decide about joining.
    Receive(ReplayWindow),
    /// The window is in the held part.
    ReceiveWide,
}

impl Engine for EspEngine {
    const NAME: &'static str = "esp";
    type Spec = SaParams;
    type Command = SaCommand;
    type Change = PolicyChange;
    type State = SaState;
    type Objects = SaHeld;
    type Counters = EspCounters;

    fn create(&mut self, _: Direction, params: SaParams) -> Option<(SaState, SaHeld)> {
        let SaParams { replay_window: size, esn, last_number: top, .. } = params;
        let (numbers, wide) = match (params.direction, params.offload) {
            (Direction::Transmit, _) => (SequenceNumbers::Send(SendNumber::new(top, esn)), None),
            // The device cannot know which numbers arrived before the SA was offloaded, and the host checks every
            // number anyway.
            (Direction::Receive, OffloadKind::Packet) => {
                let window = ReplayWindow::without_history(size, esn, top);
                if size > MAX_REMEMBERED {
                    (SequenceNumbers::ReceiveWide, Some(window))
                } else {
                    (SequenceNumbers::Receive(window), None)
                }
            }
            (Direction::Receive, OffloadKind::Crypto | OffloadKind::None) => {
                (SequenceNumbers::Receive(ReplayWindow::remembering(size, MAX_REMEMBERED, esn, top)), None)
            }
        };
        let (cipher, meter) = (EspCipher::new(&params), LifetimeMeter::new(Instant::ZERO, untimed(params.lifetime)));
        Some((SaState { numbers, meter, exhaustion_told: false }, SaHeld { params, cipher, wide }))
    }

    fn describe(&self, engine: &mut EngineDescription) {
        // Commands share the ring with packets, so that a packet after `create` finds its SA.
        engine.info.ring = CommandRing::Send;
        engine.publish = |of, visit| visit("tx_ipsec_refused", of.not_wrapped);
    }

    fn save(state: &SaState, image: &mut ImageWriter<'_>) {
        image.put_u8(u8::from(state.exhaustion_told));
        image.put(&state.meter.save());
        match &state.numbers {
            SequenceNumbers::Send(numbers) => {
                image.put_u8(SEND);
                image.put_u64(numbers.last());
                image.put_u8(u8::from(numbers.is_extended()));
            }
            SequenceNumbers::Receive(window) => {
                image.put_u8(RECEIVE);
                let mut bytes = Vec::with_capacity(ReplayWindow::saved_len(MAX_REMEMBERED));
                window.save(&mut bytes);
                image.put(&bytes);
            }
            SequenceNumbers::ReceiveWide => image.put_u8(RECEIVE_WIDE),
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<SaState> {
        let (exhaustion_told, meter) = (image.take_u8()? != 0, LifetimeMeter::restore(&image.take()?));
        let numbers = match image.take_u8()? {
            SEND => SequenceNumbers::Send(SendNumber::new(image.take_u64()?, image.take_u8()? != 0)),
            RECEIVE => SequenceNumbers::Receive(ReplayWindow::restore(image.rest())?.0),
            RECEIVE_WIDE => SequenceNumbers::ReceiveWide,
            _ => return None,
        };
        Some(SaState { numbers, meter, exhaustion_told })
    }

    fn command(Context { state, .. }: Context<'_, EspEngine>, command: SaCommand) {
        match command {
            SaCommand::Renew(lifetime) => state.meter.renew(Instant::ZERO, untimed(lifetime)),
            SaCommand::GoOnAfter(last) => {
                if let SequenceNumbers::Send(numbers) = &mut state.numbers {
                    numbers.go_on_after(last);
                }
            }
        }
    }

    fn change(&mut self, change: PolicyChange) {
        match change {
            PolicyChange::Set { selector, rank, sa } => {
                self.policies.replace(selector, rank, sa);
            }
            PolicyChange::Remove { selector, rank } => {
                self.policies.remove(&selector, rank);
            }
        }
    }

    fn pop_event(&mut self) -> Option<ContextEvent> {
        self.events.pop_front()
    }

    fn forget(&mut self) {
        *self = EspEngine::default();
    }
}

impl PacketEngine for EspEngine {
    type Facts = EspAt;
    type Encapsulation = EspWrapper;

    fn look(&self, frame: &[u8], headers: &Headers) -> FrameLookup<EspAt> {
        receive::look(frame, headers)
    }

    fn key_of_first(packet: &[u8], headers: &IpHeaders) -> Option<KeyBytes> {
        receive::key_of_first(packet, headers)
    }

    fn open(
        &mut self,
        sa: Context<'_, EspEngine>,
        frame: &[u8],
        at: &EspAt,
        counters: &mut EspCounters,
    ) -> OpenedFrame {
        receive::open(self, sa, frame, at, counters)
    }

    fn note_fragment(counters: &mut EspCounters) {
        counters.ipsec_rx_fragments += 1;
    }

    fn claim(&self, frame: &[u8], headers: &Headers) -> EgressClaim {
        if self.policies.is_empty() {
            return EgressClaim::Nobody;
        }
        // Packets with a VLAN tag belong to another network than the host's policies.
        let at_home = headers.network().is_some_and(|(_, at)| at == ETHERNET_BYTES);
        let packet = ip_packet(frame).filter(|_| at_home);
        let Some((packet, view)) = packet.and_then(|packet| Some((packet, IpView::parse_headers(packet)?))) else {
            return EgressClaim::Nobody;
        };
        let selectors = Packet::from_view(&view, packet);
        // A fragment may belong to a policy with ports that it does not show. The device then must not send it in the
        // clear.
        match self.find_policy(&selectors) {
            Some(sa) => EgressClaim::Context(sa),
            None if view.may_hide_ports() && self.policies.asks_for_ports(&selectors) => EgressClaim::Unclear,
            None => EgressClaim::Nobody,
        }
    }

    fn begin_claimed(
        &mut self,
        sa: Context<'_, EspEngine>,
        frame: &[u8],
        counters: &mut EspCounters,
    ) -> Option<EspWrapper> {
        EspWrapper::for_frame(&sa.held.params, frame).map_err(|why| why.count(counters)).ok()
    }

    fn begin(
        &mut self,
        sa: Context<'_, EspEngine>,
        ask: PacketAsk,
        packet: &mut TxPacket,
        counters: &mut EspCounters,
    ) -> Option<EspWrapper> {
        EspWrapper::new(self, &sa.held.params, ask, packet).map_err(|why| why.count(counters)).ok()
    }

    fn wrap(
        &mut self,
        sa: Context<'_, EspEngine>,
        wrapper: &mut EspWrapper,
        plain: &[u8],
        longest: usize,
        counters: &mut EspCounters,
    ) -> Option<BytesMut> {
        let frame = wrapper.wrap(self, sa, plain, longest).map_err(|why| why.count(counters)).ok()?;
        counters.ipsec_tx_pkts += 1;
        counters.ipsec_tx_bytes += frame.len() as u64;
        Some(frame)
    }

    fn note_missing(counters: &mut EspCounters) -> bool {
        EspDrop::NoState.count(counters);
        true
    }
}

impl EspEngine {
    /// Returns the SA of the first policy that matches a packet.
    fn find_policy(&self, packet: &Packet) -> Option<Handle> {
        self.policies.find(packet).copied()
    }

    /// Counts a packet with `number` against an SA with numbers and lifetime managed by the device.
    fn spend(&mut self, sa: &mut Context<'_, EspEngine>, before: u64, number: u64, bytes: u64) {
        let reached = sa.state.meter.spend(1, bytes);
        // A window that jumps far may cross 2^31 and 2^32 at once; only the last crossing is reported.
        let crossed = sa.held.params.esn && number > before && before >> 31 != number >> 31;
        match reached {
            Some(ReachedLimit::Soft(limit)) => self.tell(DeviceSaEvent::SoftLimit(sa.handle, limit)),
            Some(ReachedLimit::Hard(limit)) => self.tell(DeviceSaEvent::HardLimit(sa.handle, limit)),
            None => {}
        }
        if crossed {
            self.tell(DeviceSaEvent::Crossed(sa.handle, number));
        }
    }

    /// Reports once that all numbers of an SA are used.
    fn note_exhausted(&mut self, sa: &mut Context<'_, EspEngine>) {
        if !core::mem::replace(&mut sa.state.exhaustion_told, true) {
            self.tell(DeviceSaEvent::SequenceExhausted(sa.handle));
        }
    }

    fn tell(&mut self, event: DeviceSaEvent) {
        self.events.extend(event.to_context_event());
    }
}

impl SaHeld {
    /// Tests whether the SA uses packet offload, so that the device does all of its work.
    fn is_whole(&self) -> bool {
        self.params.offload == OffloadKind::Packet
    }
}

/// Removes the time limits, because the device has no clock.
fn untimed(mut lifetime: Lifetime) -> Lifetime {
    lifetime.soft.time = None;
    lifetime.hard.time = None;
    lifetime
}

/// Maximum replay window in the context's state; larger windows are held outside.
const MAX_REMEMBERED: u32 = 256;

const SEND: u8 = 1;
const RECEIVE: u8 = 2;
const RECEIVE_WIDE: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use nic_engine::ContextImage;
    use offload_api::Limits;
    use proptest::prelude::*;

    /// Returns a trace of the state: numbers given or accepted, and events reported.
    fn course(state: &mut SaState, steps: &[(i16, u16)]) -> Vec<String> {
        let step = |(step, bytes): &(i16, u16)| {
            let told = state.meter.spend(1, (*bytes).into());
            let number = match &mut state.numbers {
                SequenceNumbers::Send(numbers) => {
                    let number = numbers.peek(1);
                    number.iter().for_each(|_| numbers.take(1));
                    number
                }
                SequenceNumbers::Receive(window) => {
                    let number = window.top().saturating_add_signed((*step).into());
                    let whole = window.whole(number as u32).ok();
                    whole.filter(|number| window.accept(*number))
                }
                SequenceNumbers::ReceiveWide => unreachable!("no state here refers to its numbers"),
            };
            format!("{number:?} {told:?} {}", state.meter.is_dead())
        };
        steps.iter().map(step).collect()
    }

    proptest! {
        #[test]
        fn an_sa_continues_after_its_return_from_host_memory(
            before in prop::collection::vec((-400i16..400, any::<u16>()), 0..40),
            after in prop::collection::vec((-400i16..400, any::<u16>()), 1..40),
            (sends, esn, is_whole) in any::<(bool, bool, bool)>(),
            top in prop::sample::select(vec![0, 1, 300, 0x7fff_ffff, 0xffff_fff0]),
            size in prop::sample::select(vec![32u32, 64, 256, 4096]),
            [soft, hard] in any::<[Option<u32>; 2]>(),
            packets in prop::option::of(1u64..60),
        ) {
            let state = || {
                let numbers = match (sends, is_whole) {
                    (true, _) => SequenceNumbers::Send(SendNumber::new(top, esn)),
                    (false, true) => SequenceNumbers::Receive(ReplayWindow::without_history(size.min(256), esn, top)),
                    (false, false) => SequenceNumbers::Receive(ReplayWindow::remembering(size, MAX_REMEMBERED, esn, top)),
                };
                let soft = Limits { bytes: soft.map(u64::from), ..Limits::default() };
                let hard = Limits { bytes: hard.map(u64::from), packets, ..Limits::default() };
                let meter = LifetimeMeter::new(Instant::ZERO, Lifetime { soft, hard });
                let mut state = SaState { numbers, meter, exhaustion_told: packets.is_some() };
                course(&mut state, &before);
                state
            };
            let mut stayed = state();
            let image = ContextImage::build(|image| EspEngine::save(&state(), image));
            let mut came_back = image.read(EspEngine::load).unwrap();
            prop_assert_eq!(came_back.exhaustion_told, stayed.exhaustion_told);
            prop_assert_eq!(course(&mut came_back, &after), course(&mut stayed, &after));
        }
    }
}
