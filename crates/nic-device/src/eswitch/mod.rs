//! A NIC with a switch between its uplink and its functions.
//!
//! ```text
//! wire ─ ESP of the host's function: policy, SA, status ─ switch ─ function ─ ...        receive
//! ... ─ function ─ switch: wraps in tunnels ─ ESP of the host's function ─ wire          send
//!                       └ no rule: representor, to the host ┘
//! ```
//!
//! The host has its own function. In switchdev mode, this function is the representor of the uplink: it receives frames
//! from the wire that no rule takes, and its frames leave by the wire. In legacy mode, it is the physical function, an
//! ordinary port. In both modes, its driver's SAs and policies apply at the uplink to all functions. Frames of other
//! representors use the rings of [`nic_rings::eswitch`].
//!
//! - `uplink`: ESP on both directions of the uplink; `member`: the endpoint of a port; `manage`: the host's commands,
//!   and representors.
//!
//! Invariants: the port sends one frame at a time; functions keep their frames in their rings while the port's queue is
//! full.

mod manage;
mod member;
mod uplink;

use crate::function::Function;
use crate::queue_pair::{OpenResult, QueuePair};
use crate::stats::DeviceCounters;
use bytes::Bytes;
use core::task::Waker;
use manage::SwitchManager;
use member::PortEndpoint;
use nic_rings::NicConfig;
use nic_rings::dma::DmaBytes;
use nic_rings::eswitch::EswitchDeviceRings;
use nic_switch::{
    Egress, Frame, FunctionConfig, Mac, NeighbourMessage, Switch, SwitchConfig, SwitchCounters, SwitchMode, Vport,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_base::time::earliest;
use offload_formats::{FragmentMemory, Headers};
use offload_wire::Port;
use std::collections::{BTreeMap, VecDeque};
pub use uplink::UplinkCounters;

/// An offload NIC with a switch, for its port and the thread that runs it. Made by `nic_sim::switched_nic`.
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
    /// The host's own function.
    host: Function,
    /// The other functions, sorted by port.
    functions: Vec<(Vport, PortEndpoint)>,
    manager: SwitchManager,
    /// Whether frames from the wire that no rule takes go to the representor rings instead of the host's function.
    uplink_represented: bool,
    /// For outgoing fragmented packets: whether they may belong to a tunnel. Kept per sender, because a sender may
    /// forge another's addresses.
    fragments_out: BTreeMap<FrameSource, FragmentMemory<bool>>,
    /// Frames from the wire on which engines work, each with the time at which the work ends.
    arriving: VecDeque<(Instant, Bytes, (usize, OpenResult))>,
    /// Frames for the port, each with the earliest time of departure.
    leaving: VecDeque<(Instant, Bytes)>,
    /// Time at which the port has sent all frames so far.
    port_free_at: Instant,
    /// Index of the function to poll next; the host's function comes after the last.
    turn: usize,
    /// Set if a round ended while functions had more frames; the next round starts at once.
    interrupted: Option<Instant>,
    /// Output of the switch, while it is delivered.
    out: Vec<(Egress, Frame)>,
    counters: UplinkCounters,
}

/// The sender of a frame that is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FrameSource {
    /// The host's own function. Its frames are already protected where required.
    Host,
    /// The host through a representor.
    Representor,
    /// The endpoint of a port.
    Port(Vport),
}

/// The engines' result on a received frame, and the queue of the host's function that has the engine.
type OpenedArrival = Option<(usize, OpenResult)>;

impl SwitchedDevice {
    /// Makes a device. For `nic-sim`, which makes the drivers as well. `config` applies to the uplink and the host's
    /// function.
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
            manager: SwitchManager::new(rings),
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

    /// Attaches a function to a port and replaces an earlier one.
    ///
    /// # Panics
    /// If the port is the uplink or the physical function, which is the host's.
    pub fn plug(&mut self, port: Vport, config: FunctionConfig, function: Function) {
        self.put(port, config, PortEndpoint::Function(Box::new(function)));
    }

    /// Attaches an endpoint without queues to a port, for example a virtual machine of another process.
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
    /// assert!(device.function(Vport::Virtual(0)).is_none(), "the function has no queues here");
    /// ```
    ///
    /// # Panics
    /// As for [`plug`](Self::plug).
    pub fn attach(&mut self, port: Vport, config: FunctionConfig, outside: impl Port + 'static) {
        self.put(port, config, PortEndpoint::Outside(Box::new(outside)));
    }

    fn put(&mut self, port: Vport, config: FunctionConfig, member: PortEndpoint) {
        assert!(!matches!(port, Vport::Uplink | Vport::Physical), "a function cannot be attached to {port}");
        self.switch.set_function(port, config);
        match self.place_of(port) {
            Ok(place) => self.functions[place].1 = member,
            Err(place) => self.functions.insert(place, (port, member)),
        }
        // The device's thread must register for the doorbells of the new function.
        self.manager.wake();
    }

    /// Returns the host's own function.
    pub fn host(&self) -> &Function {
        &self.host
    }

    /// Returns the function at a port; the physical function is the host's.
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

    /// Returns the configuration.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Returns the counters of the switch.
    pub fn switch_counters(&self) -> &SwitchCounters {
        self.switch.counters()
    }

    /// Returns the counters of the uplink.
    pub fn uplink_counters(&self) -> &UplinkCounters {
        &self.counters
    }

    /// Returns the sum of all functions' counters, without engines.
    pub fn counters(&self) -> DeviceCounters {
        let mut all = self.host.counters();
        self.plugged().for_each(|function| all += function.counters());
        all
    }

    /// Adds the counters of all functions and engines to `set`.
    pub fn count_functions(&self, set: &mut CounterSet) {
        self.host.count(set);
        self.plugged().for_each(|function| function.count(set));
    }

    /// Adds the counters of the switch, the uplink and the host's function to `set`. The owners of other functions
    /// count these.
    pub fn count(&self, set: &mut CounterSet) {
        self.host.count(set);
        set.add(self.switch.counters());
        set.add(&self.counters);
    }

    /// Returns the bytes that all functions moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = self.host.dma();
        self.plugged().for_each(|function| all += function.dma());
        all
    }

    /// Resets the NIC: all functions lose their contexts, including the SAs of the uplink. Rules, tunnels and the list
    /// of protected networks stay, so protected networks send nothing until new SAs exist.
    pub fn reset(&mut self, now: Instant) {
        self.arriving.clear();
        self.leaving.clear();
        self.host.reset(now);
        for (_, member) in &mut self.functions {
            let _ = member.reset(now);
        }
    }

    /// Resets one function. Returns false if there is no function at the port.
    pub fn reset_function(&mut self, now: Instant, port: Vport) -> bool {
        match (port, self.place_of(port)) {
            (Vport::Physical, _) => {
                // The frames name contexts that the reset removes.
                self.arriving.clear();
                self.host.reset(now);
            }
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

    /// Takes frames from the functions in turn while the port's queue has room. The number of frames is bounded,
    /// because functions may produce new frames as fast as they are taken.
    fn fill(&mut self, now: Instant) {
        let functions = self.functions.len() + 1;
        let (mut without, mut taken) = (0, 0);
        self.interrupted = None;
        while without < functions && self.leaving.len() < MAX_LEAVING {
            if taken == FRAMES_PER_TURN * functions {
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

    /// Switches a frame of a function (`from`), or of the host.
    fn switch_frame(&mut self, now: Instant, from: Option<Vport>, frame: Bytes) {
        match (from, self.switch.mode()) {
            (Some(port), _) => self.switch.receive(now, port, Frame::from(frame), &mut self.out),
            (None, SwitchMode::Legacy) => self.switch.receive(now, Vport::Physical, Frame::from(frame), &mut self.out),
            // Frames of the host that needed protection have it by now.
            (None, SwitchMode::Switchdev) => return self.leave(now, frame),
        }
        self.hand_out(now, None, from.map_or(FrameSource::Host, FrameSource::Port));
    }

    /// Delivers the output of the switch.
    fn hand_out(&mut self, now: Instant, mut arrival: OpenedArrival, sender: FrameSource) {
        let mut out = core::mem::take(&mut self.out);
        for (egress, frame) in out.drain(..) {
            match egress {
                Egress::Port(Vport::Uplink) if sender == FrameSource::Host => self.leave(now, frame.bytes),
                Egress::Port(Vport::Uplink) => self.protect_and_leave(now, sender, frame),
                // Neighbour discovery must still reach the host's stack, which owns the tunnel endpoints' addresses.
                Egress::Representor(Vport::Uplink) if self.uplink_represented => {
                    self.represent(now, Vport::Uplink, frame.bytes.clone());
                    if NeighbourMessage::classify(&frame.bytes, &Headers::parse(&frame.bytes)).is_some() {
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
        // Functions can reach each other even if the port is busy.
        self.fill(now);
    }

    fn next_event(&self) -> Option<Instant> {
        let takes = self.leaving.len() < MAX_LEAVING;
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

/// Average number of frames per function before the uplink and the manager get their turn.
const FRAMES_PER_TURN: usize = 64;
/// Length of the port's queue at which functions are no longer polled.
const MAX_LEAVING: usize = 16;
