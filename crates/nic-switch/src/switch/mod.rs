//! The switch: a frame in by a port, frames out.
//!
//! ```text
//! function ─ rate, spoof check, its VLAN ─┐                     ┌─ its VLAN, MTU ─ function
//! uplink ── rules of p0 ── unwrap ────────┼─ rules, or legacy ──┼─ uplink
//!                                         │  (learned addresses)├─ wrap ─ uplink
//! host, by a representor ─────────────────┼─────────────────────┘
//!                                         └─ no rule: representor, to the host
//! ```
//!
//! Invariant: a frame meets the rules as they are when it comes, to its end: changes come between frames. What a function
//! sends under a foreign address, or with a tag that it may not have, reaches no rule and no port.

mod legacy;
mod passage;

use crate::action::Police;
use crate::addresses::Addresses;
use crate::frame::Frame;
use crate::function::FunctionConfig;
use crate::key::TunnelState;
use crate::overlay::{self, NextHop, Shown};
use crate::police::Bucket;
use crate::port::{Device, Egress, TunnelDevice, TunnelKind, Vport};
use crate::protection::{Protection, Protections};
use crate::rule::{Change, Rule};
use crate::table::{ChangeError, RuleCounters, Table};
use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
use offload_formats::frame::ETHERNET_BYTES;
use passage::{Outcome, Passing, Way};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Who decides where frames go; `devlink dev eswitch set ... mode` has these words.
///
/// See [`Switch`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Addresses, learned from frames; what goes to an unknown one is flooded. There are no rules.
    #[default]
    Legacy,
    /// Rules; what no rule takes goes to the representor.
    Switchdev,
}

/// A tunnel over the uplink.
///
/// See [`Switch::add_tunnel`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Its device.
    pub device: TunnelDevice,
    /// The uplink's addresses: packets to others are not unwrapped.
    pub local: Vec<IpAddr>,
    /// The UDP port that packets come to; that of the kind by default. GRE has none.
    pub port: Option<u16>,
    /// The longest packet that it carries, if that is less than the uplink leaves room for: ESP makes packets longer. Of longer ones
    /// the sender is told by ICMP.
    pub mtu: u16,
    /// The UDP ports that packets are sent from, the first and the last: which of them, a hash of the inner flow decides.
    pub source_ports: (u16, u16),
}

impl Tunnel {
    /// A tunnel at these addresses, at its usual port, that sends from the ports that RFC 7348 5 recommends.
    pub fn new(device: TunnelDevice, local: Vec<IpAddr>) -> Tunnel {
        Tunnel { device, local, port: device.kind.port(), mtu: u16::MAX, source_ports: (49_152, 65_535) }
    }
}

/// Sizes of a switch.
///
/// ```
/// assert_eq!(nic_switch::SwitchConfig::default().rules, 65_536);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// How many rules there is room for.
    pub rules: usize,
    /// How many addresses are learned of one port.
    pub addresses: usize,
    /// For how long an address is known that no frame comes from.
    pub aging: Duration,
    /// What a port may have flooded: frames to all, to groups and to unknown addresses.
    pub storm: Police,
    /// The longest packet on the uplink, Ethernet's header not counted.
    pub mtu: u16,
}

impl Default for SwitchConfig {
    fn default() -> SwitchConfig {
        SwitchConfig {
            rules: 65_536,
            addresses: 1024,
            aging: Duration::from_secs(300),
            storm: Police { rate: 10_000_000, burst: 65_536 },
            mtu: 1500,
        }
    }
}

offload_base::counters! {
    /// What a switch counts beside its rules.
    pub struct SwitchCounters {
        /// Frames that came in by ports.
        pub frames_in: "eswitch_rx_packets",
        /// Frames that left by ports, copies included.
        pub frames_out: "eswitch_tx_packets",
        /// Frames that went to representors.
        pub to_representors: "eswitch_rx_steer_missed_packets",
        /// Frames that no rule took.
        pub misses: "eswitch_miss",
        /// Frames that a rule would have taken, and left to the representor as a sign of life.
        pub samples: "eswitch_samples",
        /// Frames shorter than Ethernet's header, or from a group address.
        pub malformed: "eswitch_drop_malformed",
        /// Frames from a function under a foreign address.
        pub spoofed: "eswitch_drop_spoofed",
        /// Frames with a tag that the function may not send or get.
        pub wrong_vlan: "eswitch_drop_vlan",
        /// Frames to a port without a function.
        pub no_port: "eswitch_drop_no_port",
        /// Frames longer than their way allows.
        pub too_long: "eswitch_drop_too_long",
        /// Senders told so.
        pub told: "eswitch_icmp_too_big",
        /// Frames beyond a function's rate.
        pub rate: "eswitch_drop_rate",
        /// Frames that are not flooded, for the port floods too much.
        pub storm: "eswitch_drop_storm",
        /// Frames to addresses behind the port that they came from.
        pub same_port: "eswitch_drop_same_port",
        /// Frames that rules dropped.
        pub by_rule: "eswitch_drop_rule",
        /// Frames beyond a rule's rate.
        pub policed: "eswitch_drop_police",
        /// Frames unwrapped.
        pub unwrapped: "eswitch_decap_packets",
        /// Frames wrapped.
        pub wrapped: "eswitch_encap_packets",
        /// Packets of tunnels with a wrong checksum.
        pub tunnel_checksum: "eswitch_drop_decap_csum",
        /// Packets of tunnels with an option that has to be understood.
        pub tunnel_critical: "eswitch_drop_decap_critical",
        /// Packets of tunnels that met congestion, which the inner packet cannot say.
        pub tunnel_ecn: "eswitch_drop_decap_ecn",
        /// Frames for a tunnel to which the host knows no next hop, or that is not there.
        pub unresolved: "eswitch_encap_unresolved",
        /// Those of them that came out of another tunnel: they go nowhere.
        pub unresolved_inner: "eswitch_drop_encap_unresolved",
        /// Packets of protected networks that came in the clear.
        pub unprotected: "eswitch_drop_decap_unprotected",
        /// Packets that came by an SA of another network.
        pub other_sa: "eswitch_drop_decap_other_sa",
        /// Frames for a protected network without an SA.
        pub no_sa: "eswitch_drop_encap_no_sa",
    }
}

/// What is known of a rule that is there.
///
/// See [`Switch::rules`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleReport {
    /// The rule.
    pub rule: Arc<Rule>,
    /// Its handle, given by the rule or the switch.
    pub handle: u32,
    /// What it has seen.
    pub counters: RuleCounters,
}

/// The switch.
///
/// ```
/// use bytes::Bytes;
/// use nic_switch::{Egress, Frame, FunctionConfig, Mac, Mode, RuleFile, Switch, SwitchConfig, Vport};
/// use offload_base::Instant;
///
/// let mut switch = Switch::new(SwitchConfig::default());
/// let (one, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// switch.set_function(Vport::Virtual(0), FunctionConfig::new(one));
/// switch.set_function(Vport::Virtual(1), FunctionConfig::new(other));
/// switch.set_mode(Mode::Switchdev);
/// let rules = "tc filter add dev pf0vf0 ingress prio 1 flower action mirred egress redirect dev pf0vf1";
/// switch.change(&RuleFile::parse("rules", rules)?.changes)?;
///
/// let mut bytes = vec![0; 60];
/// bytes[..6].copy_from_slice(&other.0);
/// bytes[6..12].copy_from_slice(&one.0);
/// let frame = Frame::from(Bytes::from(bytes));
/// let mut out = Vec::new();
/// switch.receive(Instant::ZERO, Vport::Virtual(0), frame.clone(), &mut out);
/// assert_eq!(out, [(Egress::Port(Vport::Virtual(1)), frame)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Switch {
    config: SwitchConfig,
    mode: Mode,
    functions: BTreeMap<Vport, Function>,
    table: Table,
    tunnels: Vec<Tunnel>,
    /// The UDP ports of tunnels: the usual ones, and those that tunnels or rules have ever named.
    tunnel_ports: BTreeSet<u16>,
    protections: Protections,
    hops: HashMap<IpAddr, NextHop>,
    /// How often a rule leaves a frame to the representor.
    sampling: Option<Duration>,
    addresses: Addresses,
    storms: HashMap<Vport, Bucket>,
    /// How much functions are told of packets that are too long.
    told: HashMap<Vport, Bucket>,
    /// Of the next IPv4 packet that wraps a frame.
    identification: u16,
    counters: SwitchCounters,
}

#[derive(Debug)]
struct Function {
    config: FunctionConfig,
    rate: Option<Bucket>,
}

impl Switch {
    /// A switch in legacy mode with an uplink and no function.
    pub fn new(config: SwitchConfig) -> Switch {
        Switch {
            config,
            mode: Mode::Legacy,
            functions: BTreeMap::new(),
            table: Table::new(config.rules),
            tunnels: Vec::new(),
            tunnel_ports: TunnelKind::ALL.iter().filter_map(|kind| kind.port()).collect(),
            protections: Protections::default(),
            hops: HashMap::new(),
            sampling: None,
            addresses: Addresses::new(config.addresses, config.aging),
            storms: HashMap::new(),
            told: HashMap::new(),
            identification: 0,
            counters: SwitchCounters::default(),
        }
    }

    /// Creates a function, or sets it up anew. The uplink is no function: of it, this says nothing.
    pub fn set_function(&mut self, port: Vport, config: FunctionConfig) {
        if port != Vport::Uplink {
            self.addresses.forget_port(port);
            self.addresses.forget(&(config.vlan.unwrap_or(0), config.mac));
            self.functions.insert(port, Function { config, rate: config.rate.map(Bucket::new) });
        }
    }

    /// Removes a function. Rules that name it stay; frames to it are dropped and counted.
    pub fn remove_function(&mut self, port: Vport) {
        self.addresses.forget_port(port);
        self.functions.remove(&port);
    }

    /// Sets who decides where frames go. In legacy mode there are no rules: all are deleted.
    pub fn set_mode(&mut self, mode: Mode) {
        if mode == Mode::Legacy {
            self.table = Table::new(self.config.rules);
        }
        self.mode = mode;
    }

    /// Adds a tunnel, or sets it up anew.
    ///
    /// ```
    /// use nic_switch::{Switch, SwitchConfig, Tunnel, TunnelDevice, TunnelKind};
    ///
    /// let mut switch = Switch::new(SwitchConfig::default());
    /// let vxlan0 = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
    /// switch.add_tunnel(Tunnel::new(vxlan0, vec!["192.0.2.1".parse().unwrap()]));
    /// ```
    pub fn add_tunnel(&mut self, tunnel: Tunnel) {
        self.tunnels.retain(|other| other.device != tunnel.device);
        self.tunnel_ports.extend(tunnel.port);
        self.tunnels.push(tunnel);
    }

    /// Says by which SAs a network of a tunnel is protected, or that it is not any more. The key is VXLAN's or Geneve's network, or
    /// GRE's key; `None`: GRE without one.
    ///
    /// See [`Protection`] for an example.
    pub fn protect(&mut self, tunnel: TunnelDevice, key: Option<u32>, protection: Option<Protection>) {
        self.protections.set((tunnel, key), protection);
    }

    /// Says whether packets of tunnels pass only under an SA, in and out, though nobody names the networks: who makes the rules may not
    /// know of SAs, and policies may come later than rules do.
    ///
    /// ```
    /// let mut switch = nic_switch::Switch::new(nic_switch::SwitchConfig::default());
    /// switch.protect_all(true);
    /// assert!(switch.protects_all());
    /// ```
    pub fn protect_all(&mut self, all: bool) {
        self.protections.all = all;
    }

    /// Whether packets of tunnels pass only under an SA.
    pub fn protects_all(&self) -> bool {
        self.protections.all
    }

    /// Whether a frame is a packet of a tunnel, or a fragment of one: UDP to the usual port of a kind or to one that a tunnel or a rule has
    /// named, or GRE. `None`: it does not show that. A fragment of UDP without the ports does not, nor does IP with headers that the switch
    /// does not read: behind a fragment header, too many of them, or with options that a host must refuse.
    ///
    /// ```
    /// let switch = nic_switch::Switch::new(nic_switch::SwitchConfig::default());
    /// let ip = [8, 0, 0x45, 0, 0, 24, 0, 0, 0, 5, 64, 47, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 0, 0x65, 0x58];
    /// let mut gre = [&[2; 12][..], &ip].concat();
    /// assert_eq!((switch.is_of_tunnel(&gre), switch.is_of_tunnel(&[0; 60])), (Some(true), Some(false)));
    /// gre[23] = 17;
    /// assert_eq!(switch.is_of_tunnel(&gre), None);
    /// ```
    pub fn is_of_tunnel(&self, frame: &[u8]) -> Option<bool> {
        match self.shown(frame) {
            Shown::Tunnel => Some(true),
            Shown::NoTunnel => Some(false),
            Shown::Rest | Shown::Hidden => None,
        }
    }

    fn shown(&self, frame: &[u8]) -> Shown {
        overlay::shown(frame, |port| self.tunnel_ports.contains(&port))
    }

    /// Who decides where frames go.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Tells the way to a tunnel's other end, or that there is none any more.
    pub fn set_next_hop(&mut self, destination: IpAddr, hop: Option<NextHop>) {
        match hop {
            Some(hop) => self.hops.insert(destination, hop),
            None => self.hops.remove(&destination),
        };
    }

    /// Has each rule leave one frame to the representor as often as this, while there are some: who made the rules in a Linux of its own,
    /// and has that forward what comes by representors, sees by it that they are in use. `None`: never. Frames overtake it.
    ///
    /// ```
    /// use core::time::Duration;
    ///
    /// let mut switch = nic_switch::Switch::new(nic_switch::SwitchConfig::default());
    /// switch.set_sampling(Some(Duration::from_secs(2)));
    /// assert_eq!(switch.counters().samples, 0);
    /// ```
    pub fn set_sampling(&mut self, every: Option<Duration>) {
        self.sampling = every;
    }

    /// Makes all of these changes, between two frames. Counters of rules that stay, or are replaced, go on.
    ///
    /// Several changes at once cost as much as there are rules.
    ///
    /// # Errors
    /// If one cannot be made: then none is.
    ///
    /// ```
    /// use nic_switch::{ChangeError, Mode, RuleFile, Switch, SwitchConfig};
    ///
    /// let mut switch = Switch::new(SwitchConfig { rules: 1, ..SwitchConfig::default() });
    /// let two = "tc filter add dev p0 ingress prio 1 flower action drop\ntc filter add dev p0 ingress prio 2 flower action pass";
    /// let two = RuleFile::parse("two", two)?.changes;
    /// assert_eq!(switch.change(&two), Err(ChangeError::Legacy));
    /// switch.set_mode(Mode::Switchdev);
    /// assert_eq!(switch.change(&two), Err(ChangeError::Full));
    /// assert_eq!(switch.rules().count(), 0);
    /// # Ok::<(), nic_switch::ParseError>(())
    /// ```
    pub fn change(&mut self, changes: &[Change]) -> Result<(), ChangeError> {
        if self.mode == Mode::Legacy {
            return Err(ChangeError::Legacy);
        }
        match changes {
            [one] => self.table.change(one)?,
            _ => {
                let mut table = self.table.clone();
                changes.iter().try_for_each(|change| table.change(change))?;
                self.table = table;
            }
        }
        for change in changes {
            if let Change::Add(rule) | Change::Replace(rule) = change {
                self.tunnel_ports.extend(rule.tunnel_ports());
            }
        }
        Ok(())
    }

    /// Puts these rules in place of all that there are, between two frames. What was counted of rules with the same place and
    /// match goes on.
    ///
    /// # Errors
    /// If one of them cannot be: then the old ones stay.
    ///
    /// ```
    /// use nic_switch::{Change, Mode, RuleFile, RuleReport, Switch, SwitchConfig};
    ///
    /// let mut switch = Switch::new(SwitchConfig::default());
    /// switch.set_mode(Mode::Switchdev);
    /// let file = RuleFile::parse("one", "tc filter add dev p0 ingress prio 1 flower action drop")?;
    /// let rules = file.changes.into_iter().filter_map(|change| match change { Change::Add(rule) => Some(rule), _ => None });
    /// switch.replace_rules(rules)?;
    /// let reports: Vec<RuleReport> = switch.rules().collect();
    /// assert_eq!((reports.len(), reports[0].counters.packets), (1, 0), "no packet came yet");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace_rules(&mut self, rules: impl IntoIterator<Item = Rule>) -> Result<(), ChangeError> {
        if self.mode == Mode::Legacy {
            return Err(ChangeError::Legacy);
        }
        let mut table = Table::new(self.config.rules);
        rules.into_iter().try_for_each(|rule| table.change(&Change::Add(rule)))?;
        table.inherit(&self.table);
        self.table = table;
        self.tunnel_ports.extend(self.table.iter().flat_map(|installed| installed.rule.tunnel_ports()));
        Ok(())
    }

    /// The rules, by device, chain, priority and handle.
    ///
    /// See [`change`](Self::change) for an example.
    pub fn rules(&self) -> impl Iterator<Item = RuleReport> + '_ {
        self.table.iter().map(|one| RuleReport { rule: one.rule.clone(), handle: one.handle, counters: one.counters })
    }

    /// What was counted.
    pub fn counters(&self) -> &SwitchCounters {
        &self.counters
    }

    /// A frame comes in by a port; where it goes is added to `out`.
    pub fn receive(&mut self, now: Instant, from: Vport, frame: Frame, out: &mut Vec<(Egress, Frame)>) {
        self.counters.frames_in += 1;
        let Some(mut frame) = self.admit(now, from, frame) else { return };
        // It is not to leave again under the SA that it came by.
        let sa = frame.sa.take().filter(|_| from == Vport::Uplink);
        match self.mode {
            Mode::Legacy => self.forward(now, from, &frame, out),
            // Of a network's SA, the host's rules are not to make anything else.
            Mode::Switchdev if self.protections.binds(sa) => match self.unwrap(now, &frame, sa, out) {
                Way::Done => {}
                Way::Missed => self.miss(from, frame, out),
                Way::Left => self.represent(from, frame, out),
                Way::NoTunnel => self.counters.other_sa += 1,
            },
            Mode::Switchdev => {
                let passing = Passing::new(frame.clone(), TunnelState::default());
                match self.run(now, from, Device::Port(from), passing, out) {
                    Outcome::Done => {}
                    Outcome::Left(left) => self.represent(from, left, out),
                    Outcome::Missed(left) => {
                        let way = match from {
                            Vport::Uplink => self.unwrap(now, &left, sa, out),
                            _ => Way::NoTunnel,
                        };
                        match way {
                            Way::Done => {}
                            Way::Left => self.represent(from, left, out),
                            Way::Missed | Way::NoTunnel => self.miss(from, left, out),
                        }
                    }
                }
            }
        }
    }

    /// The host sends a frame by the representor of a port: it leaves by that port.
    pub fn inject(&mut self, representor: Vport, frame: Frame, out: &mut Vec<(Egress, Frame)>) {
        if frame.bytes.len() < ETHERNET_BYTES {
            self.counters.malformed += 1;
        } else {
            self.deliver(representor, frame, out);
        }
    }
}

#[cfg(test)]
mod tests;
