//! Security associations and policies in the device (RFC 4301 4.4).
//!
//! Invariants: a handle finds its SA only while that very SA lives; a look-up costs the same however many there are; what
//! happens to an SA is noted once, to be told when there is room.

use crate::packet::IpsecCommand;
use core::net::IpAddr;
use esp::{Cipher, Meter, QuickHash, Reached, ReplayWindow, SelectorTable, SendNumber};
use offload_api::ipsec::{DeviceSaEvent, Packet};
use offload_api::{Direction, Handle, Lifetime, OffloadKind, SaParams};
use offload_base::Instant;
use std::collections::{HashMap, VecDeque};

/// An SA in the device.
#[derive(Debug)]
pub(crate) struct DeviceSa {
    pub(crate) params: SaParams,
    pub(crate) cipher: Cipher,
    pub(crate) numbers: Numbers,
    /// Bytes and packets; time is the host's.
    pub(crate) meter: Meter,
    exhaustion_told: bool,
}

/// Where an SA stands.
#[derive(Debug)]
pub(crate) enum Numbers {
    Send(SendNumber),
    /// In crypto offload it only tells the upper half of a number.
    Receive(ReplayWindow),
}

/// All SAs and policies of a device.
#[derive(Debug, Default)]
pub(crate) struct EspTable {
    places: Vec<Option<(u32, Box<DeviceSa>)>>,
    /// Receiving ones.
    by_spi: HashMap<(u32, IpAddr, IpAddr), Handle, QuickHash>,
    policies: SelectorTable<Handle>,
    /// What the host has not been told.
    events: VecDeque<DeviceSaEvent>,
}

impl EspTable {
    /// Does what the host asks for.
    pub(crate) fn carry_out(&mut self, command: IpsecCommand) {
        match command {
            IpsecCommand::AddSa { handle, sa } => self.add(handle, *sa),
            IpsecCommand::UpdateSa { handle, lifetime } => {
                if let Some(sa) = self.get_mut(handle) {
                    sa.meter.renew(Instant::ZERO, untimed(lifetime));
                }
            }
            IpsecCommand::AdvanceSa { handle, last } => {
                if let Some(DeviceSa { numbers: Numbers::Send(numbers), .. }) = self.get_mut(handle) {
                    numbers.go_on_after(last);
                }
            }
            IpsecCommand::RemoveSa { handle } => self.remove(handle),
            IpsecCommand::SetPolicy { selector, rank, sa } => {
                self.policies.replace(selector, rank, sa);
            }
            IpsecCommand::RemovePolicy { selector, rank } => {
                self.policies.remove(&selector, rank);
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = EspTable::default();
    }

    /// The SA of this name.
    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut DeviceSa> {
        let place = self.places.get_mut(handle.index as usize)?.as_mut();
        place.filter(|(generation, _)| *generation == handle.generation).map(|(_, sa)| &mut **sa)
    }

    /// The SA of a received packet.
    pub(crate) fn find_received(&self, spi: u32, source: IpAddr, destination: IpAddr) -> Option<Handle> {
        self.by_spi.get(&(spi, source, destination)).copied()
    }

    /// Whether there is no SA for received packets.
    pub(crate) fn receives_nothing(&self) -> bool {
        self.by_spi.is_empty()
    }

    /// The SA that a packet is to be protected by.
    pub(crate) fn find_policy(&self, packet: &Packet) -> Option<Handle> {
        self.policies.find(packet).copied()
    }

    /// What the host is to be told next.
    pub(crate) fn pop_event(&mut self) -> Option<DeviceSaEvent> {
        self.events.pop_front()
    }

    /// Counts a packet of an SA whose numbers and lifetime are the device's, now that it has `number`.
    pub(crate) fn spend(&mut self, handle: Handle, before: u64, number: u64, bytes: u64) {
        let Some(sa) = self.get_mut(handle) else { return };
        let reached = sa.meter.spend(1, bytes);
        // Of a window that moved at once over many numbers, both edges may have been crossed: the last one is told.
        let crossed = sa.params.esn && number > before && before >> 31 != number >> 31;
        match reached {
            Some(Reached::Soft(limit)) => self.events.push_back(DeviceSaEvent::SoftLimit(handle, limit)),
            Some(Reached::Hard(limit)) => self.events.push_back(DeviceSaEvent::HardLimit(handle, limit)),
            None => {}
        }
        if crossed {
            self.events.push_back(DeviceSaEvent::Crossed(handle, number));
        }
    }

    /// All numbers of an SA are used.
    pub(crate) fn note_exhausted(&mut self, handle: Handle) {
        let Some(sa) = self.get_mut(handle) else { return };
        if !core::mem::replace(&mut sa.exhaustion_told, true) {
            self.events.push_back(DeviceSaEvent::SequenceExhausted(handle));
        }
    }

    fn add(&mut self, handle: Handle, params: SaParams) {
        let index = handle.index as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        let numbers = match params.direction {
            Direction::Transmit => Numbers::Send(SendNumber::new(params.last_number, params.esn)),
            Direction::Receive => {
                self.by_spi.insert((params.spi, params.source, params.destination), handle);
                let new = match params.offload {
                    // The host knows what came before it gave the SA away, and looks at every number.
                    OffloadKind::Packet => ReplayWindow::without_history,
                    OffloadKind::Crypto | OffloadKind::None => ReplayWindow::new,
                };
                Numbers::Receive(new(params.replay_window, params.esn, params.last_number))
            }
        };
        let (cipher, meter) = (Cipher::new(&params), Meter::new(Instant::ZERO, untimed(params.lifetime)));
        let sa = DeviceSa { params, cipher, numbers, meter, exhaustion_told: false };
        self.places[index] = Some((handle.generation, Box::new(sa)));
    }

    fn remove(&mut self, handle: Handle) {
        let Some(sa) = self.get_mut(handle) else { return };
        let key = (sa.params.spi, sa.params.source, sa.params.destination);
        self.places[handle.index as usize] = None;
        // Another may have come to have the same SPI.
        if self.by_spi.get(&key) == Some(&handle) {
            self.by_spi.remove(&key);
        }
    }
}

impl DeviceSa {
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
