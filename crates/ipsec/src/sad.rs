//! The security association database (RFC 4301 4.4.2).
//!
//! A packet to be sent finds its SA by its policy's template; the newest matching SA wins. A received packet finds its
//! SA by SPI, destination and source, then by SPI and destination, then by SPI alone (RFC 4301 4.1).
//!
//! Invariant: the packet indices hold an SA only while it can be used; [`find`](Sad::find) returns it until it is
//! deleted.

use crate::keying::{KeyingError, SaId};
use crate::memory::SaMarks;
use core::hash::BuildHasher;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use offload_api::ipsec::Packet;
use offload_api::{
    Direction, EspKey, EspMode, FlowKey, Handle, OffloadKind, SaParams, Selector, Slots, Template, UdpEncapsulation,
};
use offload_base::Instant;
use offload_base::QuickHash;
use offload_base::time::earliest;
use offload_esp::{EspCipher, LifetimeMeter, OuterHeaders, ReplayWindow, SendNumber, UDP_ENCAPSULATION_PORT};
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// A security association and its state.
///
/// ```
/// use ipsec::sad::{Sa, Sad};
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
/// use offload_base::Instant;
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let (here, there) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
/// let mut sad = Sad::default();
/// let id = sad.add(Instant::ZERO, SaParams::new(Direction::Transmit, 0x1001, here, there, key))?;
/// let sa: &Sa = sad.find(id).unwrap();
/// assert_eq!((sa.params.spi, sa.number()), (0x1001, 0), "nothing was sent yet");
/// # Ok::<(), ipsec::KeyingError>(())
/// ```
#[derive(Debug)]
pub struct Sa {
    /// The parameters with which the SA was added.
    pub params: SaParams,
    /// The cipher with the SA's key.
    pub(crate) cipher: EspCipher,
    /// The lifetime and its counts.
    pub(crate) meter: LifetimeMeter,
    /// The sequence numbers.
    pub(crate) sequence: Sequence,
    /// The path MTU that a router reported, if any.
    pub(crate) path_mtu: Option<SaPathMtu>,
    /// The last packet sent, for NAT keep-alives. `None` if no packet was sent or no keep-alives are configured.
    pub(crate) quiet: Option<LastSent>,
    /// The device queue by which the SA's packets leave and at which the device holds the SA.
    pub queue: usize,
    /// The flow of the last opened packet and the queue of its shard. For receiving SAs only.
    pub(crate) last_flow: Option<(FlowKey, usize)>,
    /// The SA's state in the device. `None` if it is handled in software.
    pub(crate) offload: Option<OffloadState>,
    /// The SA's ticket in the line of SAs that wait for room in the device.
    pub(crate) waits_for_room: Option<u64>,
    /// Whether the SA is used up: a hard limit was reached, or all sequence numbers are used.
    pub(crate) retired: bool,
    /// Whether the SA is lent: the device uses it for another host component and alone counts its numbers.
    pub(crate) lent: bool,
    /// The part of the sequence numbers that is written to the store.
    pub(crate) marks: SaMarks,
    /// The SA's time in the database's list of deadlines.
    deadline: Option<Instant>,
}

/// The sequence numbers of an SA, by direction.
#[derive(Debug)]
pub(crate) enum Sequence {
    /// The next number to send.
    Send(SendNumber),
    /// The window of received numbers.
    Receive(ReplayWindow),
}

/// A path MTU reported by a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SaPathMtu {
    /// The largest packet that passes, in bytes.
    pub(crate) bytes: u16,
    /// Time of the report.
    pub(crate) learned: Instant,
}

impl SaPathMtu {
    /// Returns the time at which larger packets are tried again.
    pub(crate) fn ends(&self) -> Instant {
        self.learned + PATH_MTU_AGE
    }
}

/// The last packet that left by an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastSent {
    /// Time at which the packet left.
    pub(crate) since: Instant,
    /// The packet's Ethernet addresses, destination and source.
    pub(crate) ethernet: [u8; offload_esp::ETHERNET - 2],
}

/// The state of an SA in the device.
#[derive(Debug)]
pub(crate) struct OffloadState {
    /// The device's handle of the SA.
    pub(crate) handle: Handle,
    /// The kind of offload.
    pub(crate) kind: OffloadKind,
    /// The device policies that lead to this SA, as selector and rank.
    pub(crate) selectors: SmallVec<[(Selector, u64); 1]>,
}

impl Sa {
    fn new(now: Instant, params: SaParams) -> Sa {
        let sequence = match params.direction {
            Direction::Transmit => Sequence::Send(SendNumber::new(params.last_number, params.esn)),
            Direction::Receive => {
                Sequence::Receive(ReplayWindow::new(params.replay_window, params.esn, params.last_number))
            }
        };
        let cipher = EspCipher::new(&params);
        Sa {
            cipher,
            meter: LifetimeMeter::new(now, params.lifetime),
            sequence,
            path_mtu: None,
            quiet: None,
            queue: 0,
            last_flow: None,
            offload: None,
            waits_for_room: None,
            retired: false,
            lent: false,
            marks: SaMarks::NONE,
            deadline: None,
            params,
        }
    }

    /// Returns the largest plain packet of a family that fits into ESP packets of `mtu` bytes.
    pub fn plain_mtu(&self, ipv6: bool, mtu: u16) -> u16 {
        OuterHeaders::plain_mtu(&self.params, ipv6, usize::from(mtu)) as u16
    }

    /// Returns the largest ESP packet, where the device takes `mtu` bytes.
    pub(crate) fn outer_mtu(&self, mtu: u16) -> u16 {
        self.path_mtu.map_or(mtu, |path| path.bytes.min(mtu))
    }

    /// Returns the time of the SA's next timer: the end of a lifetime, the expiry of a path MTU, or a keep-alive.
    pub fn next_event(&self) -> Option<Instant> {
        if self.retired {
            return None;
        }
        let path = self.path_mtu.as_ref().map(SaPathMtu::ends);
        earliest(earliest(self.meter.next_event(), path), self.keep_alive_due())
    }

    /// Returns the time of the next keep-alive, if no packet leaves before.
    pub(crate) fn keep_alive_due(&self) -> Option<Instant> {
        Some(self.quiet.as_ref()?.since + self.params.keep_alive?)
    }

    /// Returns the last number sent, or the highest received.
    pub fn number(&self) -> u64 {
        match &self.sequence {
            Sequence::Send(numbers) => numbers.last(),
            Sequence::Receive(window) => window.top(),
        }
    }

    /// Tests whether a policy with this template admits packets received by this SA.
    pub fn fits(&self, template: &Template) -> bool {
        let address = |wanted: Option<IpAddr>, own: IpAddr| wanted.is_none_or(|wanted| wanted == own || is_any(own));
        self.params.mode == template.mode
            && (template.reqid == 0 || template.reqid == self.params.reqid)
            && (template.mode == EspMode::Transport
                || (address(template.source, self.params.source)
                    && address(template.destination, self.params.destination)))
    }
}

/// A database of all SAs, indexed for both directions.
///
/// ```
/// use ipsec::Sad;
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
/// use offload_base::Instant;
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let (here, there) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
/// let mut sad = Sad::default();
/// let any_source = SaParams::new(Direction::Receive, 0x1000, "0.0.0.0".parse().unwrap(), here, key.clone());
/// let any_source = sad.add(Instant::ZERO, any_source)?;
/// let special = sad.add(Instant::ZERO, SaParams::new(Direction::Receive, 0x1000, there, here, key))?;
/// assert_eq!(sad.find_received(0x1000, there, here), Some(special));
/// assert_eq!(sad.find_received(0x1000, "10.0.0.9".parse().unwrap(), here), Some(any_source));
/// # Ok::<(), ipsec::KeyingError>(())
/// ```
#[derive(Debug, Default)]
pub struct Sad {
    slots: Slots<Box<Sa>>,
    /// Transmitting SAs by template, the newest last. Each SA is entered under its own reqid and under 0, which matches
    /// any.
    wanted: HashMap<TemplateKey, SmallVec<[SaId; 2]>, QuickHash>,
    received: HashMap<ReceiveKey, SaId, QuickHash>,
    /// Transmitting SAs by SPI, source and destination.
    sent: HashMap<(u32, IpAddr, IpAddr), SaId, QuickHash>,
    /// Number of transmitting SAs per source address.
    own: HashMap<IpAddr, usize, QuickHash>,
    /// Number of receiving SAs per source and destination. Only looked up, never iterated, so the hash order cannot
    /// affect a run.
    pairs: HashMap<(IpAddr, IpAddr), usize, QuickHash>,
    /// The SAs' next timers.
    deadlines: BTreeSet<(Instant, SaId)>,
    /// Numbers of transmitting and receiving SAs per key and salt, by a keyed hash that an attacker cannot predict.
    /// Only looked up, never iterated.
    keys: HashMap<u64, [u32; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TemplateKey {
    mode: EspMode,
    source: IpAddr,
    destination: IpAddr,
    reqid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ReceiveKey {
    spi: u32,
    destination: Option<IpAddr>,
    source: Option<IpAddr>,
}

impl Sad {
    /// Adds an SA.
    ///
    /// # Errors
    /// If an SA exists that the same packets would find, or the parameters contradict each other, or an SA of the other
    /// direction has the same key and salt.
    pub fn add(&mut self, now: Instant, params: SaParams) -> Result<SaId, KeyingError> {
        check(&params)?;
        if params.direction == Direction::Receive && self.received.contains_key(&ReceiveKey::from_params(&params)) {
            return Err(KeyingError::Exists);
        }
        // The peer could not tell the two SAs apart, even if they serve different policies here.
        let sent = (params.spi, params.source, params.destination);
        if params.direction == Direction::Transmit && self.sent.contains_key(&sent) {
            return Err(KeyingError::Exists);
        }
        // Both ends count from one, so the nonces sent would equal the nonces received.
        let hash = self.hash(&params.key);
        let users = self.keys.entry(hash).or_default();
        if users[1 - params.direction as usize] > 0 {
            return Err(KeyingError::KeyOfOtherDirection);
        }
        users[params.direction as usize] += 1;
        let sa = Box::new(Sa::new(now, params));
        let id = SaId(self.slots.insert(sa).expect("memory ends before 2^32 SAs"));
        self.connect(id);
        self.note_deadline(id);
        Ok(id)
    }

    /// Returns an SA.
    pub fn find(&self, id: SaId) -> Option<&Sa> {
        self.slots.get(id.0).map(|sa| &**sa)
    }

    /// Returns an SA for changes. After a change of its timers, call [`note_deadline`](Self::note_deadline).
    pub(crate) fn find_mut(&mut self, id: SaId) -> Option<&mut Sa> {
        self.slots.get_mut(id.0).map(|sa| &mut **sa)
    }

    /// Removes an SA and its index entries.
    pub fn remove(&mut self, id: SaId) -> Option<Box<Sa>> {
        let params = &self.find(id)?.params;
        let sent = (params.spi, params.source, params.destination);
        if params.direction == Direction::Receive {
            let key = ReceiveKey::from_params(params);
            self.received.remove(&key);
            if let Entry::Occupied(mut users) = self.pairs.entry((sent.1, sent.2)) {
                *users.get_mut() -= 1;
                if *users.get() == 0 {
                    users.remove();
                }
            }
        }
        // Only the index entry of this SA may go: a receiving SA may share SPI and addresses with a transmitting one.
        if self.sent.get(&sent) == Some(&id) {
            self.sent.remove(&sent);
            self.remove_own_address(sent.1);
        }
        self.retire(id);
        let sa = self.slots.remove(id.0)?;
        // Both ends' counts of the key must be exact, or the key could not be used in the other direction later.
        let hash = self.hash(&sa.params.key);
        if let Entry::Occupied(mut users) = self.keys.entry(hash) {
            users.get_mut()[sa.params.direction as usize] -= 1;
            if *users.get() == [0; 2] {
                users.remove();
            }
        }
        Some(sa)
    }

    /// Ends an SA as used up, so that no packet to be sent finds it any more.
    pub fn retire(&mut self, id: SaId) {
        self.hide(id);
        let Some(sa) = self.find_mut(id) else { return };
        sa.retired = true;
        if let Some(at) = sa.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
    }

    /// Removes a transmitting SA from the policy index. A receiving SA stays indexed, so that its packets are counted
    /// as expired and not as unknown.
    pub(crate) fn hide(&mut self, id: SaId) {
        let Some(sa) = self.find(id).filter(|sa| sa.params.direction == Direction::Transmit) else { return };
        // The SA is entered under its own reqid and under 0.
        for key in [TemplateKey::from_params(&sa.params, sa.params.reqid), TemplateKey::from_params(&sa.params, 0)] {
            if let Some(ids) = self.wanted.get_mut(&key) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.wanted.remove(&key);
                }
            }
        }
    }

    /// Returns the newest SA for a packet that a policy protects by this template.
    pub fn find_wanted(&self, template: &Template, packet: &Packet) -> Option<SaId> {
        let (source, destination) = match template.mode {
            EspMode::Transport => (packet.source, packet.destination),
            EspMode::Tunnel => (template.source?, template.destination?),
        };
        let key = TemplateKey { mode: template.mode, source, destination, reqid: template.reqid };
        self.wanted.get(&key)?.last().copied()
    }

    /// Returns the SA of a received packet, by the most specific key.
    pub fn find_received(&self, spi: u32, source: IpAddr, destination: IpAddr) -> Option<SaId> {
        let (source, destination) = (Some(source), Some(destination));
        // RFC 4301 4.1 prescribes the order, from the most specific lookup.
        let keys = [(destination, source), (destination, None), (None, None)];
        keys.into_iter()
            .find_map(|(destination, source)| self.received.get(&ReceiveKey { spi, destination, source }).copied())
    }

    /// Tests whether an SA, possibly used up, receives packets from this source to this destination.
    pub(crate) fn receives_between(&self, source: IpAddr, destination: IpAddr) -> bool {
        self.pairs.contains_key(&(source, destination))
    }

    /// Returns the SA that was added with exactly this SPI and these addresses.
    pub(crate) fn find_exactly(
        &self,
        direction: Direction,
        spi: u32,
        source: IpAddr,
        destination: IpAddr,
    ) -> Option<SaId> {
        match direction {
            Direction::Transmit => self.find_sent(spi, source, destination),
            Direction::Receive => self.received.get(&ReceiveKey::new(spi, source, destination)).copied(),
        }
    }

    /// Returns the SA that sent a packet with these wire fields.
    pub(crate) fn find_sent(&self, spi: u32, source: IpAddr, destination: IpAddr) -> Option<SaId> {
        self.sent.get(&(spi, source, destination)).copied()
    }

    /// Tests whether an SA sends from this address, so that no other host may use it as a source.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains_key(&address)
    }

    /// Returns the number of SAs.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Tests whether the database is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the time of the earliest timer.
    pub fn next_event(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the next SA with a timer due at `now`.
    pub fn next_due(&self, now: Instant) -> Option<SaId> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// Updates an SA's entry in the list of deadlines.
    pub(crate) fn note_deadline(&mut self, id: SaId) {
        let Some(sa) = self.find_mut(id) else { return };
        let at = sa.next_event();
        if let Some(old) = core::mem::replace(&mut sa.deadline, at) {
            self.deadlines.remove(&(old, id));
        }
        if let Some(at) = at {
            self.deadlines.insert((at, id));
        }
    }

    /// Returns the identifiers of all SAs, in slot order.
    pub fn ids(&self) -> impl Iterator<Item = SaId> + '_ {
        self.slots.handles().map(SaId)
    }

    /// Returns the number of SAs of this direction that have a key.
    pub(crate) fn users_of(&self, direction: Direction, key: &EspKey) -> u32 {
        self.keys.get(&self.hash(key)).map_or(0, |users| users[direction as usize])
    }

    /// Hashes all inputs of nonces and key streams: key and salt.
    fn hash(&self, key: &EspKey) -> u64 {
        self.keys.hasher().hash_one((key.key(), key.salt()))
    }

    fn remove_own_address(&mut self, address: IpAddr) {
        if let Some(count) = self.own.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.own.remove(&address);
            }
        }
    }

    fn connect(&mut self, id: SaId) {
        let Some(params) = self.find(id).map(|sa| &sa.params) else { return };
        match params.direction {
            Direction::Transmit => {
                let mut keys: SmallVec<[TemplateKey; 2]> = SmallVec::new();
                // A template with reqid 0 accepts any SA, so every SA is entered under 0 too.
                keys.push(TemplateKey::from_params(params, params.reqid));
                if params.reqid != 0 {
                    keys.push(TemplateKey::from_params(params, 0));
                }
                let sent = (params.spi, params.source, params.destination);
                for key in keys {
                    self.wanted.entry(key).or_default().push(id);
                }
                self.sent.insert(sent, id);
                *self.own.entry(sent.1).or_default() += 1;
            }
            Direction::Receive => {
                let (key, pair) = (ReceiveKey::from_params(params), (params.source, params.destination));
                self.received.insert(key, id);
                *self.pairs.entry(pair).or_default() += 1;
            }
        }
    }
}

impl TemplateKey {
    fn from_params(params: &SaParams, reqid: u32) -> TemplateKey {
        TemplateKey { mode: params.mode, source: params.source, destination: params.destination, reqid }
    }
}

impl ReceiveKey {
    /// Builds the key by SPI, by SPI and destination, or by all three (RFC 4301 4.1); an unspecified address is left
    /// out.
    fn new(spi: u32, source: IpAddr, destination: IpAddr) -> ReceiveKey {
        let wanted = |address: IpAddr| (!is_any(address)).then_some(address);
        ReceiveKey { spi, destination: wanted(destination), source: wanted(source) }
    }

    fn from_params(params: &SaParams) -> ReceiveKey {
        ReceiveKey::new(params.spi, params.source, params.destination)
    }
}

fn check(params: &SaParams) -> Result<(), KeyingError> {
    if params.spi < FIRST_SPI {
        return Err(KeyingError::Spi(params.spi));
    }
    if params.source.is_ipv4() != params.destination.is_ipv4() {
        return Err(KeyingError::Addresses);
    }
    if params.direction == Direction::Transmit && (is_any(params.source) || is_any(params.destination)) {
        return Err(KeyingError::Addresses);
    }
    // RFC 4301 4.1 has no lookup by SPI and source alone: packets from any source would find the SA.
    if is_any(params.destination) && !is_any(params.source) {
        return Err(KeyingError::Addresses);
    }
    if !(MIN_REPLAY_WINDOW..=MAX_REPLAY_WINDOW).contains(&params.replay_window) {
        return Err(KeyingError::ReplayWindow(params.replay_window));
    }
    if params.last_number > offload_esp::number::limit(params.esn) {
        return Err(KeyingError::Number(params.last_number));
    }
    if params.keep_alive.is_some_and(|interval| interval.is_zero()) {
        return Err(KeyingError::KeepAlive);
    }
    if let Some(UdpEncapsulation { destination_port, .. }) = params.encapsulation {
        let possible = match params.direction {
            Direction::Receive => destination_port == UDP_ENCAPSULATION_PORT,
            // The other end's port as an address translator presents it, so any port is possible.
            Direction::Transmit => destination_port != 0,
        };
        if !possible {
            return Err(KeyingError::EncapsulationPort(destination_port));
        }
    }
    Ok(())
}

fn is_any(address: IpAddr) -> bool {
    address == IpAddr::V4(Ipv4Addr::UNSPECIFIED) || address == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
}

/// Age at which a path MTU is forgotten (RFC 1191 6.3, RFC 8201 5.3).
const PATH_MTU_AGE: Duration = Duration::from_secs(600);
/// The first SPI that is not reserved (RFC 4303 2.1).
const FIRST_SPI: u32 = 256;
/// RFC 4303 3.4.3 requires support for 32.
const MIN_REPLAY_WINDOW: u32 = 32;
const MAX_REPLAY_WINDOW: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::{EspSuite, Lifetime, Limits};

    fn sa(direction: Direction, spi: u32) -> SaParams {
        let key = EspKey::new(EspSuite::Aes128Gcm, &[7 + direction as u8; 20]).unwrap();
        SaParams::new(direction, spi, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key)
    }

    fn packet() -> Packet {
        Packet { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), protocol: 6, ports: None }
    }

    #[test]
    fn newest_sa_sends_until_retired_and_then_the_older() {
        let mut sad = Sad::default();
        let template = Template::transport(5);
        let old = sad.add(Instant::ZERO, SaParams { reqid: 5, ..sa(Direction::Transmit, 256) }).unwrap();
        let new = sad.add(Instant::ZERO, SaParams { reqid: 5, ..sa(Direction::Transmit, 257) }).unwrap();
        let other = sad.add(Instant::ZERO, SaParams { reqid: 6, ..sa(Direction::Transmit, 258) }).unwrap();
        assert_eq!(sad.find_wanted(&template, &packet()), Some(new));
        assert_eq!(sad.find_wanted(&Template::transport(0), &packet()), Some(other), "any reqid");
        assert_eq!(sad.find_wanted(&Template::transport(7), &packet()), None);
        // A rekey must be able to fall back to the old SA while that still exists.
        sad.retire(new);
        assert_eq!(sad.find_wanted(&template, &packet()), Some(old));
        assert!(sad.find(new).is_some(), "retired, not deleted");
        assert!(sad.remove(old).is_some() && sad.remove(old).is_none());
        assert_eq!(sad.find_wanted(&template, &packet()), None);
        assert_eq!(sad.len(), 2);
        let again = sad.add(Instant::ZERO, SaParams { reqid: 5, ..sa(Direction::Transmit, 259) }).unwrap();
        assert!(again.0.index == old.0.index && again != old, "a place used again has another name");
    }

    #[test]
    fn contradictory_parameters_are_refused() {
        let mut sad = Sad::default();
        // Each invalid parameter is tried alone in an otherwise valid SA.
        let mut add = |params| sad.add(Instant::ZERO, params).map(|_| ());
        assert_eq!(add(sa(Direction::Receive, 255)), Err(KeyingError::Spi(255)));
        assert_eq!(
            add(SaParams { replay_window: 31, ..sa(Direction::Receive, 256) }),
            Err(KeyingError::ReplayWindow(31))
        );
        let mixed = SaParams { source: "::1".parse().unwrap(), ..sa(Direction::Receive, 256) };
        assert_eq!(add(mixed), Err(KeyingError::Addresses));
        let nowhere = SaParams { destination: [0, 0, 0, 0].into(), ..sa(Direction::Transmit, 256) };
        assert_eq!(add(nowhere), Err(KeyingError::Addresses));
        let from_somebody = SaParams { destination: [0, 0, 0, 0].into(), ..sa(Direction::Receive, 256) };
        assert_eq!(add(from_somebody.clone()), Err(KeyingError::Addresses), "no look-up would hold to its source");
        assert_eq!(add(SaParams { source: [0, 0, 0, 0].into(), spi: 300, ..from_somebody }), Ok(()));
        let late = SaParams { last_number: 1 << 32, ..sa(Direction::Transmit, 256) };
        assert_eq!(add(late.clone()), Err(KeyingError::Number(1 << 32)));
        assert_eq!(add(SaParams { esn: true, ..late }), Ok(()));
        assert_eq!(add(sa(Direction::Receive, 256)), Ok(()));
        assert_eq!(add(sa(Direction::Receive, 256)), Err(KeyingError::Exists));
        assert_eq!(add(sa(Direction::Transmit, 256)), Err(KeyingError::Exists));
        let other_reqid = SaParams { reqid: 9, mode: EspMode::Tunnel, ..sa(Direction::Transmit, 256) };
        assert_eq!(add(other_reqid), Err(KeyingError::Exists), "one SA to the peer");
    }

    #[test]
    fn address_is_own_while_an_sa_sends_from_it() {
        let mut sad = Sad::default();
        let (own, peer) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        sad.add(Instant::ZERO, sa(Direction::Receive, 256)).unwrap();
        assert!(!sad.is_own(own) && !sad.is_own(peer));
        let two = [256, 257].map(|spi| sad.add(Instant::ZERO, sa(Direction::Transmit, spi)).unwrap());
        assert!(sad.is_own(own) && !sad.is_own(peer));
        sad.remove(two[0]);
        assert!(sad.is_own(own));
        sad.remove(two[1]);
        assert!(!sad.is_own(own));
    }

    #[test]
    fn key_is_refused_in_both_directions_at_once() {
        let (mut sad, here, there) = (Sad::default(), [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let key = || EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
        let sent = |spi| SaParams { key: key(), ..sa(Direction::Transmit, spi) };
        let answers = |spi| SaParams { source: there, destination: here, key: key(), ..sa(Direction::Receive, spi) };
        for (first, second) in [(sent(256), answers(257)), (answers(256), sent(257))] {
            // Two SAs of one direction share the key, so that removing one must not free the key.
            let firsts = [first.clone(), SaParams { spi: 300, ..first }];
            let ids = firsts.map(|params| sad.add(Instant::ZERO, params).unwrap());
            assert_eq!(sad.add(Instant::ZERO, second.clone()), Err(KeyingError::KeyOfOtherDirection));
            // The suite is not part of the nonce, so another suite does not help.
            let gmac = EspKey::new(EspSuite::Aes128Gmac, &[7; 20]).unwrap();
            let gmac = SaParams { key: gmac, ..second.clone() };
            assert_eq!(sad.add(Instant::ZERO, gmac), Err(KeyingError::KeyOfOtherDirection), "the same key and nonces");
            let other = EspKey::new(EspSuite::Aes128Gcm, &[9; 20]).unwrap();
            let other = sad.add(Instant::ZERO, SaParams { key: other, ..second.clone() }).unwrap();
            sad.remove(ids[0]);
            sad.remove(other);
            assert_eq!(sad.add(Instant::ZERO, second.clone()), Err(KeyingError::KeyOfOtherDirection), "one is left");
            sad.remove(ids[1]);
            let id = sad.add(Instant::ZERO, second).unwrap();
            sad.remove(id);
            assert!(sad.keys.is_empty());
        }
    }

    #[test]
    fn deadlines_follow_lifetimes() {
        let mut sad = Sad::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let hard = |seconds| Lifetime {
            hard: Limits { time: Some(Duration::from_secs(seconds)), ..Limits::default() },
            ..Lifetime::default()
        };
        let late = sad.add(Instant::ZERO, SaParams { lifetime: hard(9), ..sa(Direction::Receive, 256) }).unwrap();
        let soon = sad.add(Instant::ZERO, SaParams { lifetime: hard(3), ..sa(Direction::Receive, 257) }).unwrap();
        assert_eq!((sad.next_event(), sad.next_due(at(2)), sad.next_due(at(3))), (Some(at(3)), None, Some(soon)));
        sad.remove(soon);
        assert_eq!(sad.next_event(), Some(at(9)));
        // An update moves the deadline, and the list must follow.
        sad.find_mut(late).unwrap().meter.renew(at(1), hard(1));
        sad.note_deadline(late);
        assert_eq!(sad.next_event(), Some(at(2)));
    }
}
