//! A NIC with a switch between its uplink and its functions.
//!
//! ```text
//! wire ─ ESP of the host's function: policy, SA, status ─ switch ─ function ─ ...        receive
//! ... ─ function ─ switch: wraps in tunnels ─ ESP of the host's function ─ wire          send
//!                       └ no rule: representor, to the host ┘
//! ```
//!
//! The host has a function of its own. In switchdev mode that is the representor of the uplink: what no rule takes of
//! what the wire brings is the host's, and what the host sends leaves by the wire. In legacy mode it is the physical function, a
//! port like others. In both, the SAs and policies that its driver has given it are those of the uplink, for all functions.
//! Frames of other representors come and go by the rings of [`nic_rings::eswitch`].
//!
//! - `uplink`: ESP on the way in and out; `member`: what hangs on a port; `manage`: what the host asks, and representors.
//!
//! Invariants: the port sends one frame at a time; what a function sends waits in its ring while the port has more than enough.

mod manage;
mod member;
mod uplink;

use crate::function::Function;
use crate::queue_pair::{Arrived, QueuePair};
use crate::stats::DeviceCounters;
use bytes::Bytes;
use core::task::Waker;
use manage::Manager;
use member::Member;
use nic_rings::NicConfig;
use nic_rings::dma::DmaBytes;
use nic_rings::eswitch::EswitchDeviceRings;
use nic_switch::{Egress, Frame, FunctionConfig, Mac, Mode, Neighbours, Switch, SwitchConfig, SwitchCounters, Vport};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_formats::{FragmentMemory, Headers};
use offload_wire::Port;
use std::collections::{BTreeMap, VecDeque};
pub use uplink::UplinkCounters;

/// An offload NIC with a switch, seen from its port and from the thread that runs it. Made by `nic_sim::switched_nic`.
///
/// ```
/// use nic_sim::wire::Port;
/// use nic_sim::{NicConfig, SwitchConfig, switched_nic};
/// use offload_base::Instant;
///
/// let (mut device, _host, _eswitch) = switched_nic(NicConfig::default(), SwitchConfig::default());
/// device.process(Instant::ZERO);
/// assert!(device.poll_frame(Instant::ZERO).is_none());
/// assert_eq!(device.switch_counters().frames_in, 0);
/// ```
#[derive(Debug)]
pub struct SwitchedDevice {
    config: NicConfig,
    switch: Switch,
    /// The host's own.
    host: Function,
    /// The others, by port.
    functions: Vec<(Vport, Member)>,
    manager: Manager,
    /// Whether what no rule takes of the wire's frames is shown on the rings, and not to the host's own function.
    uplink_represented: bool,
    /// Of packets that leave in fragments: whether they may be a tunnel's. Each sender has its own, for others may use its addresses.
    fragments_out: BTreeMap<Sender, FragmentMemory<bool>>,
    /// Frames from the wire that engines are still busy with, and when these are done.
    arriving: VecDeque<(Instant, Bytes, (usize, Arrived))>,
    /// What the port is to send, and from when on.
    leaving: VecDeque<(Instant, Bytes)>,
    /// When the port has sent what it was given.
    port_free_at: Instant,
    /// The function that is asked for a frame next; the host's is behind the last.
    turn: usize,
    /// When a turn ended though functions had more: the next one goes on at once.
    interrupted: Option<Instant>,
    /// What the switch gives out, while it is handed on.
    out: Vec<(Egress, Frame)>,
    counters: UplinkCounters,
}

/// Who sent a frame that is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sender {
    /// The host, by its own function: whatever was to be protected is, by now.
    Host,
    /// The host, by a representor.
    Representor,
    /// Somebody at a port.
    Port(Vport),
}

/// What a frame that came in was to the engines of the host's function, and at which of its queues.
type Arrival = Option<(usize, Arrived)>;

impl SwitchedDevice {
    /// For `nic-sim`, which makes the drivers as well. `config` is of the uplink and of the host's function.
    pub fn new(
        config: &NicConfig,
        switch: SwitchConfig,
        rings: EswitchDeviceRings,
        host: Vec<QueuePair>,
    ) -> SwitchedDevice {
        let mut switch = Switch::new(SwitchConfig { mtu: config.mtu, ..switch });
        let own = FunctionConfig { mtu: config.mtu, ..FunctionConfig::new(Mac(config.mac)) };
        switch.set_function(Vport::Physical, own);
        SwitchedDevice {
            switch,
            host: Function::new(config, host),
            functions: Vec::new(),
            manager: Manager::new(rings),
            uplink_represented: false,
            fragments_out: BTreeMap::new(),
            arriving: VecDeque::new(),
            leaving: VecDeque::new(),
            port_free_at: Instant::ZERO,
            turn: 0,
            interrupted: None,
            out: Vec::new(),
            counters: UplinkCounters::default(),
            config: config.clone(),
        }
    }

    /// Plugs a function in at a port, set up like this; one that was there is gone.
    ///
    /// # Panics
    /// If the port is the uplink or the physical function, which is the host's.
    pub fn plug(&mut self, port: Vport, config: FunctionConfig, function: Function) {
        self.put(port, config, Member::Function(Box::new(function)));
    }

    /// Plugs in at a port what has frames and no queues: a virtual machine of another process, for example.
    ///
    /// ```
    /// # use core::task::Waker;
    /// use nic_sim::frame::Frame;
    /// use nic_sim::switch::{FunctionConfig, Mac};
    /// use nic_sim::wire::Port;
    /// use nic_sim::{NicConfig, SwitchConfig, Vport, switched_nic};
    /// # use offload_base::Instant;
    /// # struct Machine;
    /// # impl Port for Machine {
    /// #     fn receive_frame(&mut self, _: Instant, _: Frame) {}
    /// #     fn poll_frame(&mut self, _: Instant) -> Option<Frame> { None }
    /// #     fn process(&mut self, _: Instant) {}
    /// #     fn next_event(&self) -> Option<Instant> { None }
    /// #     fn register_doorbell(&mut self, _: &Waker) {}
    /// # }
    ///
    /// let (mut device, _host, _eswitch) = switched_nic(NicConfig::default(), SwitchConfig::default());
    /// device.attach(Vport::Virtual(0), FunctionConfig::new(Mac([2, 0, 0, 0, 0, 9])), Machine);
    /// assert!(device.function(Vport::Virtual(0)).is_none(), "it has no queues here");
    /// ```
    ///
    /// # Panics
    /// As [`plug`](Self::plug) does.
    pub fn attach(&mut self, port: Vport, config: FunctionConfig, outside: impl Port + 'static) {
        self.put(port, config, Member::Outside(Box::new(outside)));
    }

    fn put(&mut self, port: Vport, config: FunctionConfig, member: Member) {
        assert!(!matches!(port, Vport::Uplink | Vport::Physical), "{port} is no port for a function");
        self.switch.set_function(port, config);
        match self.place_of(port) {
            Ok(place) => self.functions[place].1 = member,
            Err(place) => self.functions.insert(place, (port, member)),
        }
        // The thread that runs the device has to listen to its doorbells.
        self.manager.wake();
    }

    /// The host's own function.
    pub fn host(&self) -> &Function {
        &self.host
    }

    /// The function at a port; the physical one is the host's.
    ///
    /// ```
    /// use nic_sim::switch::{FunctionConfig, Mac};
    /// use nic_sim::{NicConfig, SwitchConfig, Vport, function, switched_nic};
    ///
    /// let (mut device, _host, _eswitch) = switched_nic(NicConfig::default(), SwitchConfig::default());
    /// let (plugged, _drivers) = function(NicConfig::default());
    /// device.plug(Vport::Virtual(0), FunctionConfig::new(Mac([2, 0, 0, 0, 0, 9])), plugged);
    /// assert!(device.function(Vport::Virtual(0)).is_some() && device.function(Vport::Virtual(1)).is_none());
    /// ```
    pub fn function(&self, port: Vport) -> Option<&Function> {
        match port {
            Vport::Physical => Some(&self.host),
            _ => self.place_of(port).ok().and_then(|place| self.functions[place].1.function()),
        }
    }

    /// What the NIC was built with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// What the switch counted.
    pub fn switch_counters(&self) -> &SwitchCounters {
        self.switch.counters()
    }

    /// What was counted at the uplink.
    pub fn uplink_counters(&self) -> &UplinkCounters {
        &self.counters
    }

    /// What all functions counted, together, but for engines.
    pub fn counters(&self) -> DeviceCounters {
        let mut all = self.host.counters();
        self.plugged().for_each(|function| all += function.counters());
        all
    }

    /// Adds what all functions counted to `set`, engines included.
    pub fn count_functions(&self, set: &mut CounterSet) {
        self.host.count(set);
        self.plugged().for_each(|function| function.count(set));
    }

    /// Adds what the switch, its uplink and the host's function counted to `set`: other functions are counted by
    /// their owners.
    pub fn count(&self, set: &mut CounterSet) {
        self.host.count(set);
        set.add(self.switch.counters());
        set.add(&self.counters);
    }

    /// What all functions moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = self.host.dma();
        self.plugged().for_each(|function| all += function.dma());
        all
    }

    /// Resets the NIC: every function's contexts are gone, the SAs of the uplink as well. Rules, tunnels and which networks are
    /// protected stay: until there are SAs again, nothing leaves by those.
    pub fn reset(&mut self, now: Instant) {
        self.arriving.clear();
        self.leaving.clear();
        self.host.reset(now);
        for (_, member) in &mut self.functions {
            let _there = member.reset(now);
        }
    }

    /// Resets one function. False: there is none.
    pub fn reset_function(&mut self, now: Instant, port: Vport) -> bool {
        match (port, self.place_of(port)) {
            (Vport::Physical, _) => self.host.reset(now),
            (_, Ok(place)) => return self.functions[place].1.reset(now),
            (_, Err(_)) => return false,
        }
        true
    }

    fn plugged(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter_map(|(_, member)| member.function())
    }

    fn place_of(&self, port: Vport) -> Result<usize, usize> {
        self.functions.binary_search_by_key(&port, |(port, _)| *port)
    }

    /// Takes frames from the functions, in turn, for as long as the port can take more, but not for ever: what is behind a function may have new
    /// ones as fast as they are taken.
    fn fill(&mut self, now: Instant) {
        let functions = self.functions.len() + 1;
        let (mut without, mut taken) = (0, 0);
        self.interrupted = None;
        while without < functions && self.leaving.len() < ENOUGH {
            if taken == TURN * functions {
                self.interrupted = Some(now);
                return;
            }
            let turn = self.turn;
            self.turn = (turn + 1) % functions;
            let frame = match self.functions.get_mut(turn) {
                Some((_, function)) => function.poll_frame(now),
                None => self.host.poll_frame(now),
            };
            let Some(frame) = frame else {
                without += 1;
                continue;
            };
            (without, taken) = (0, taken + 1);
            let from = self.functions.get(turn).map(|(port, _)| *port);
            self.switch_frame(now, from, frame.data);
        }
    }

    /// Takes a frame of a function, or of the host, through the switch.
    fn switch_frame(&mut self, now: Instant, from: Option<Vport>, frame: Bytes) {
        match (from, self.switch.mode()) {
            (Some(port), _) => self.switch.receive(now, port, Frame::from(frame), &mut self.out),
            (None, Mode::Legacy) => self.switch.receive(now, Vport::Physical, Frame::from(frame), &mut self.out),
            // Whatever was to be protected of what the host sends is, by now.
            (None, Mode::Switchdev) => return self.leave(now, frame),
        }
        self.hand_out(now, None, from.map_or(Sender::Host, Sender::Port));
    }

    /// Hands on what the switch gave out.
    fn hand_out(&mut self, now: Instant, mut arrival: Arrival, sender: Sender) {
        let mut out = core::mem::take(&mut self.out);
        for (egress, frame) in out.drain(..) {
            match egress {
                Egress::Port(Vport::Uplink) if sender == Sender::Host => self.leave(now, frame.bytes),
                Egress::Port(Vport::Uplink) => self.protect_and_leave(now, sender, frame),
                Egress::Representor(Vport::Uplink) if self.uplink_represented => {
                    self.represent(now, Vport::Uplink, frame.bytes.clone());
                    if Neighbours::of(&frame.bytes, &Headers::parse(&frame.bytes)).is_some() {
                        self.take_as_host(now, frame.bytes, arrival.take());
                    }
                }
                Egress::Port(Vport::Physical) | Egress::Representor(Vport::Uplink) => {
                    self.take_as_host(now, frame.bytes, arrival.take());
                }
                Egress::Port(port) => match self.place_of(port) {
                    Ok(place) => self.functions[place].1.take_frame(now, frame.bytes),
                    Err(_) => self.counters.no_function += 1,
                },
                Egress::Representor(port) => self.represent(now, port, frame.bytes),
            }
        }
        self.out = out;
    }

    fn represent(&mut self, now: Instant, port: Vport, frame: Bytes) {
        let shown = self.manager.represent(now, self.config.delays, port, frame);
        self.counters.representor_full += u64::from(!shown);
    }
}

impl Port for SwitchedDevice {
    fn receive_frame(&mut self, now: Instant, frame: offload_wire::frame::Frame) {
        self.receive_by_uplink(now, frame.data);
    }

    fn poll_frame(&mut self, now: Instant) -> Option<offload_wire::frame::Frame> {
        if self.port_free_at > now {
            return None;
        }
        if self.leaving.is_empty() {
            self.fill(now);
        }
        self.send_by_uplink(now)
    }

    fn process(&mut self, now: Instant) {
        self.manage(now);
        self.take_arriving(now);
        self.host.process(now);
        self.functions.iter_mut().for_each(|(_, function)| function.process(now));
        // Whatever the port does, functions may talk with each other.
        self.fill(now);
    }

    fn next_event(&self) -> Option<Instant> {
        let takes = self.leaving.len() < ENOUGH;
        let members = self.functions.iter().filter_map(|(_, member)| member.next_event(takes)).min();
        let host = if takes { self.host.next_event() } else { self.host.next_other() };
        let leaves = self.leaving.front().map(|(at, _)| self.port_free_at.max(*at));
        let arrives = self.arriving.front().map(|(at, ..)| *at);
        let others = earliest(self.manager.next_event(), self.interrupted.filter(|_| takes));
        earliest(earliest(members, host), earliest(earliest(arrives, leaves), others))
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.manager.register_doorbell(waker);
        self.host.register_doorbell(waker);
        self.functions.iter_mut().for_each(|(_, function)| function.register_doorbell(waker));
    }
}

/// Frames that are taken of each function, on average, before the uplink and the manager have their turn.
const TURN: usize = 64;
/// Frames that wait for the port, when functions are asked for no more.
const ENOUGH: usize = 16;
