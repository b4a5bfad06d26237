//! A Linux of its own steers the switch: it has the representors as network cards, and an agent beside it, `linux-mirror tc`, tells which flower
//! filters its kernel has. What no filter takes, that Linux forwards.
//!
//! With the uplink's representor, that Linux is the NIC's host to everybody outside: it has the host's addresses, hears what no rule takes of
//! the wire's frames, and what it sends leaves by the wire, under an SA if the host's policies say so. If its daemon negotiates SAs, what the
//! daemon says waits until the emulated host knows what the Linux' kernel was told before.
//!
//! Invariant: one agent at a time, of this process's owner; a frame of a representor whose Linux is not there, or has no room, goes nowhere
//! and is counted.

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

/// A representor as a network card of a Linux: `pf0vf0=rep0.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepresentorAt {
    /// Whose.
    pub port: Vport,
    /// The socket that this side receives at.
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

/// The Linux that steers.
#[derive(Debug)]
pub struct Steering {
    representors: Vec<Representor>,
    listener: Option<MirrorListener>,
    agents: Option<UnixListener>,
    agent: Option<UnixStream>,
    mirror: FilterMirror,
    /// What the agent is being told, and how much of it was.
    sending: (Vec<u8>, usize),
    scratch: BytesMut,
    /// What a keying daemon says; `None`: the SAs of that Linux' kernel are its own.
    said: Option<GateQueue<Bytes>>,
    /// What that Linux sends under its own address is the daemon's or its kernel's; the rest it forwards.
    own: Mac,
    concerns: FrameClassifier,
    counts: Arc<Mutex<SteeringCounters>>,
}

/// What is counted of representors, of filters, and of what a keying daemon says.
pub type SteeringCounters = (RepresentorCounters, FilterMirrorCounters, GateCounters);

#[derive(Debug)]
struct Representor {
    port: Vport,
    /// Bound when somebody serves it.
    socket: Option<UnixDatagram>,
    ours: PathBuf,
    theirs: PathBuf,
}

offload_base::counters! {
    /// What the Linux got and sent by representors.
    pub struct RepresentorCounters {
        /// Frames that the Linux got.
        pub to_linux: "representor_to_linux",
        /// Frames that it was not there for, or had no room for.
        pub lost: "representor_lost",
        /// Frames that it sent.
        pub of_linux: "representor_of_linux",
        /// Those of them that were ESP of its kernel under the NIC's own SAs, and went nowhere.
        pub blocked_esp: "representor_blocked_esp",
    }
}

/// What the Linux says.
#[derive(Debug)]
pub(super) enum Said {
    /// A frame by a representor.
    Frame(Vport, Bytes),
    /// All rules that there are to be.
    Rules(Vec<Rule>),
}

impl Steering {
    /// A Linux with these representors, whose agent comes to the socket `filters`.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn new(representors: &[RepresentorAt], filters: Option<&Path>) -> io::Result<Steering> {
        let representors = representors.iter().map(|RepresentorAt { port, socket }| Representor {
            port: *port,
            socket: None,
            ours: socket.clone(),
            theirs: other_end(socket),
        });
        Ok(Steering {
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

    /// Whether the Linux has the uplink's representor.
    pub(super) fn has_uplink(&self) -> bool {
        self.representors.iter().any(|representor| representor.port == Vport::Uplink)
    }

    /// Opens what only a runtime can. If SAs of the Linux' kernel are mirrored, what its daemon says waits at `gate`; `own` is the Linux' address
    /// at the uplink.
    ///
    /// # Errors
    /// If a socket cannot be made.
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

    /// Shows the Linux a frame at the representor of a port.
    pub(super) fn represent(&mut self, port: Vport, frame: &[u8]) {
        let Some(representor) = self.representors.iter_mut().find(|one| one.port == port) else { return };
        let sent =
            representor.socket.as_ref().is_some_and(|socket| socket.try_send_to(frame, &representor.theirs).is_ok());
        let counts = &mut lock(&self.counts).0;
        *if sent { &mut counts.to_linux } else { &mut counts.lost } += 1;
    }

    /// Tells the agent what rules did.
    pub(super) fn report(&mut self, now: Instant, rules: &[RuleReport]) {
        self.mirror.report(now, rules);
    }

    /// What is counted, to be looked at when somebody else serves.
    pub fn counters(&self) -> Arc<Mutex<SteeringCounters>> {
        self.counts.clone()
    }

    /// What becomes of a frame that the Linux sends: it leaves, perhaps later.
    fn hear(&mut self, now: Instant, port: Vport, frame: Bytes) -> Option<Said> {
        let counts = &mut lock(&self.counts).0;
        counts.of_linux += 1;
        let Some(said) = self.said.as_mut().filter(|_| port == Vport::Uplink) else {
            return Some(Said::Frame(port, frame));
        };
        let is_own = frame.get(6..12) == Some(&self.own.0);
        match if is_own { self.concerns.classify(&frame) } else { FrameClass::classify(&frame) } {
            // Its kernel has the same SAs as the NIC, and must not send by them.
            FrameClass::Esp => {
                counts.blocked_esp += 1;
                None
            }
            FrameClass::Ike if is_own => {
                said.push(now, frame);
                None
            }
            _ => Some(Said::Frame(port, frame)),
        }
    }

    /// The next thing that the Linux says. Nothing is lost if nobody waits for it any more.
    pub(super) async fn next(&mut self, runtime: &Arc<dyn Runtime>) -> Said {
        loop {
            if let Some(frame) = self.said.as_mut().and_then(|said| said.pop(runtime.now())) {
                return Said::Frame(Vport::Uplink, frame);
            }
            {
                let mut counts = lock(&self.counts);
                counts.1 = self.mirror.counters();
                counts.2 = self.said.as_ref().map(GateQueue::counters).unwrap_or_default();
            }
            if let Some(rules) = self.mirror.poll_rules() {
                return Said::Rules(rules);
            }
            while let Some(refusal) = self.mirror.poll_refusal() {
                say!("filters: {refusal}");
            }
            if self.sending.1 == self.sending.0.len()
                && let Some(next) = self.mirror.poll_transmit()
            {
                self.sending = (next, 0);
            }
            let Steering { representors, agents, agent, sending, scratch, mirror, said, .. } = self;
            let connected = async {
                match agents {
                    Some(agents) => agents.accept().await,
                    None => core::future::pending().await,
                }
            };
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
                    // An error is found when it is read from next.
                    let wrote = ready.and_then(|()| agent.as_ref().map_or(Ok(0), |agent| agent.try_write(unsent)));
                    let length = wrote.unwrap_or(0);
                    sending.1 += length;
                }
            }
        }
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        for representor in self.representors.iter().filter(|representor| representor.socket.is_some()) {
            let _somebody_removed_it = std::fs::remove_file(&representor.ours);
        }
    }
}

fn lock(counts: &Mutex<SteeringCounters>) -> MutexGuard<'_, SteeringCounters> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ready when the next message may leave, if one waits.
async fn may_leave(said: Option<&GateQueue<Bytes>>, runtime: &Arc<dyn Runtime>) {
    let Some((said, until)) = said.and_then(|said| Some((said, said.next_event()?))) else {
        return core::future::pending().await;
    };
    tokio::select! {
        () = said.passed() => {}
        () = runtime.sleep_until(until) => {}
    }
}

/// The next frame of a Linux: by which representor, and how long it is.
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

/// How often each rule leaves a frame to the Linux: Open vSwitch deletes what was idle for ten seconds.
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

    /// A packet of UDP with this in it, or a part of one from `place` on.
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
    fn all_of_ike_waits_at_the_gate_and_no_esp_of_the_kernel_leaves() {
        let mut steering = Steering::new(&[], None).expect("it has no sockets");
        let gate = Gate::default();
        gate.attend(true);
        (steering.said, steering.own) = (Some(GateQueue::new(gate.clone())), OWN);
        let leaves = |steering: &mut Steering, port, frame: &Bytes| matches!(steering.hear(Instant::ZERO, port, frame.clone()), Some(Said::Frame(at, left)) if (at, &left) == (port, frame));
        let (ike, first, rest) = (udp(0, 500, 7), udp(0x2000, 500, 7), udp(5, 500, 7));
        let held = [&ike, &first, &rest];
        assert!(held.iter().all(|frame| !leaves(&mut steering, Vport::Uplink, frame)));
        assert!(leaves(&mut steering, Vport::Virtual(0), &ike), "a tenant's daemon has SAs of its own");
        assert!(leaves(&mut steering, Vport::Uplink, &udp(0, 53, 7)));
        // Nor does anything else that is in fragments wait, or what tenants send that the Linux forwards, whatever it looks like.
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
        // Nor because too many wait.
        assert!((0..1000).all(|_| !leaves(&mut steering, Vport::Uplink, &ike)));
        let said = steering.said.as_mut().expect("it was put there");
        assert_eq!(said.pop(Instant::ZERO), None);
        gate.pass(gate.asked().expect("a ticket"));
        assert!(held.iter().all(|frame| said.pop(Instant::ZERO).as_ref() == Some(*frame)), "in their order");
        assert_eq!((said.counters().full, lock(&steering.counts).0.blocked_esp), (747, 2));
    }
}
