//! Security associations and policies in the device (RFC 4301 4.4).
//!
//! An SA is a context: its numbers and what it counts are the state, parameters and keys what that refers to. Policies
//! and events are the engine's own.
//!
//! - `transmit`, `receive`: what each direction makes of SAs.
//!
//! Invariants: a handle finds its SA only while that very SA lives; a look-up costs the same however many there are; what
//! happens to an SA is noted once, to be told when there is room.

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
use transmit::{EspDrop, Wrapper};

/// Makes and opens ESP packets.
#[derive(Debug, Default)]
pub(crate) struct Esp {
    policies: SelectorTable<Handle>,
    /// What the host has not been told.
    events: VecDeque<ContextEvent>,
}

/// Where an SA stands.
#[derive(Debug)]
pub(crate) struct SaState {
    numbers: Numbers,
    /// Bytes and packets; time is the host's.
    meter: LifetimeMeter,
    exhaustion_told: bool,
}

/// What an SA is.
#[derive(Debug)]
pub(crate) struct SaHeld {
    params: SaParams,
    cipher: EspCipher,
    /// The numbers that came, if they are more than a context has room for: a buffer, as keys are.
    wide: Option<ReplayWindow>,
}

/// The numbers of an SA.
#[derive(Debug)]
pub(crate) enum Numbers {
    Send(SendNumber),
    /// In crypto offload it only tells the upper half of a number, and what may be joined.
    Receive(ReplayWindow),
    /// What the state refers to has them.
    ReceiveWide,
}

impl Engine for Esp {
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
            (Direction::Transmit, _) => (Numbers::Send(SendNumber::new(top, esn)), None),
            // The host knows what came before it gave the SA away, and looks at every number.
            (Direction::Receive, OffloadKind::Packet) => {
                let window = ReplayWindow::without_history(size, esn, top);
                if size > MAX_REMEMBERED {
                    (Numbers::ReceiveWide, Some(window))
                } else {
                    (Numbers::Receive(window), None)
                }
            }
            (Direction::Receive, OffloadKind::Crypto | OffloadKind::None) => {
                (Numbers::Receive(ReplayWindow::remembering(size, MAX_REMEMBERED, esn, top)), None)
            }
        };
        let (cipher, meter) = (EspCipher::new(&params), LifetimeMeter::new(Instant::ZERO, untimed(params.lifetime)));
        Some((SaState { numbers, meter, exhaustion_told: false }, SaHeld { params, cipher, wide }))
    }

    fn describe(&self, engine: &mut EngineDescription) {
        engine.info.ring = CommandRing::Send;
        engine.publish = |of, visit| visit("tx_ipsec_refused", of.not_wrapped);
    }

    fn save(state: &SaState, image: &mut ImageWriter<'_>) {
        image.put_u8(u8::from(state.exhaustion_told));
        image.put(&state.meter.save());
        match &state.numbers {
            Numbers::Send(numbers) => {
                image.put_u8(SEND);
                image.put_u64(numbers.last());
                image.put_u8(u8::from(numbers.is_extended()));
            }
            Numbers::Receive(window) => {
                image.put_u8(RECEIVE);
                let mut bytes = Vec::with_capacity(ReplayWindow::saved_len(MAX_REMEMBERED));
                window.save(&mut bytes);
                image.put(&bytes);
            }
            Numbers::ReceiveWide => image.put_u8(RECEIVE_WIDE),
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<SaState> {
        let (exhaustion_told, meter) = (image.take_u8()? != 0, LifetimeMeter::restore(&image.take()?));
        let numbers = match image.take_u8()? {
            SEND => Numbers::Send(SendNumber::new(image.take_u64()?, image.take_u8()? != 0)),
            RECEIVE => Numbers::Receive(ReplayWindow::restore(image.rest())?.0),
            RECEIVE_WIDE => Numbers::ReceiveWide,
            _ => return None,
        };
        Some(SaState { numbers, meter, exhaustion_told })
    }

    fn command(Context { state, .. }: Context<'_, Esp>, command: SaCommand) {
        match command {
            SaCommand::Renew(lifetime) => state.meter.renew(Instant::ZERO, untimed(lifetime)),
            SaCommand::GoOnAfter(last) => {
                if let Numbers::Send(numbers) = &mut state.numbers {
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
        *self = Esp::default();
    }
}

impl PacketEngine for Esp {
    type Facts = EspAt;
    type Encapsulation = Wrapper;

    fn look(&self, frame: &[u8], headers: &Headers) -> FrameLookup<EspAt> {
        receive::look(frame, headers)
    }

    fn key_of_first(packet: &[u8], headers: &IpHeaders) -> Option<KeyBytes> {
        receive::key_of_first(packet, headers)
    }

    fn open(&mut self, sa: Context<'_, Esp>, frame: &[u8], at: &EspAt, counters: &mut EspCounters) -> OpenedFrame {
        receive::open(self, sa, frame, at, counters)
    }

    fn note_fragment(counters: &mut EspCounters) {
        counters.ipsec_rx_fragments += 1;
    }

    fn claim(&self, frame: &[u8], headers: &Headers) -> EgressClaim {
        if self.policies.is_empty() {
            return EgressClaim::Nobody;
        }
        // What is behind a tag is another network's.
        let at_home = headers.network().is_some_and(|(_, at)| at == ETHERNET_BYTES);
        let packet = ip_packet(frame).filter(|_| at_home);
        let Some((packet, view)) = packet.and_then(|packet| Some((packet, IpView::parse_headers(packet)?))) else {
            return EgressClaim::Nobody;
        };
        let selectors = Packet::from_view(&view, packet);
        match self.find_policy(&selectors) {
            Some(sa) => EgressClaim::Context(sa),
            None if view.may_hide_ports() && self.policies.asks_for_ports(&selectors) => EgressClaim::Unclear,
            None => EgressClaim::Nobody,
        }
    }

    fn begin_claimed(&mut self, sa: Context<'_, Esp>, frame: &[u8], counters: &mut EspCounters) -> Option<Wrapper> {
        Wrapper::of_frame(&sa.held.params, frame).map_err(|why| why.count(counters)).ok()
    }

    fn begin(
        &mut self,
        sa: Context<'_, Esp>,
        ask: PacketAsk,
        packet: &mut TxPacket,
        counters: &mut EspCounters,
    ) -> Option<Wrapper> {
        Wrapper::new(self, &sa.held.params, ask, packet).map_err(|why| why.count(counters)).ok()
    }

    fn wrap(
        &mut self,
        sa: Context<'_, Esp>,
        wrapper: &mut Wrapper,
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

impl Esp {
    /// The SA that a packet is to be protected by.
    fn find_policy(&self, packet: &Packet) -> Option<Handle> {
        self.policies.find(packet).copied()
    }

    /// Counts a packet of an SA whose numbers and lifetime are the device's, now that it has `number`.
    fn spend(&mut self, sa: &mut Context<'_, Esp>, before: u64, number: u64, bytes: u64) {
        let reached = sa.state.meter.spend(1, bytes);
        // Of a window that moved at once over many numbers, both edges may have been crossed: the last one is told.
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

    /// All numbers of an SA are used.
    fn note_exhausted(&mut self, sa: &mut Context<'_, Esp>) {
        if !core::mem::replace(&mut sa.state.exhaustion_told, true) {
            self.tell(DeviceSaEvent::SequenceExhausted(sa.handle));
        }
    }

    fn tell(&mut self, event: DeviceSaEvent) {
        self.events.extend(event.to_context_event());
    }
}

impl SaHeld {
    /// Whether the device does all of it.
    fn is_whole(&self) -> bool {
        self.params.offload == OffloadKind::Packet
    }
}

/// The part of a lifetime that a device without a clock can count.
fn untimed(mut lifetime: Lifetime) -> Lifetime {
    lifetime.soft.time = None;
    lifetime.hard.time = None;
    lifetime
}

/// Numbers that a window in a context remembers; those of a wider one are beside it.
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

    /// What a state does from here on: which numbers it gives or takes, and what it reports.
    fn course(state: &mut SaState, steps: &[(i16, u16)]) -> Vec<String> {
        let step = |(step, bytes): &(i16, u16)| {
            let told = state.meter.spend(1, (*bytes).into());
            let number = match &mut state.numbers {
                Numbers::Send(numbers) => {
                    let number = numbers.peek(1);
                    number.iter().for_each(|_| numbers.take(1));
                    number
                }
                Numbers::Receive(window) => {
                    let number = window.top().saturating_add_signed((*step).into());
                    let whole = window.whole(number as u32).ok();
                    whole.filter(|number| window.accept(*number))
                }
                Numbers::ReceiveWide => unreachable!("no state here refers to its numbers"),
            };
            format!("{number:?} {told:?} {}", state.meter.is_dead())
        };
        steps.iter().map(step).collect()
    }

    proptest! {
        #[test]
        fn an_sa_that_was_in_host_memory_goes_on_as_if_it_had_not_been(
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
                    (true, _) => Numbers::Send(SendNumber::new(top, esn)),
                    (false, true) => Numbers::Receive(ReplayWindow::without_history(size.min(256), esn, top)),
                    (false, false) => Numbers::Receive(ReplayWindow::remembering(size, MAX_REMEMBERED, esn, top)),
                };
                let soft = Limits { bytes: soft.map(u64::from), ..Limits::default() };
                let hard = Limits { bytes: hard.map(u64::from), packets, ..Limits::default() };
                let meter = LifetimeMeter::new(Instant::ZERO, Lifetime { soft, hard });
                let mut state = SaState { numbers, meter, exhaustion_told: packets.is_some() };
                course(&mut state, &before);
                state
            };
            let mut stayed = state();
            let image = ContextImage::build(|image| Esp::save(&state(), image));
            let mut came_back = image.read(Esp::load).unwrap();
            prop_assert_eq!(came_back.exhaustion_told, stayed.exhaustion_told);
            prop_assert_eq!(course(&mut came_back, &after), course(&mut stayed, &after));
        }
    }
}
