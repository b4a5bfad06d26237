//! Security associations and policies in the device (RFC 4301 4.4).
//!
//! An SA is a context: its numbers and what it counts are the state, parameters and keys what that refers to. Policies
//! and events are the engine's own.
//!
//! Invariants: a handle finds its SA only while that very SA lives; a look-up costs the same however many there are; what
//! happens to an SA is noted once, to be told when there is room.

pub(crate) mod receive;
pub(crate) mod transmit;

use super::{Context, Engine};
use crate::context::{ContextStore, ImageReader, ImageWriter, Subject};
use crate::dma::DmaBytes;
use crate::packet::IpsecCommand;
use crate::steering::{Key, KeyBytes, Steering};
use core::net::IpAddr;
use esp::{Cipher, Meter, Reached, ReplayWindow, SelectorTable, SendNumber};
use offload_api::engines;
use offload_api::ipsec::{DeviceSaEvent, Packet};
use offload_api::{Direction, Handle, Lifetime, OffloadKind, SaParams};
use offload_base::Instant;
use std::collections::VecDeque;

/// Makes and opens ESP packets.
#[derive(Debug)]
pub(crate) struct Esp;

/// Where an SA stands.
#[derive(Debug)]
pub(crate) struct SaState {
    pub(crate) numbers: Numbers,
    /// Bytes and packets; time is the host's.
    pub(crate) meter: Meter,
    exhaustion_told: bool,
}

/// What an SA is.
#[derive(Debug)]
pub(crate) struct SaHeld {
    pub(crate) params: SaParams,
    pub(crate) cipher: Cipher,
}

/// The numbers of an SA.
#[derive(Debug)]
pub(crate) enum Numbers {
    Send(SendNumber),
    /// In crypto offload it only tells the upper half of a number, and what may be joined.
    Receive(ReplayWindow),
}

impl Engine for Esp {
    const ID: u8 = engines::ESP;
    type Spec = SaParams;
    type State = SaState;
    type Held = SaHeld;

    fn create(&mut self, _: Direction, params: SaParams) -> Option<(SaState, SaHeld)> {
        let SaParams { replay_window: size, esn, last_number: top, .. } = params;
        let numbers = match (params.direction, params.offload) {
            (Direction::Transmit, _) => Numbers::Send(SendNumber::new(top, esn)),
            // The host knows what came before it gave the SA away, and looks at every number.
            (Direction::Receive, OffloadKind::Packet) => {
                Numbers::Receive(ReplayWindow::without_history(size, esn, top))
            }
            (Direction::Receive, OffloadKind::Crypto | OffloadKind::None) => {
                Numbers::Receive(ReplayWindow::remembering(size, MAX_REMEMBERED, esn, top))
            }
        };
        let (cipher, meter) = (Cipher::new(&params), Meter::new(Instant::ZERO, untimed(params.lifetime)));
        Some((SaState { numbers, meter, exhaustion_told: false }, SaHeld { params, cipher }))
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
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<SaState> {
        let (exhaustion_told, meter) = (image.take_u8()? != 0, Meter::restore(&image.take()?));
        let numbers = match image.take_u8()? {
            SEND => Numbers::Send(SendNumber::new(image.take_u64()?, image.take_u8()? != 0)),
            RECEIVE => Numbers::Receive(ReplayWindow::restore(image.rest())?.0),
            _ => return None,
        };
        Some(SaState { numbers, meter, exhaustion_told })
    }
}

/// Policies, and what happened to SAs.
#[derive(Debug, Default)]
pub(crate) struct EspTable {
    policies: SelectorTable<Handle>,
    /// What the host has not been told.
    events: VecDeque<DeviceSaEvent>,
}

impl EspTable {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = EspTable::default();
    }

    /// What the host is to be told next.
    pub(crate) fn pop_event(&mut self) -> Option<DeviceSaEvent> {
        self.events.pop_front()
    }
}

/// What the ESP engines work with.
pub(crate) struct Sas<'a> {
    pub(crate) table: &'a mut EspTable,
    pub(crate) contexts: &'a mut ContextStore,
    pub(crate) steering: &'a mut Steering,
    pub(crate) dma: &'a mut DmaBytes,
}

impl Sas<'_> {
    /// Does what the host asks for.
    pub(crate) fn carry_out(&mut self, command: IpsecCommand) {
        match command {
            IpsecCommand::AddSa { handle, sa } => self.add(handle, sa),
            IpsecCommand::UpdateSa { handle, lifetime } => {
                if let Some(sa) = self.get(handle) {
                    sa.state.meter.renew(Instant::ZERO, untimed(lifetime));
                }
            }
            IpsecCommand::AdvanceSa { handle, last } => {
                if let Some(Context { state: SaState { numbers: Numbers::Send(numbers), .. }, .. }) = self.get(handle) {
                    numbers.go_on_after(last);
                }
            }
            IpsecCommand::RemoveSa { handle } => self.contexts.remove(handle, self.steering),
            IpsecCommand::SetPolicy { selector, rank, sa } => {
                self.table.policies.replace(selector, rank, sa);
            }
            IpsecCommand::RemovePolicy { selector, rank } => {
                self.table.policies.remove(&selector, rank);
            }
        }
    }

    /// The SA of this name.
    pub(crate) fn get(&mut self, handle: Handle) -> Option<Context<'_, Esp>> {
        self.contexts.get(handle, self.dma)
    }

    /// What the SA of this name is.
    pub(crate) fn held(&mut self, handle: Handle) -> Option<&SaHeld> {
        self.contexts.held::<Esp>(handle).map(|held| &*held)
    }

    /// The SA of a received packet.
    pub(crate) fn find_received(&self, spi: u32, source: IpAddr, destination: IpAddr) -> Option<Handle> {
        self.steering.opener(Esp::ID, KeyBytes::of_addresses(spi, source, destination))
    }

    /// The SA that a packet is to be protected by.
    pub(crate) fn find_policy(&self, packet: &Packet) -> Option<Handle> {
        self.table.policies.find(packet).copied()
    }

    /// Counts a packet of an SA whose numbers and lifetime are the device's, now that it has `number`.
    pub(crate) fn spend(&mut self, handle: Handle, before: u64, number: u64, bytes: u64) {
        let Some(sa) = self.get(handle) else { return };
        let reached = sa.state.meter.spend(1, bytes);
        // Of a window that moved at once over many numbers, both edges may have been crossed: the last one is told.
        let crossed = sa.held.params.esn && number > before && before >> 31 != number >> 31;
        let events = &mut self.table.events;
        match reached {
            Some(Reached::Soft(limit)) => events.push_back(DeviceSaEvent::SoftLimit(handle, limit)),
            Some(Reached::Hard(limit)) => events.push_back(DeviceSaEvent::HardLimit(handle, limit)),
            None => {}
        }
        if crossed {
            events.push_back(DeviceSaEvent::Crossed(handle, number));
        }
    }

    /// All numbers of an SA are used.
    pub(crate) fn note_exhausted(&mut self, handle: Handle) {
        let Some(sa) = self.get(handle) else { return };
        if !core::mem::replace(&mut sa.state.exhaustion_told, true) {
            self.table.events.push_back(DeviceSaEvent::SequenceExhausted(handle));
        }
    }

    fn add(&mut self, handle: Handle, params: Box<SaParams>) {
        let direction = params.direction;
        let keys = match direction {
            Direction::Transmit => Vec::new(),
            Direction::Receive => {
                let key = KeyBytes::of_addresses(params.spi, params.source, params.destination);
                vec![Key::Engine(Esp::ID, key)]
            }
        };
        let subject = Subject { flow: None, keys };
        // Without an SA its packets are dropped, and counted.
        let _made = self.contexts.create(handle, direction, params, subject, self.steering, self.dma);
    }
}

impl SaHeld {
    /// Whether the device does all of it.
    pub(crate) fn is_whole(&self) -> bool {
        self.params.offload == OffloadKind::Packet
    }
}

/// What of a lifetime a device without a clock can count.
fn untimed(mut lifetime: Lifetime) -> Lifetime {
    lifetime.soft.time = None;
    lifetime.hard.time = None;
    lifetime
}

/// Numbers that a window on the NIC remembers: the largest that packet offload is offered with.
const MAX_REMEMBERED: u32 = 256;

const SEND: u8 = 1;
const RECEIVE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ContextImage;
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
                let meter = Meter::new(Instant::ZERO, Lifetime { soft, hard });
                let mut state = SaState { numbers, meter, exhaustion_told: packets.is_some() };
                course(&mut state, &before);
                state
            };
            let mut stayed = state();
            let image = ContextImage::of(|image| Esp::save(&state(), image));
            let mut came_back = image.read(Esp::load).unwrap();
            prop_assert_eq!(came_back.exhaustion_told, stayed.exhaustion_told);
            prop_assert_eq!(course(&mut came_back, &after), course(&mut stayed, &after));
        }
    }
}
