//! A port for an emulated host with a Linux that negotiates its keys: both have one address, and the wire leads to
//! both.
//!
//! ```text
//!              IKE, finding neighbours    +--> Linux with a keying daemon: its network card
//!  outside --> KeyingFront ---------------+
//!              all the rest, ESP too      +--> the emulated host and its NIC
//! ```
//!
//! [`FrameClass`] separates IKE from other frames. Neighbour discovery goes to both, because both must learn neighbours;
//! only the emulated host answers.
//!
//! The daemon's IKE waits at a [`Gate`] until the emulated host has the changes that the daemon made to its kernel
//! earlier ([`GateQueue`]).
//!
//! Invariant: only IKE and neighbour solicitations leave the Linux. Its kernel has the same SAs as the emulated host
//! and must not send with these SAs.

use super::{FrameClass, FrameClassifier, Gate, GateCounters, GateQueue};
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::switch::NeighbourMessage;
use nic_sim::wire::Port;
use offload_base::Instant;
use offload_base::time::earliest;

/// A port to the outside for an emulated host, with a Linux that negotiates the host's keys.
///
/// ```
/// use nic_sim::wire::Port;
/// use offload_base::Instant;
/// use offload_testbed::attach::{DgramPort, KeyingFront};
/// use std::os::unix::net::UnixDatagram;
///
/// let (inside, outside) = UnixDatagram::pair()?;
/// let (beside, linux) = UnixDatagram::pair()?;
/// linux.set_nonblocking(true)?;
/// let mut front = KeyingFront::new(DgramPort::paired(inside)?, DgramPort::paired(beside)?);
/// // ARP comes to both.
/// let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
/// outside.send(&arp)?;
/// assert_eq!(front.poll_frame(Instant::ZERO).unwrap().data[..], arp);
/// assert_eq!(linux.recv(&mut [0; 100])?, 60);
/// // A kernel's ESP goes nowhere.
/// let mut esp = [&[2; 12][..], &[8, 0, 0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2], &[7; 12]].concat();
/// linux.send(&esp)?;
/// front.process(Instant::ZERO);
/// assert_eq!(front.counters().blocked, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct KeyingFront<O, D> {
    outside: O,
    daemon: D,
    /// IKE messages of the daemon that wait at the gate.
    said: GateQueue<Frame>,
    /// Classifiers of the Linux's frames and of outside frames.
    concerns: [FrameClassifier; 2],
    /// Whether the Linux and the outside may have more frames, because the last poll stopped at its limit.
    more: [bool; 2],
    counts: FrontCounters,
}

offload_base::counters! {
    /// Counters of a keying front.
    ///
    /// See [`KeyingFront`] for an example.
    pub struct FrontCounters {
        /// IKE and neighbour frames delivered to the Linux.
        pub to_daemon: "front_to_daemon",
        /// IKE and neighbour frames accepted from the Linux.
        pub of_daemon: "front_of_daemon",
        /// Frames of the Linux that were dropped because its kernel sent them on its own.
        pub blocked: "front_blocked",
        /// Dropped frames of the Linux that were ESP, in UDP or bare.
        pub blocked_esp: "front_blocked_esp",
    }
}

impl<O: Port, D: Port> KeyingFront<O, D> {
    /// Creates a front between the `outside` and an emulated host, with a Linux at `daemon`.
    pub fn new(outside: O, daemon: D) -> KeyingFront<O, D> {
        KeyingFront {
            outside,
            daemon,
            said: GateQueue::new(Gate::default()),
            concerns: Default::default(),
            more: [false; 2],
            counts: FrontCounters::default(),
        }
    }

    /// Returns the gate at which the daemon's messages wait.
    pub fn gate(&self) -> Gate {
        self.said.gate()
    }

    /// Returns the counters.
    pub fn counters(&self) -> FrontCounters {
        self.counts
    }

    /// Returns the counters of messages that waited at the gate.
    pub fn gate_counters(&self) -> GateCounters {
        self.said.counters()
    }

    /// Takes frames of the Linux, up to a limit, so that a flood of useless frames does not block other ports.
    fn hear_daemon(&mut self, now: Instant) {
        self.more[0] = false;
        for _ in 0..MAX_IN_A_ROW {
            let Some(frame) = self.daemon.poll_frame(now) else { return };
            match self.concerns[0].classify(&frame.data) {
                FrameClass::Ike => {
                    self.counts.of_daemon += 1;
                    self.said.push(now, frame);
                }
                FrameClass::NeighbourMessage(NeighbourMessage::Question) => {
                    self.counts.of_daemon += 1;
                    self.outside.receive_frame(now, frame);
                }
                concern => {
                    // The kernel sent this frame with SAs that belong to the emulated host. Two senders of one SA would
                    // reuse sequence numbers and nonces.
                    self.counts.blocked += 1;
                    self.counts.blocked_esp += u64::from(concern == FrameClass::Esp);
                }
            }
        }
        // The limit was reached: `next_event` asks for another turn at once.
        self.more[0] = true;
    }

    /// Releases the daemon's messages in order.
    fn let_pass(&mut self, now: Instant) {
        while let Some(frame) = self.said.pop(now) {
            self.outside.receive_frame(now, frame);
        }
    }

    fn tell_daemon(&mut self, now: Instant, frame: Frame) {
        self.counts.to_daemon += 1;
        self.daemon.receive_frame(now, frame);
        self.daemon.process(now);
    }
}

impl<O: Port, D: Port> Port for KeyingFront<O, D> {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        self.outside.receive_frame(now, frame);
    }

    fn receive_frames(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        self.outside.receive_frames(now, frames);
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        self.more[1] = false;
        for _ in 0..MAX_IN_A_ROW {
            let frame = self.outside.poll_frame(now)?;
            match self.concerns[1].classify(&frame.data) {
                FrameClass::Ike => self.tell_daemon(now, frame),
                FrameClass::NeighbourMessage(_) | FrameClass::Fragment => {
                    // The class of a fragment may be unknown here, so both receivers get a copy.
                    self.tell_daemon(now, frame.clone());
                    return Some(frame);
                }
                FrameClass::Esp | FrameClass::Other => return Some(frame),
            }
        }
        // The limit was reached: `next_event` asks for another turn at once.
        self.more[1] = true;
        None
    }

    fn process(&mut self, now: Instant) {
        self.hear_daemon(now);
        self.let_pass(now);
        self.outside.process(now);
        self.daemon.process(now);
    }

    fn next_event(&self) -> Option<Instant> {
        if self.more.contains(&true) {
            // Frames that were left unread ring no doorbell, so the next turn is due at once.
            return Some(Instant::ZERO);
        }
        earliest(self.said.next_event(), earliest(self.outside.next_event(), self.daemon.next_event()))
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.outside.register_doorbell(waker);
        self.daemon.register_doorbell(waker);
        self.said.register(waker);
    }
}

const MAX_IN_A_ROW: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_formats::protocol::{ESP, ICMPV6, UDP};
    use std::collections::VecDeque;

    const ARP: [u8; 2] = [8, 6];

    #[derive(Default)]
    struct FrontTestEnd {
        sends: VecDeque<Frame>,
        got: Vec<Frame>,
    }

    impl Port for FrontTestEnd {
        fn receive_frame(&mut self, _: Instant, frame: Frame) {
            self.got.push(frame);
        }
        fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
            self.sends.pop_front()
        }
        fn process(&mut self, _: Instant) {}
        fn next_event(&self) -> Option<Instant> {
            None
        }
        fn register_doorbell(&mut self, _: &Waker) {}
    }

    fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Frame {
        let length = (20 + payload.len()) as u16;
        let mut frame =
            [&[2; 12][..], &[8, 0, 0x45, 0], &length.to_be_bytes(), &[0, 1], &fragment.to_be_bytes()].concat();
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(payload);
        Frame::from(frame)
    }

    fn udp(source: u16, destination: u16, payload: &[u8]) -> Frame {
        let length = (8 + payload.len()) as u16;
        let header = [source.to_be_bytes(), destination.to_be_bytes(), length.to_be_bytes(), [0; 2]].concat();
        ipv4(UDP, 0, &[&header, payload].concat())
    }

    fn ike_in_part() -> Frame {
        ipv4(UDP, 0x2000, &[&[1, 0xf4, 1, 0xf4][..], &[0; 36]].concat())
    }

    fn neighbour(kind: u8) -> Frame {
        let mut frame = [&[2; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, ICMPV6, 255], &[0xfe; 32]].concat();
        frame.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
        Frame::from(frame)
    }

    fn arp(operation: u8) -> Frame {
        Frame::from([&[2; 12][..], &ARP, &[0, 1, 8, 0, 6, 4, 0, operation], &[0; 38]].concat())
    }

    /// Frames of each class. The flags: the host receives the frame from outside; the Linux receives the frame from
    /// outside; the Linux may send the frame.
    fn cases() -> Vec<(&'static str, Frame, bool, bool, bool)> {
        vec![
            ("IKE", udp(500, 500, &[7; 40]), false, true, true),
            ("IKE of a port behind a translator", udp(30_000, 500, &[7; 40]), false, true, true),
            ("IKE beside ESP in UDP", udp(4500, 4500, &[0, 0, 0, 0, 7]), false, true, true),
            ("ESP in UDP", udp(4500, 4500, &[0, 0, 16, 1, 0, 0, 0, 1, 9]), true, false, false),
            ("a keep-alive", udp(4500, 4500, &[0xff]), true, false, false),
            ("ESP", ipv4(ESP, 0, &[7; 40]), true, false, false),
            ("TCP", ipv4(6, 0, &[7; 40]), true, false, false),
            ("a ping", ipv4(1, 0, &[8; 40]), true, false, false),
            ("other UDP", udp(53, 53, &[0; 40]), true, false, false),
            ("a fragment of a datagram", ipv4(UDP, 0x2000, &[7; 40]), true, false, false),
            ("the end of a datagram", ipv4(UDP, 5, &[0; 40]), true, true, false),
            ("a fragment of IKE", ike_in_part(), false, true, true),
            (
                "a fragment of ESP in UDP",
                ipv4(UDP, 0x2000, &[&[0x11, 0x94, 0x11, 0x94][..], &[7; 36]].concat()),
                true,
                false,
                false,
            ),
            ("a question of ARP", arp(1), true, true, true),
            ("an answer of ARP", arp(2), true, true, false),
            ("a neighbour's solicitation", neighbour(135), true, true, true),
            ("a neighbour's advertisement", neighbour(136), true, true, false),
            ("a ping of ICMPv6", neighbour(128), true, false, false),
            ("nothing", Frame::from(Vec::new()), true, false, false),
        ]
    }

    #[test]
    fn ike_reaches_the_daemon_and_esp_the_host() {
        for (name, frame, host, daemon, _) in cases() {
            let mut front = KeyingFront::new(FrontTestEnd::default(), FrontTestEnd::default());
            front.outside.sends.push_back(frame.clone());
            let got = front.poll_frame(Instant::ZERO);
            assert_eq!(got.is_some(), host, "{name}: the host");
            assert_eq!(!front.daemon.got.is_empty(), daemon, "{name}: the Linux");
            assert!(got.iter().chain(&front.daemon.got).all(|got| got.data == frame.data), "{name}");
        }
    }

    /// Frames left over by the turn limit are handled without a doorbell.
    #[test]
    fn frames_beyond_a_turn_wait_for_the_next() {
        let mut front = KeyingFront::new(FrontTestEnd::default(), FrontTestEnd::default());
        let many = || (0..MAX_IN_A_ROW).map(|_| udp(500, 500, &[7; 40]));
        front.outside.sends.extend(many().chain([ipv4(ESP, 0, &[7; 40])]));
        assert!(front.poll_frame(Instant::ZERO).is_none());
        assert_eq!(front.next_event(), Some(Instant::ZERO));
        assert!(front.poll_frame(Instant::ZERO).is_some() && front.poll_frame(Instant::ZERO).is_none());
        assert_eq!(front.next_event(), None);
        front.daemon.sends.extend((0..MAX_IN_A_ROW).map(|_| ipv4(ESP, 0, &[7; 40])));
        front.process(Instant::ZERO);
        assert_eq!(front.next_event(), Some(Instant::ZERO));
        front.process(Instant::ZERO);
        assert_eq!(front.next_event(), None);
    }

    #[test]
    fn only_ike_and_solicitations_leave_the_linux() {
        for (name, frame, _, _, leaves) in cases() {
            let mut front = KeyingFront::new(FrontTestEnd::default(), FrontTestEnd::default());
            front.daemon.sends.push_back(frame);
            front.process(Instant::ZERO);
            assert_eq!(!front.outside.got.is_empty(), leaves, "{name}");
            let FrontCounters { of_daemon, blocked, .. } = front.counters();
            assert_eq!((of_daemon, blocked), (leaves.into(), (!leaves).into()), "{name}");
        }
    }

    /// Certificates make IKE messages larger than the path MTU, so that fragments occur.
    #[test]
    fn fragments_of_ike_pass_in_order() {
        let rest = ipv4(UDP, 5, &[0; 40]);
        let esp = ipv4(UDP, 0x2000, &[&[0x11, 0x94, 0x11, 0x94][..], &[7; 36]].concat());
        let mut front = KeyingFront::new(FrontTestEnd::default(), FrontTestEnd::default());
        front.outside.sends.extend([ike_in_part(), rest.clone()]);
        assert!(front.poll_frame(Instant::ZERO).is_none());
        assert_eq!(front.daemon.got.len(), 2);
        let gate = front.gate();
        gate.attend(true);
        front.daemon.sends.extend([ike_in_part(), rest.clone()]);
        front.process(Instant::ZERO);
        assert_eq!(front.outside.got.len(), 0, "they wait");
        gate.pass(gate.asked().expect("a ticket"));
        front.process(Instant::ZERO);
        let left: Vec<_> = front.outside.got.drain(..).map(|frame| frame.data).collect();
        assert_eq!(left, [ike_in_part().data, rest.data.clone()]);
        // The identification belongs to another packet now.
        front.daemon.sends.extend([esp, rest]);
        front.process(Instant::ZERO);
        assert_eq!((front.outside.got.len(), front.counters().blocked), (0, 2));
    }

    #[test]
    fn daemon_messages_wait_at_the_gate() {
        let mut front = KeyingFront::new(FrontTestEnd::default(), FrontTestEnd::default());
        let gate = front.gate();
        gate.attend(true);
        front.daemon.sends.extend([udp(500, 500, &[7; 40]), arp(1)]);
        front.process(Instant::ZERO);
        assert_eq!(front.outside.got.len(), 1, "who looks for a neighbour does not wait");
        let due = front.next_event().expect("the message has a time");
        gate.pass(gate.asked().expect("a ticket"));
        front.process(Instant::ZERO);
        assert_eq!(front.outside.got.len(), 2);
        front.daemon.sends.push_back(udp(500, 500, &[7; 40]));
        front.process(Instant::ZERO);
        front.process(due);
        let counts = GateCounters { waited: 2, impatient: 1, full: 0 };
        assert_eq!((front.outside.got.len(), front.gate_counters()), (3, counts));
    }

    #[test]
    fn host_frames_leave_unchanged() {
        for (name, frame, ..) in cases() {
            let mut front = KeyingFront::new(FrontTestEnd::default(), FrontTestEnd::default());
            front.receive_frame(Instant::ZERO, frame.clone());
            assert_eq!(front.outside.got.pop().map(|got| got.data), Some(frame.data), "{name}");
        }
    }

    #[test]
    fn ike_in_front_of_esp_does_not_hold_it_up() {
        let mut front = KeyingFront::new(FrontTestEnd::default(), FrontTestEnd::default());
        for _ in 0..10 {
            front.outside.sends.push_back(udp(500, 500, &[7; 40]));
        }
        front.outside.sends.push_back(ipv4(ESP, 0, &[7; 40]));
        assert!(front.poll_frame(Instant::ZERO).is_some());
        assert_eq!(front.counters().to_daemon, 10);
    }
}
