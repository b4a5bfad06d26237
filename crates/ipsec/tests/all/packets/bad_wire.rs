//! A seeded wire that loses, duplicates, delays and forges frames: delivery through it, and rekeying over it.

use super::rig::{NOW, SecureEnd, payload, sa, tcp};
use super::{KINDS, MODES};
use ipsec::{SaEvent, SaId};
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use offload_api::{Direction, EspKey, EspMode, EspSuite, NetDevice, OffloadKind, SaParams};
use offload_base::Seed;
use offload_base::random::Rng;
use offload_esp::EspAt;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Frames under way, by arrival time.
struct BadWire {
    fate: Rng,
    under_way: BTreeMap<(u64, u64), Frame>,
    now: u64,
    taken: u64,
}

impl BadWire {
    fn new(seed: Seed) -> BadWire {
        BadWire { fate: seed.stream("wire"), under_way: BTreeMap::new(), now: 0, taken: 0 }
    }

    /// Adds a frame. Returns whether the frame will arrive.
    fn take(&mut self, frame: Frame) -> bool {
        if self.fate.chance(0.03) {
            return false;
        }
        if self.fate.chance(0.05) {
            let mut forged = frame.data.to_vec();
            let at = EspAt::find(&forged).expect("nothing but ESP is sent");
            // Only bytes that the ICV covers, so that every forgery must be detected.
            let byte = at.esp + self.fate.below((at.end - at.esp) as u64) as usize;
            forged[byte] ^= 1 << self.fate.below(8);
            self.send(Frame::from(forged));
        }
        if self.fate.chance(0.05) {
            self.send(frame.clone());
        }
        self.send(frame);
        true
    }

    fn send(&mut self, frame: Frame) {
        let late = if self.fate.chance(0.2) { self.fate.below(LATEST) } else { 0 };
        self.taken += 1;
        self.under_way.insert((self.now + late, self.taken), frame);
    }

    /// Returns the frames of the next step.
    fn step(&mut self) -> Vec<Frame> {
        self.now += 1;
        let later = self.under_way.split_off(&(self.now, 0));
        core::mem::replace(&mut self.under_way, later).into_values().collect()
    }

    fn carries(&self, spi: u32) -> bool {
        self.under_way.values().any(|frame| EspAt::find(&frame.data).is_some_and(|at| at.spi == spi))
    }
}

/// Two ends and the wire between them. The payload of each packet is its number.
struct WireRun {
    from: SecureEnd,
    to: SecureEnd,
    wire: BadWire,
    load: Rng,
    ipv6: bool,
    sent: u64,
    /// Numbers of packets that the wire did not lose, and numbers of delivered packets.
    expected: BTreeSet<u64>,
    delivered: Vec<u64>,
    /// All frames, to be replayed.
    all: Vec<Frame>,
}

impl WireRun {
    fn new(seed: Seed, [sender, receiver]: [SaParams; 2]) -> WireRun {
        let (mut from, mut to) = (SecureEnd::new(1), SecureEnd::new(2));
        let ipv6 = sender.source.is_ipv6();
        from.key(&[sender]);
        to.key(&[receiver]);
        WireRun {
            from,
            to,
            wire: BadWire::new(seed),
            load: seed.stream("load"),
            ipv6,
            sent: 0,
            expected: BTreeSet::new(),
            delivered: Vec::new(),
            all: Vec::new(),
        }
    }

    /// Sends a burst and delivers the due frames.
    fn step(&mut self) {
        let numbers = self.sent..self.sent + 1 + self.load.below(BURST);
        let text: Vec<u8> = numbers.clone().flat_map(u64::to_be_bytes).collect();
        // One payload of eight bytes per segment, so that segmentation numbers the packets.
        let frames = self.from.send(tcp(self.ipv6, &text, Some(8)));
        assert_eq!(frames.len() as u64, numbers.end - numbers.start);
        for (frame, number) in frames.into_iter().zip(numbers.clone()) {
            let copy = frame.clone();
            if self.wire.take(frame) {
                self.expected.insert(number);
                self.all.push(copy);
            }
        }
        self.sent = numbers.end;
        self.arrive();
    }

    fn arrive(&mut self) {
        let frames = self.wire.step();
        for plain in self.to.receive(frames) {
            let numbers = payload(&plain).chunks(8).map(|number| u64::from_be_bytes(number.try_into().unwrap()));
            self.delivered.extend(numbers);
        }
    }

    /// Stops sending. Each packet that was not lost must have been delivered once, and a replay of all frames delivers
    /// no packet.
    fn end(&mut self) {
        while !self.wire.under_way.is_empty() {
            self.arrive();
        }
        let once: BTreeSet<u64> = self.delivered.iter().copied().collect();
        assert_eq!(once.len(), self.delivered.len(), "nothing was delivered twice");
        assert!(once == self.expected, "exactly the packets that arrived were delivered");
        let again = core::mem::take(&mut self.all);
        assert_eq!(self.to.receive(again).len(), 0, "a replay of everything");
    }
}

/// A keying daemon: adds the receiver's SA first, then the sender's, and finally deletes both old SAs.
struct Keyer {
    current: [SaId; 2],
    before: Option<[Option<SaId>; 2]>,
    rounds: u32,
}

impl Keyer {
    fn new(course: &WireRun) -> Keyer {
        let only = |end: &SecureEnd| end.secure.sad().ids().next().expect("an SA");
        Keyer { current: [only(&course.from), only(&course.to)], before: None, rounds: 0 }
    }

    fn spi(&self, round: u32) -> u32 {
        0x1001 + 0x1000 * round
    }

    fn advance(&mut self, course: &mut WireRun) {
        let next = self.rounds + 1;
        let key = EspKey::new(EspSuite::Aes128Gcm, &[next as u8; 20]).expect("as long as its suite wants");
        let spi = self.spi(next);
        match self.before {
            None => {
                let added = course.to.keying().rekey_sa(NOW, self.current[1], spi, key).expect("a new SPI");
                course.to.drain();
                self.before = Some([None, Some(core::mem::replace(&mut self.current[1], added.sa))]);
            }
            Some([None, old]) => {
                let added = course.from.keying().rekey_sa(NOW, self.current[0], spi, key).expect("a new SPI");
                self.before = Some([Some(core::mem::replace(&mut self.current[0], added.sa)), old]);
            }
            // Deleting the SA now would lose packets under way.
            Some(_) if course.wire.carries(self.spi(self.rounds)) => {}
            Some([Some(sender), Some(receiver)]) => {
                course.from.keying().delete_sa(sender).expect("it was there");
                course.to.keying().delete_sa(receiver).expect("it was there");
                self.before = None;
                self.rounds = next;
            }
            Some([_, None]) => unreachable!("the receiver is first"),
        }
    }
}

fn reset(end: &mut SecureEnd) {
    end.device.reset(NOW);
    for _ in 0..4 {
        end.device.process(NOW);
        let _ = end.secure.poll_event();
    }
}

fn ends(ways: [OffloadKind; 2], mode: EspMode, ipv6: bool, last_number: u64) -> [SaParams; 2] {
    let of = |direction, way| SaParams { replay_window: 256, last_number, ..sa(direction, way, mode, ipv6) };
    [of(Direction::Transmit, ways[0]), of(Direction::Receive, ways[1])]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// RFC 4303 appendix A: only the lower half of a number is on the wire.
    #[test]
    fn numbers_are_recovered_across_edges_on_any_wire(
        seed: u64,
        sender in prop::sample::select(KINDS.to_vec()),
        receiver in prop::sample::select(KINDS.to_vec()),
        mode in prop::sample::select(MODES.to_vec()),
        ipv6: bool,
        edge in prop::sample::select(vec![1u64 << 31, 1 << 32, 5 << 32, u64::MAX - 2000]),
        before in 0u64..400,
    ) {
        let mut course = WireRun::new(Seed(seed), ends([sender, receiver], mode, ipv6, edge - before));
        while course.sent < before + 600 {
            course.step();
        }
        course.end();
        for (end, way) in [(&mut course.from, sender), (&mut course.to, receiver)] {
            let crossed = end.events().into_iter().filter(|event| matches!(event, SaEvent::Crossed { .. })).count();
            // Only devices report crossings, and the last number is not a crossing.
            let expected = before > 0 && edge % (1 << 31) == 0 && way == OffloadKind::Packet;
            prop_assert_eq!(crossed, usize::from(expected));
        }
    }

    #[test]
    fn rekeying_loses_nothing_on_any_wire(
        seed: u64,
        sender in prop::sample::select(KINDS.to_vec()),
        receiver in prop::sample::select(KINDS.to_vec()),
        mode in prop::sample::select(MODES.to_vec()),
        ipv6: bool,
        resets: bool,
    ) {
        let mut course = WireRun::new(Seed(seed), ends([sender, receiver], mode, ipv6, 0));
        let (mut keyer, mut moment) = (Keyer::new(&course), Seed(seed).stream("moments"));
        // Changes and resets happen at random moments between bursts.
        while keyer.rounds < 4 {
            course.step();
            if moment.chance(0.3) {
                keyer.advance(&mut course);
            }
            if resets && moment.chance(0.03) {
                reset(if moment.chance(0.5) { &mut course.from } else { &mut course.to });
            }
        }
        course.end();
        // None of these drops may be explained by a lost SA.
        for name in ["XfrmOutNoStates", "XfrmOutStateInvalid", "XfrmOutStateExpired", "XfrmInStateModeError"] {
            prop_assert_eq!(course.from.counted(name) + course.to.counted(name), 0, "{}", name);
        }
    }
}

/// Maximum delay of a frame in bursts, so that fewer packets overtake it than the replay window has.
const LATEST: u64 = 12;
const BURST: u64 = 12;
