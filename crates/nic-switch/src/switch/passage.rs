//! The path of a frame through the switch: admission, rules, tunnels, and delivery.

use super::{Switch, Tunnel};
use crate::action::{Police, RuleAction, TunnelSet};
use crate::edit;
use crate::frame::Frame;
use crate::key::{MatchKey, TunnelState};
use crate::matching::VLAN;
use crate::overlay::{self, DecapsulatedFrame, DecapsulationError, TunnelEvidence, TunnelHeaders};
use crate::police::TokenBucket;
use crate::port::{Device, Egress, TunnelDevice, TunnelKind, Vport};
use crate::protection::TunnelRejection;
use crate::too_big;
use bytes::{Bytes, BytesMut};
use core::hash::BuildHasher;
use offload_api::Handle;
use offload_base::{Instant, QuickHash};
use offload_formats::Headers;
use offload_formats::frame::ETHERNET_BYTES;

/// A frame in the switch, with its parsed headers and tunnels.
pub(super) struct SwitchedFrame {
    pub(super) frame: Frame,
    headers: Headers,
    tunnel: TunnelState,
    /// Whether the frame was decapsulated here, even if a rule has cleared its tunnel.
    unwrapped: bool,
}

/// The result of running the rules on a frame.
pub(super) enum RuleOutcome {
    /// The frame was sent or dropped.
    Done,
    /// No rule matched; the frame is as earlier chains changed it.
    Missed(Frame),
    /// A rule leaves the frame to the representor.
    Left(Frame),
}

/// The result of decapsulating a frame.
#[derive(PartialEq, Eq)]
pub(super) enum UnwrapOutcome {
    /// The frame was sent or dropped.
    Done,
    /// The frame is a tunnel packet, and no rule matched the inner frame.
    Missed,
    /// The frame is a tunnel packet, and a rule leaves the inner frame to the representor.
    Left,
    /// The frame is not a packet of a local tunnel.
    NoTunnel,
}

pub(super) type SwitchOutput = Vec<(Egress, Frame)>;

impl Switch {
    /// Checks a frame from a port, and adds the tag of the function's VLAN. Returns `None` if the frame was dropped.
    pub(super) fn admit(&mut self, now: Instant, from: Vport, mut frame: Frame) -> Option<Frame> {
        // A multicast source address would poison the learned addresses.
        if frame.bytes.len() < ETHERNET_BYTES || frame.bytes[6] & 1 == 1 {
            self.counters.malformed += 1;
            return None;
        }
        // The uplink has no address or rate of its own to check.
        if from == Vport::Uplink {
            return Some(frame);
        }
        let Some(function) = self.functions.get_mut(&from) else {
            self.counters.no_port += 1;
            return None;
        };
        let config = &function.config;
        if config.spoof_check && frame.bytes[6..12] != config.mac.0 {
            self.counters.spoofed += 1;
            return None;
        }
        if let Some(id) = config.vlan {
            if edit::outermost_tag(&frame.bytes).is_some() {
                self.counters.wrong_vlan += 1;
                return None;
            }
            // Only untagged frames get here: a second tag could carry the frame into another VLAN.
            frame.change(|bytes| edit::push_vlan(bytes, VLAN, edit::control_of(id, 0)));
        }
        // The rate is checked last, because dropped frames must not use up tokens.
        if let Some(bucket) = &mut function.rate
            && !bucket.take(now, frame.bytes.len())
        {
            self.counters.rate += 1;
            return None;
        }
        Some(frame)
    }

    /// Runs a device's rules on a frame.
    pub(super) fn run(
        &mut self,
        now: Instant,
        from: Vport,
        device: Device,
        mut passing: SwitchedFrame,
        out: &mut SwitchOutput,
    ) -> RuleOutcome {
        let mut chain = 0;
        loop {
            // The key is computed anew for each chain, because actions may have changed the frame.
            let key = MatchKey::from_frame(&passing.frame.bytes, &passing.headers, passing.tunnel.received.as_ref());
            let Some(slot) = self.table.find(device, chain, &key) else { return RuleOutcome::Missed(passing.frame) };
            let Some(installed) = self.table.installed_mut(slot) else { return RuleOutcome::Missed(passing.frame) };
            installed.counters.packets += 1;
            installed.counters.bytes += passing.frame.bytes.len() as u64;
            installed.counters.last_used = Some(now);
            // Only in chain 0 is the frame still unchanged.
            if chain == 0 && self.sampling.is_some_and(|every| installed.is_sample(now, every)) {
                self.counters.samples += 1;
                return RuleOutcome::Left(passing.frame);
            }
            let rule = installed.rule.clone();
            let mut bucket = 0;
            let mut next = None;
            for action in &rule.actions {
                match action {
                    RuleAction::Redirect(to) => {
                        self.leave(now, from, *to, passing, out);
                        return RuleOutcome::Done;
                    }
                    RuleAction::Mirror(to) => self.leave(now, from, *to, passing.copy(), out),
                    RuleAction::Drop => {
                        self.counters.by_rule += 1;
                        return RuleOutcome::Done;
                    }
                    RuleAction::Pass => return self.pass(from, device, passing.frame, out),
                    RuleAction::Goto(chain) => next = Some(*chain),
                    RuleAction::Police(_) => {
                        let installed = self.table.installed_mut(slot);
                        let conforms = installed
                            .and_then(|installed| installed.buckets.get_mut(bucket))
                            .is_none_or(|bucket| bucket.take(now, passing.frame.bytes.len()));
                        bucket += 1;
                        if !conforms {
                            self.counters.policed += 1;
                            return RuleOutcome::Done;
                        }
                    }
                    other => passing.change(other),
                }
            }
            match next {
                Some(later) => chain = later,
                None => return self.pass(from, device, passing.frame, out),
            }
        }
    }

    /// Sends a frame to the representor. For a tunnel device, the caller sends the original packet of the uplink
    /// instead, because there are no tunnels behind a representor.
    fn pass(&mut self, from: Vport, device: Device, frame: Frame, out: &mut SwitchOutput) -> RuleOutcome {
        if matches!(device, Device::Tunnel(_)) {
            return RuleOutcome::Left(frame);
        }
        self.represent(from, frame, out);
        RuleOutcome::Done
    }

    /// Decapsulates a frame from the uplink and runs the tunnel's rules.
    pub(super) fn unwrap(
        &mut self,
        now: Instant,
        frame: &Frame,
        sa: Option<Handle>,
        out: &mut SwitchOutput,
    ) -> UnwrapOutcome {
        // The host behind the uplink's representor would decapsulate the packet. Later fragments are harmless without
        // their first one.
        if self.protections.all
            && sa.is_none()
            && matches!(self.tunnel_evidence(&frame.bytes), TunnelEvidence::Tunnel | TunnelEvidence::Hidden)
        {
            self.counters.unprotected += 1;
            return UnwrapOutcome::Done;
        }
        let headers = Headers::parse(&frame.bytes);
        let Some((version, network)) = headers.network() else { return UnwrapOutcome::NoTunnel };
        let (_, local) = version.addresses(&frame.bytes[network..]);
        let of_port =
            |port: u16| self.tunnels.iter().find(|tunnel| tunnel.port == Some(port)).map(|tunnel| tunnel.device.kind);
        if !self.tunnels.iter().any(|tunnel| tunnel.local.contains(&local)) {
            return UnwrapOutcome::NoTunnel;
        }
        let unwrapped = match overlay::decapsulate(&frame.bytes, &headers, of_port) {
            Ok(unwrapped) => unwrapped,
            Err(DecapsulationError::NoTunnel) => return UnwrapOutcome::NoTunnel,
            Err(reason) => {
                match reason {
                    DecapsulationError::Critical => self.counters.tunnel_critical += 1,
                    DecapsulationError::Congestion => self.counters.tunnel_ecn += 1,
                    _ => self.counters.tunnel_checksum += 1,
                }
                return UnwrapOutcome::Done;
            }
        };
        let DecapsulatedFrame { kind, received, inner } = unwrapped;
        // Several tunnels may share a kind, so port and local address select the device.
        let is_it = |tunnel: &&Tunnel| {
            let by_port = kind == TunnelKind::Gretap || tunnel.port == Some(received.destination_port);
            tunnel.device.kind == kind && by_port && tunnel.local.contains(&local)
        };
        let Some(device) = self.tunnels.iter().find(is_it).map(|tunnel| tunnel.device) else {
            return UnwrapOutcome::NoTunnel;
        };
        match self.protections.check(&(device, received.key), sa) {
            Ok(()) => {}
            Err(objection) => {
                *match objection {
                    TunnelRejection::Plain => &mut self.counters.unprotected,
                    TunnelRejection::OtherSa => &mut self.counters.other_sa,
                } += 1;
                return UnwrapOutcome::Done;
            }
        }
        self.counters.unwrapped += 1;
        let passing = SwitchedFrame::new(Frame::from(inner), TunnelState { received: Some(received), set: None });
        match self.run(now, Vport::Uplink, Device::Tunnel(device), passing, out) {
            RuleOutcome::Done => UnwrapOutcome::Done,
            RuleOutcome::Missed(_) => UnwrapOutcome::Missed,
            RuleOutcome::Left(_) => UnwrapOutcome::Left,
        }
    }

    pub(super) fn leave(
        &mut self,
        now: Instant,
        from: Vport,
        to: Device,
        passing: SwitchedFrame,
        out: &mut SwitchOutput,
    ) {
        match to {
            Device::Port(port) => self.deliver(port, passing.frame, out),
            Device::Tunnel(device) => self.wrap(now, from, device, passing, out),
        }
    }

    pub(super) fn wrap(
        &mut self,
        now: Instant,
        from: Vport,
        device: TunnelDevice,
        passing: SwitchedFrame,
        out: &mut SwitchOutput,
    ) {
        let tunnel = self.tunnels.iter().find(|tunnel| tunnel.device == device);
        let known = passing.tunnel.set.and_then(|set| Some((tunnel?, set, *self.hops.get(&set.destination)?)));
        let Some((tunnel, set, hop)) = known.filter(|_| passing.frame.inner == 0) else {
            self.counters.unresolved += 1;
            if passing.unwrapped {
                // The uplink's representor shows packets as they are on the wire. The inner frame may have been under
                // an SA there, so it must not appear.
                self.counters.unresolved_inner += 1;
            } else {
                self.represent(from, passing.frame, out);
            }
            return;
        };
        // The outer packet must fit the uplink, because tunnels are not fragmented.
        let room = usize::from(self.config.mtu).saturating_sub(overlay::overhead(device.kind, &set));
        let mtu = tunnel.mtu.min(u16::try_from(room).unwrap_or(u16::MAX));
        let (first, last) = tunnel.source_ports;
        if passing.packet_bytes() > usize::from(mtu) {
            self.refuse_length(now, from, &passing, mtu, out);
            return;
        }
        let key = MatchKey::from_frame(&passing.frame.bytes, &passing.headers, None);
        // The hash spreads flows over source ports and SAs, and keeps the packets of a flow in order.
        let hash = QuickHash.hash_one(key);
        let source_port = port_of(hash, first, last);
        let Ok(sa) = self.protections.choose(&(device, set.key), hash & u64::from(u32::MAX)) else {
            self.counters.no_sa += 1;
            return;
        };
        let set = TunnelSet { destination_port: set.destination_port.or(device.kind.port()), ..set };
        let outer = TunnelHeaders { kind: device.kind, set, hop, source_port, identification: self.identification };
        // Each segment will use its own identification.
        let packets = passing.frame.cut.map_or(1, |cut| passing.frame.bytes.len().div_ceil(cut.get().into()));
        self.identification = self.identification.wrapping_add(packets as u16);
        // ECN, lengths and checksums are written by `encapsulate`, after all checks.
        self.counters.wrapped += 1;
        self.deliver(Vport::Uplink, Frame { sa, ..overlay::encapsulate(&outer, &passing.frame) }, out);
    }

    /// Drops a frame that is too long and informs its sender.
    pub(super) fn refuse_length(
        &mut self,
        now: Instant,
        from: Vport,
        passing: &SwitchedFrame,
        mtu: u16,
        out: &mut SwitchOutput,
    ) {
        self.counters.too_long += 1;
        let message = too_big::message(&passing.frame.bytes, &passing.headers, mtu).filter(|_| from != Vport::Uplink);
        let Some(message) = message else { return };
        let bucket = self.told.entry(from).or_insert_with(|| TokenBucket::new(TOLD));
        if bucket.take(now, message.len()) {
            self.counters.told += 1;
            self.deliver(from, Frame::from(message), out);
        }
    }

    /// Sends a frame to a port, if the port's function accepts it.
    pub(super) fn deliver(&mut self, port: Vport, mut frame: Frame, out: &mut SwitchOutput) {
        let mut mtu = self.config.mtu;
        if port != Vport::Uplink {
            let Some(function) = self.functions.get(&port) else {
                self.counters.no_port += 1;
                return;
            };
            mtu = function.config.mtu;
            if let Some(id) = function.config.vlan {
                if edit::outermost_tag(&frame.bytes).is_none_or(|(_, control)| control & ID != id) {
                    self.counters.wrong_vlan += 1;
                    return;
                }
                frame.change(|bytes| {
                    let _ = edit::pop_vlan(bytes);
                });
            }
        }
        // An MTU does not include a VLAN tag, as in Linux.
        let tag = if edit::outermost_tag(&frame.bytes).is_some() { TAG } else { 0 };
        if frame.cut.is_none() && frame.bytes.len() > usize::from(mtu) + ETHERNET_BYTES + tag {
            self.counters.too_long += 1;
            return;
        }
        self.counters.frames_out += 1;
        out.push((Egress::Port(port), frame));
    }

    pub(super) fn miss(&mut self, from: Vport, frame: Frame, out: &mut SwitchOutput) {
        self.counters.misses += 1;
        self.represent(from, frame, out);
    }

    pub(super) fn represent(&mut self, from: Vport, frame: Frame, out: &mut SwitchOutput) {
        self.counters.to_representors += 1;
        out.push((Egress::Representor(from), frame));
    }
}

impl SwitchedFrame {
    pub(super) fn new(frame: Frame, tunnel: TunnelState) -> SwitchedFrame {
        let headers = headers_of(&frame);
        SwitchedFrame { frame, headers, tunnel, unwrapped: tunnel.received.is_some() }
    }

    /// Returns the length of the packet, or of the longest segment if it will be cut.
    fn packet_bytes(&self) -> usize {
        let tag = if edit::outermost_tag(&self.frame.bytes).is_some() { TAG } else { 0 };
        let whole = self.frame.bytes.len();
        let bytes = match (self.frame.cut, self.headers.transport()) {
            (Some(cut), Some(transport)) => whole.min(transport.payload + usize::from(cut.get())),
            _ => whole,
        };
        bytes.saturating_sub(ETHERNET_BYTES + tag)
    }

    fn copy(&self) -> SwitchedFrame {
        SwitchedFrame { frame: self.frame.clone(), ..*self }
    }

    /// Executes an action that changes the frame or its metadata.
    fn change(&mut self, action: &RuleAction) {
        let headers = self.headers;
        match action {
            RuleAction::TunnelSet(set) => self.tunnel.set = Some(*set),
            RuleAction::TunnelUnset => self.tunnel = TunnelState::default(),
            RuleAction::Pedit(edits) => {
                self.frame.change(|bytes| edits.iter().for_each(|one| edit::edit(bytes, &headers, one)));
            }
            RuleAction::Checksum(checksums) => {
                // A frame that will be cut gets its checksums then.
                if self.frame.cut.is_none() {
                    self.frame.change(|bytes| edit::compute(bytes, &headers, checksums));
                }
            }
            RuleAction::VlanPush(tag) => {
                let control = edit::control_of(tag.id, tag.priority.unwrap_or(0));
                self.frame.change(|bytes| edit::push_vlan(bytes, tag.ether_type, control));
            }
            RuleAction::VlanPop => self.frame.change(|bytes| {
                let _ = edit::pop_vlan(bytes);
            }),
            RuleAction::VlanModify(tag) => self.frame.change(|bytes| edit::modify_vlan(bytes, tag)),
            _ => return,
        }
        self.headers = headers_of(&self.frame);
    }
}

impl Frame {
    /// Changes the bytes, in place if there is no other reference.
    fn change(&mut self, change: impl FnOnce(&mut BytesMut)) {
        let mut bytes = BytesMut::from(core::mem::take::<Bytes>(&mut self.bytes));
        change(&mut bytes);
        self.bytes = bytes.freeze();
    }
}

fn headers_of(frame: &Frame) -> Headers {
    if frame.cut.is_some() { Headers::parse_unfinished(&frame.bytes) } else { Headers::parse(&frame.bytes) }
}

/// Maps a hash to a port from `first` to `last`.
fn port_of(hash: u64, first: u16, last: u16) -> u16 {
    let count = u64::from(last.saturating_sub(first)) + 1;
    first + (((hash >> 32) * count) >> 32) as u16
}

/// Rate limit of ICMP messages to a function: sufficient for its flows, too low for a flood.
const TOLD: Police = Police { rate: 1_000_000, burst: 65_536 };
/// Mask of the VLAN id in a tag's control information.
pub(super) const ID: u16 = 0x0fff;
/// Length of a VLAN tag.
const TAG: usize = 4;
