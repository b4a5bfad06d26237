//! Steering by a Linux machine: it has the representors as network cards, and an agent beside it, `linux-mirror tc`,
//! sends the flower filters of its kernel. The Linux machine forwards the frames that no filter takes.
//!
//! If it has the uplink's representor, the Linux machine is the NIC's host for everyone outside: it has the host's
//! addresses, receives the wire's frames that no rule takes, and its own frames leave by the wire, under an SA if the
//! host's policies say so. If its daemon negotiates SAs, the daemon's messages wait until the emulated host has the
//! state that the Linux kernel got before them.
//!
//! Invariant: one agent at a time, of this process's owner; a frame of a representor whose Linux machine is absent or
//! has no room is dropped and counted.

use super::options::other_end;
use bytes::{Bytes, BytesMut};
use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use linux_mirror::tc::{FilterMirror, FilterMirrorCounters};
use linux_mirror::{MirrorListener, is_of_owner};
use nic_sim::Vport;
use nic_sim::switch::{Mac, Rule, RuleReport};
use offload_base::Instant;
use offload_console::say;
use offload_testbed::attach::{FrameClass, FrameClassifier, Gate, GateCounters, GateQueue, bind_in_place_of_the_dead};
use offload_testbed::runtime::Runtime;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::{UnixDatagram, UnixListener, UnixStream};

/// A representor as a network card of a Linux machine: `pf0vf0=rep0.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepresentorAt {
    /// The represented port.
    pub port: Vport,
    /// The socket of this end.
    pub socket: PathBuf,
}

impl FromStr for RepresentorAt {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<RepresentorAt, &'static str> {
        let (port, socket) = text.split_once('=').filter(|(_, socket)| !socket.is_empty()).unwrap_or_default();
        let port =
            port.parse().map_err(|_| "a representor is PORT=SOCKET, for example p0=rep-p0.sock or pf0vf0=rep0.sock")?;
        Ok(RepresentorAt { port, socket: socket.into() })
    }
}

/// The steering Linux machine.
#[derive(Debug)]
pub struct LinuxSteering {
    representors: Vec<Representor>,
    listener: Option<MirrorListener>,
    agents: Option<UnixListener>,
    agent: Option<UnixStream>,
    mirror: FilterMirror,
    /// The message that is being sent to the agent, and its number of sent bytes.
    sending: (Vec<u8>, usize),
    scratch: BytesMut,
    /// Queue of a keying daemon's messages. `None`: the SAs of the Linux kernel are not mirrored.
    said: Option<GateQueue<Bytes>>,
    /// Ethernet address of the Linux machine. Frames from this address are its own; frames from others are forwarded.
    own: Mac,
    concerns: FrameClassifier,
    counts: Arc<Mutex<SteeringCounters>>,
}

/// Counters of representors, of filters, and of a keying daemon's messages.
pub type SteeringCounters = (RepresentorCounters, FilterMirrorCounters, GateCounters);

#[derive(Debug)]
struct Representor {
    port: Vport,
    /// The bound socket. `None` until [`LinuxSteering::open`].
    socket: Option<UnixDatagram>,
    ours: PathBuf,
    theirs: PathBuf,
}

offload_base::counters! {
    /// Counters of frames at representors.
    pub struct RepresentorCounters {
        /// Frames delivered to the Linux machine.
        pub to_linux: "representor_to_linux",
        /// Frames dropped because the Linux machine was absent or had no room.
        pub lost: "representor_lost",
        /// Frames sent by the Linux machine.
        pub of_linux: "representor_of_linux",
        /// Dropped ESP frames that the Linux kernel made with the NIC's own SAs.
        pub blocked_esp: "representor_blocked_esp",
    }
}

/// An event from the Linux machine.
#[derive(Debug)]
pub(super) enum SteeringEvent {
    /// A frame at a representor.
    Frame(Vport, Bytes),
    /// The complete set of rules.
    Rules(Vec<Rule>),
}

impl LinuxSteering {
    /// Creates a steering with these representors, for an agent that connects to the socket `filters`.
    ///
    /// # Errors If the socket cannot be made.
    pub fn new(representors: &[RepresentorAt], filters: Option<&Path>) -> io::Result<LinuxSteering> {
        let representors = representors.iter().map(|RepresentorAt { port, socket }| Representor {
            port: *port,
            socket: None,
            ours: socket.clone(),
            theirs: other_end(socket),
        });
        Ok(LinuxSteering {
            representors: representors.collect(),
            listener: filters.map(MirrorListener::bind).transpose()?,
            agents: None,
            agent: None,
            mirror: FilterMirror::new(),
            sending: (Vec::new(), 0),
            scratch: BytesMut::zeroed(1 << 16),
            said: None,
            own: Mac::default(),
            concerns: FrameClassifier::default(),
            counts: Arc::default(),
        })
    }

    /// Returns whether the Linux machine has the uplink's representor.
    pub(super) fn has_uplink(&self) -> bool {
        self.representors.iter().any(|representor| representor.port == Vport::Uplink)
    }

    /// Opens the sockets that need a runtime. With a `gate`, messages of the machine's daemon wait there; `own` is the
    /// machine's address at the uplink.
    ///
    /// # Errors If a socket cannot be made.
    pub(super) fn open(&mut self, gate: Option<Gate>, own: Mac) -> io::Result<()> {
        (self.said, self.own) = (gate.map(GateQueue::new), own);
        for representor in &mut self.representors {
            let socket = bind_in_place_of_the_dead(&representor.ours)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", representor.ours.display())))?;
            socket.set_nonblocking(true)?;
            representor.socket = Some(UnixDatagram::from_std(socket)?);
        }
        if let Some(listener) = &self.listener {
            let agents = listener.socket().try_clone()?;
            agents.set_nonblocking(true)?;
            self.agents = Some(UnixListener::from_std(agents)?);
        }
        Ok(())
    }

    /// Sends a frame to the Linux machine at the representor of a port.
    pub(super) fn represent(&mut self, port: Vport, frame: &[u8]) {
        let Some(representor) = self.representors.iter_mut().find(|one| one.port == port) else { return };
        let sent =
            representor.socket.as_ref().is_some_and(|socket| socket.try_send_to(frame, &representor.theirs).is_ok());
        let counts = &mut lock(&self.counts).0;
        *if sent { &mut counts.to_linux } else { &mut counts.lost } += 1;
    }

    /// Sends the rules' counters to the agent.
    pub(super) fn report(&mut self, now: Instant, rules: &[RuleReport]) {
        self.mirror.report(now, rules);
    }

    /// Returns the shared counters, which can be read while another task serves.
    pub fn counters(&self) -> Arc<Mutex<SteeringCounters>> {
        self.counts.clone()
    }

    /// Handles a frame from the Linux machine: returns it, queues it or drops it.
    fn hear(&mut self, now: Instant, port: Vport, frame: Bytes) -> Option<SteeringEvent> {
        let counts = &mut lock(&self.counts).0;
        counts.of_linux += 1;
        // Only the uplink carries the daemon's messages, so other ports are not inspected.
        let Some(said) = self.said.as_mut().filter(|_| port == Vport::Uplink) else {
            return Some(SteeringEvent::Frame(port, frame));
        };
        let is_own = frame.get(6..12) == Some(&self.own.0);
        match if is_own { self.concerns.classify(&frame) } else { FrameClass::classify(&frame) } {
            // The Linux kernel has the same SAs as the NIC. If both sent, numbers of packets would repeat.
            FrameClass::Esp => {
                counts.blocked_esp += 1;
                None
            }
            FrameClass::Ike if is_own => {
                said.push(now, frame);
                None
            }
            _ => Some(SteeringEvent::Frame(port, frame)),
        }
    }

    /// Returns the next event. Cancellation loses no event.
    pub(super) async fn next(&mut self, runtime: &Arc<dyn Runtime>) -> SteeringEvent {
        loop {
            if let Some(frame) = self.said.as_mut().and_then(|said| said.pop(runtime.now())) {
                return SteeringEvent::Frame(Vport::Uplink, frame);
            }
            {
                let mut counts = lock(&self.counts);
                counts.1 = self.mirror.counters();
                counts.2 = self.said.as_ref().map(GateQueue::counters).unwrap_or_default();
            }
            if let Some(rules) = self.mirror.poll_rules() {
                return SteeringEvent::Rules(rules);
            }
            while let Some(refusal) = self.mirror.poll_refusal() {
                say!("filters: {refusal}");
            }
            if self.sending.1 == self.sending.0.len()
                && let Some(next) = self.mirror.poll_transmit()
            {
                self.sending = (next, 0);
            }
            let LinuxSteering { representors, agents, agent, sending, scratch, mirror, said, .. } = self;
            let connected = async {
                match agents {
                    Some(agents) => agents.accept().await,
                    None => core::future::pending().await,
                }
            };
            // A slow agent must not block the frames: unsent bytes wait until the socket is writable.
            let (unsent, is_sending) = (&sending.0[sending.1..], sending.1 < sending.0.len() && agent.is_some());
            let readable = async {
                match &agent {
                    Some(agent) => agent.readable().await,
                    None => core::future::pending().await,
                }
            };
            let writable = async {
                match &agent {
                    Some(agent) => agent.writable().await,
                    None => core::future::pending().await,
                }
            };
            tokio::select! {
                (number, length) = received(representors, scratch) => {
                    let (port, frame) = (representors[number].port, Bytes::copy_from_slice(&scratch[..length]));
                    if let Some(said) = self.hear(runtime.now(), port, frame) {
                        return said;
                    }
                }
                () = may_leave(said.as_ref(), runtime) => {}
                Ok((new, _)) = connected => match (&agent, is_of_owner(&new)) {
                    (None, Ok(true)) => {
                        say!("filters: an agent is there");
                        mirror.connect();
                        *sending = (Vec::new(), 0);
                        *agent = Some(new);
                    }
                    (Some(_), Ok(true)) => say!("filters: refused a second agent"),
                    _ => say!("filters: refused an agent of another owner"),
                },
                ready = readable => {
                    // An agent that closes its socket reads as zero bytes, which is no error.
                    let read = ready.and_then(|()| match &agent {
                        Some(agent) => agent.try_read(scratch),
                        None => Err(ErrorKind::WouldBlock.into()),
                    });
                    match read {
                        Ok(length) if length > 0 => mirror.receive(&scratch[..length]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        _ => {
                            say!("filters: the agent went; rules stay");
                            *agent = None;
                        }
                    }
                }
                ready = writable, if is_sending => {
                    // The next read returns the error.
                    let wrote = ready.and_then(|()| agent.as_ref().map_or(Ok(0), |agent| agent.try_write(unsent)));
                    let length = wrote.unwrap_or(0);
                    sending.1 += length;
                }
            }
        }
    }
}

impl Drop for LinuxSteering {
    fn drop(&mut self) {
        for representor in self.representors.iter().filter(|representor| representor.socket.is_some()) {
            let _ = std::fs::remove_file(&representor.ours);
        }
    }
}

fn lock(counts: &Mutex<SteeringCounters>) -> MutexGuard<'_, SteeringCounters> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Completes when the next queued message may leave. Never completes if the queue is empty.
async fn may_leave(said: Option<&GateQueue<Bytes>>, runtime: &Arc<dyn Runtime>) {
    let Some((said, until)) = said.and_then(|said| Some((said, said.next_event()?))) else {
        return core::future::pending().await;
    };
    tokio::select! {
        () = said.passed() => {}
        () = runtime.sleep_until(until) => {}
    }
}

/// Receives the next frame and returns the index of its representor and its length.
async fn received(representors: &[Representor], bytes: &mut BytesMut) -> (usize, usize) {
    poll_fn(|cx| {
        for (number, representor) in representors.iter().enumerate() {
            let Some(socket) = &representor.socket else { continue };
            while socket.poll_recv_ready(cx).is_ready() {
                match socket.try_recv(bytes) {
                    Ok(length) => return Poll::Ready((number, length)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
        }
        Poll::Pending
    })
    .await
}

/// Interval at which each rule passes a frame to the Linux machine, because Open vSwitch deletes flows that were idle
/// for ten seconds.
pub(super) const SAMPLING: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn representors_are_read_or_refused() {
        let representor = RepresentorAt { port: Vport::Virtual(3), socket: "a=b".into() };
        assert_eq!("pf0vf3=a=b".parse(), Ok(representor));
        for text in ["", "p0", "p0=", "=a", "eth0=a", "vxlan0=a"] {
            assert!(text.parse::<RepresentorAt>().is_err(), "{text}");
        }
    }

    const OWN: Mac = Mac([2; 6]);

    /// Returns a UDP packet with `payload`, or a fragment at the offset `fragment`.
    fn udp(fragment: u16, ports: u16, payload: u8) -> Bytes {
        let ports = ports.to_be_bytes();
        let place = fragment.to_be_bytes();
        let mut frame =
            [&[9; 6][..], &OWN.0, &[8, 0, 0x45, 0, 0, 48, 0, 7], &place, &[64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]]
                .concat();
        frame.extend([&ports[..], &ports, &[0, 28, 0, 0], &[payload; 20]].concat());
        frame.into()
    }

    #[test]
    fn ike_waits_at_the_gate_and_kernel_esp_is_dropped() {
        let mut steering = LinuxSteering::new(&[], None).expect("it has no sockets");
        let gate = Gate::default();
        gate.attend(true);
        (steering.said, steering.own) = (Some(GateQueue::new(gate.clone())), OWN);
        let leaves = |steering: &mut LinuxSteering, port, frame: &Bytes| matches!(steering.hear(Instant::ZERO, port, frame.clone()), Some(SteeringEvent::Frame(at, left)) if (at, &left) == (port, frame));
        let (ike, first, rest) = (udp(0, 500, 7), udp(0x2000, 500, 7), udp(5, 500, 7));
        let held = [&ike, &first, &rest];
        assert!(held.iter().all(|frame| !leaves(&mut steering, Vport::Uplink, frame)));
        assert!(leaves(&mut steering, Vport::Virtual(0), &ike), "a tenant's daemon has SAs of its own");
        assert!(leaves(&mut steering, Vport::Uplink, &udp(0, 53, 7)));
        // Other fragments do not wait, and neither do forwarded frames of tenants that look like IKE.
        let of_tenant = |frame: &Bytes| Bytes::from([&frame[..6], &[2, 0, 0, 0, 1, 0], &frame[12..]].concat());
        for _ in 0..300 {
            assert!(held.iter().all(|frame| leaves(&mut steering, Vport::Uplink, &of_tenant(frame))));
            for other in [udp(0x2000, 53, 7), udp(5, 53, 7)] {
                let other = Bytes::from([&other[..18], &[0, 8], &other[20..]].concat());
                assert!(leaves(&mut steering, Vport::Uplink, &other));
            }
        }
        for esp in [udp(0, 4500, 7), udp(0x2000, 4500, 7)] {
            assert!(!leaves(&mut steering, Vport::Uplink, &esp));
        }
        // A full queue drops messages instead of passing them.
        assert!((0..1000).all(|_| !leaves(&mut steering, Vport::Uplink, &ike)));
        let said = steering.said.as_mut().expect("it was put there");
        assert_eq!(said.pop(Instant::ZERO), None);
        gate.pass(gate.asked().expect("a ticket"));
        assert!(held.iter().all(|frame| said.pop(Instant::ZERO).as_ref() == Some(*frame)), "in their order");
        assert_eq!((said.counters().full, lock(&steering.counts).0.blocked_esp), (747, 2));
    }
}
