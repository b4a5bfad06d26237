//! The switch: takes a frame from a port, and returns output frames.
//!
//! ```text
//! function ─ rate, spoof check, its VLAN ─┐                     ┌─ its VLAN, MTU ─ function
//! uplink ── rules of p0 ── unwrap ────────┼─ rules, or legacy ──┼─ uplink
//!                                         │  (learned addresses)├─ wrap ─ uplink
//! host, by a representor ─────────────────┼─────────────────────┘
//!                                         └─ no rule: representor, to the host
//! ```
//!
//! Invariant: a frame meets the rules as they are at its arrival, because changes apply between frames. Frames with a
//! forged address or a forbidden tag reach no rule and no port.

mod legacy;
mod passage;

use crate::action::Police;
use crate::addresses::AddressTable;
use crate::frame::Frame;
use crate::function::FunctionConfig;
use crate::key::TunnelState;
use crate::overlay::{self, TunnelEvidence, TunnelHop};
use crate::police::TokenBucket;
use crate::port::{Device, Egress, TunnelDevice, TunnelKind, Vport};
use crate::protection::{Protections, TunnelProtection};
use crate::rule::{Change, Rule};
use crate::table::{ChangeError, RuleCounters, RuleTable};
use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
use offload_formats::frame::ETHERNET_BYTES;
use passage::{RuleOutcome, SwitchedFrame, UnwrapOutcome};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The forwarding mode, as set by `devlink dev eswitch set ... mode`.
///
/// See [`Switch`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwitchMode {
    /// Forwards by learned addresses, and floods frames to unknown addresses. There are no rules.
    #[default]
    Legacy,
    /// Forwards by rules. Frames without a matching rule go to the representor.
    Switchdev,
}

/// A tunnel over the uplink.
///
/// See [`Switch::add_tunnel`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Tunnel device.
    pub device: TunnelDevice,
    /// Local addresses of the uplink. Packets to other addresses are not decapsulated.
    pub local: Vec<IpAddr>,
    /// UDP port of received packets; the kind's port by default. `None` for GRE.
    pub port: Option<u16>,
    /// Longest inner packet, if lower than the uplink's MTU allows, because ESP adds bytes. Senders of longer packets
    /// get an ICMP message.
    pub mtu: u16,
    /// UDP source ports, first and last; a hash of the inner flow selects one.
    pub source_ports: (u16, u16),
}

impl Tunnel {
    /// Makes a tunnel with these addresses, the kind's port, and the source ports that RFC 7348 5 recommends.
    pub fn new(device: TunnelDevice, local: Vec<IpAddr>) -> Tunnel {
        Tunnel { device, local, port: device.kind.port(), mtu: u16::MAX, source_ports: (49_152, 65_535) }
    }
}

/// Sizes and limits of a switch.
///
/// ```
/// assert_eq!(nic_switch::SwitchConfig::default().rules, 65_536);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Maximum number of rules.
    pub rules: usize,
    /// Maximum number of learned addresses per port.
    pub addresses: usize,
    /// Time after which an address without frames is forgotten.
    pub aging: Duration,
    /// Rate limit for flooded frames per port: broadcast, multicast and unknown addresses.
    pub storm: Police,
    /// Longest packet on the uplink, without the Ethernet header.
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
    /// Counters of a switch, in addition to those of its rules.
    pub struct SwitchCounters {
        /// Frames received from ports.
        pub frames_in: "eswitch_rx_packets",
        /// Frames sent to ports, copies included.
        pub frames_out: "eswitch_tx_packets",
        /// Frames sent to representors.
        pub to_representors: "eswitch_rx_steer_missed_packets",
        /// Frames without a matching rule.
        pub misses: "eswitch_miss",
        /// Matched frames that went to the representor as a sample of the rule's use.
        pub samples: "eswitch_samples",
        /// Frames shorter than an Ethernet header, or with a multicast source.
        pub malformed: "eswitch_drop_malformed",
        /// Frames from a function with a forged address.
        pub spoofed: "eswitch_drop_spoofed",
        /// Frames with a tag that the function may not send or receive.
        pub wrong_vlan: "eswitch_drop_vlan",
        /// Frames to a port without a function.
        pub no_port: "eswitch_drop_no_port",
        /// Frames longer than the MTU of their path.
        pub too_long: "eswitch_drop_too_long",
        /// Senders informed about the MTU.
        pub told: "eswitch_icmp_too_big",
        /// Frames above a function's rate limit.
        pub rate: "eswitch_drop_rate",
        /// Frames not flooded because the port exceeded its limit.
        pub storm: "eswitch_drop_storm",
        /// Frames to an address behind their input port.
        pub same_port: "eswitch_drop_same_port",
        /// Frames dropped by rules.
        pub by_rule: "eswitch_drop_rule",
        /// Frames above a rule's rate limit.
        pub policed: "eswitch_drop_police",
        /// Frames decapsulated.
        pub unwrapped: "eswitch_decap_packets",
        /// Frames encapsulated.
        pub wrapped: "eswitch_encap_packets",
        /// Tunnel packets with a wrong checksum.
        pub tunnel_checksum: "eswitch_drop_decap_csum",
        /// Tunnel packets with an unknown critical option.
        pub tunnel_critical: "eswitch_drop_decap_critical",
        /// Tunnel packets that met congestion, which the inner packet cannot express.
        pub tunnel_ecn: "eswitch_drop_decap_ecn",
        /// Frames to a tunnel that does not exist or has no next hop.
        pub unresolved: "eswitch_encap_unresolved",
        /// Decapsulated frames among them, which are dropped.
        pub unresolved_inner: "eswitch_drop_encap_unresolved",
        /// Packets of protected networks that arrived in plaintext.
        pub unprotected: "eswitch_drop_decap_unprotected",
        /// Packets that arrived through an SA of another network.
        pub other_sa: "eswitch_drop_decap_other_sa",
        /// Frames to a protected network without an SA.
        pub no_sa: "eswitch_drop_encap_no_sa",
    }
}

/// An installed rule with its counters.
///
/// See [`Switch::rules`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleReport {
    /// The rule.
    pub rule: Arc<Rule>,
    /// Handle, from the rule or chosen by the switch.
    pub handle: u32,
    /// Counters.
    pub counters: RuleCounters,
}

/// A switch with ports, rules and tunnels.
///
/// ```
/// use bytes::Bytes;
/// use nic_switch::{Egress, Frame, FunctionConfig, Mac, SwitchMode, RuleFile, Switch, SwitchConfig, Vport};
/// use offload_base::Instant;
///
/// let mut switch = Switch::new(SwitchConfig::default());
/// let (one, other) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// switch.set_function(Vport::Virtual(0), FunctionConfig::new(one));
/// switch.set_function(Vport::Virtual(1), FunctionConfig::new(other));
/// switch.set_mode(SwitchMode::Switchdev);
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
    mode: SwitchMode,
    functions: BTreeMap<Vport, FunctionState>,
    table: RuleTable,
    tunnels: Vec<Tunnel>,
    /// UDP tunnel ports: the default ones, and all that tunnels or rules have ever named.
    tunnel_ports: BTreeSet<u16>,
    protections: Protections,
    hops: HashMap<IpAddr, TunnelHop>,
    /// Interval at which a rule sends a sample frame to the representor.
    sampling: Option<Duration>,
    addresses: AddressTable,
    storms: HashMap<Vport, TokenBucket>,
    /// Rate limits of the ICMP messages to functions.
    told: HashMap<Vport, TokenBucket>,
    /// IPv4 identification of the next outer packet.
    identification: u16,
    counters: SwitchCounters,
}

#[derive(Debug)]
struct FunctionState {
    config: FunctionConfig,
    rate: Option<TokenBucket>,
}

impl Switch {
    /// Makes a switch in legacy mode, with an uplink and no functions.
    pub fn new(config: SwitchConfig) -> Switch {
        Switch {
            config,
            mode: SwitchMode::Legacy,
            functions: BTreeMap::new(),
            table: RuleTable::new(config.rules),
            tunnels: Vec::new(),
            tunnel_ports: TunnelKind::ALL.iter().filter_map(|kind| kind.port()).collect(),
            protections: Protections::default(),
            hops: HashMap::new(),
            sampling: None,
            addresses: AddressTable::new(config.addresses, config.aging),
            storms: HashMap::new(),
            told: HashMap::new(),
            identification: 0,
            counters: SwitchCounters::default(),
        }
    }

    /// Creates a function or replaces its configuration. Ignored for the uplink, which is not a function.
    pub fn set_function(&mut self, port: Vport, config: FunctionConfig) {
        if port != Vport::Uplink {
            self.addresses.forget_port(port);
            // A function's own address must not stay learned at another port.
            self.addresses.forget(&(config.vlan.unwrap_or(0), config.mac));
            self.functions.insert(port, FunctionState { config, rate: config.rate.map(TokenBucket::new) });
        }
    }

    /// Removes a function. Rules that name the function stay; frames to it are dropped and counted.
    pub fn remove_function(&mut self, port: Vport) {
        self.addresses.forget_port(port);
        self.functions.remove(&port);
    }

    /// Sets the forwarding mode. Legacy mode deletes all rules.
    pub fn set_mode(&mut self, mode: SwitchMode) {
        if mode == SwitchMode::Legacy {
            self.table = RuleTable::new(self.config.rules);
        }
        self.mode = mode;
    }

    /// Adds a tunnel or replaces its configuration.
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
        // Ports are never removed: packets of a removed tunnel may still be on their way.
        self.tunnel_ports.extend(tunnel.port);
        self.tunnels.push(tunnel);
    }

    /// Sets or removes the protection of a tunnel network. `key` is the network id of VXLAN or Geneve, or the key of
    /// GRE; `None` means GRE without a key.
    ///
    /// See [`TunnelProtection`] for an example.
    pub fn protect(&mut self, tunnel: TunnelDevice, key: Option<u32>, protection: Option<TunnelProtection>) {
        self.protections.set((tunnel, key), protection);
    }

    /// Requires an SA for all tunnel packets in both directions, even for unlisted networks. The author of the rules
    /// may not know about SAs, and policies may be added after rules.
    ///
    /// ```
    /// let mut switch = nic_switch::Switch::new(nic_switch::SwitchConfig::default());
    /// switch.protect_all(true);
    /// assert!(switch.protects_all());
    /// ```
    pub fn protect_all(&mut self, all: bool) {
        self.protections.all = all;
    }

    /// Tests whether all tunnel packets require an SA.
    pub fn protects_all(&self) -> bool {
        self.protections.all
    }

    /// Tests whether a frame is a tunnel packet or a fragment of one: GRE, or UDP to a default tunnel port or to a port
    /// that a tunnel or rule has named. Returns `None` if the frame does not show this: a UDP fragment without ports,
    /// or IP headers that the switch does not read (after a fragment header, too many headers, or options that a host
    /// must reject).
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
        match self.tunnel_evidence(frame) {
            TunnelEvidence::Tunnel => Some(true),
            TunnelEvidence::NoTunnel => Some(false),
            TunnelEvidence::Rest | TunnelEvidence::Hidden => None,
        }
    }

    fn tunnel_evidence(&self, frame: &[u8]) -> TunnelEvidence {
        overlay::tunnel_evidence(frame, |port| self.tunnel_ports.contains(&port))
    }

    /// Returns the forwarding mode.
    pub fn mode(&self) -> SwitchMode {
        self.mode
    }

    /// Sets or removes the next hop to a tunnel's remote end.
    pub fn set_next_hop(&mut self, destination: IpAddr, hop: Option<TunnelHop>) {
        match hop {
            Some(hop) => self.hops.insert(destination, hop),
            None => self.hops.remove(&destination),
        };
    }

    /// Makes each matching rule send one frame per interval to the representor. A Linux guest that manages the rules
    /// forwards frames from representors itself, and sees by these frames that a rule is in use. `None` disables
    /// sampling. Later frames may overtake a sample.
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

    /// Applies all changes between two frames. Rules that stay or are replaced keep their counters.
    ///
    /// The cost of several changes is proportional to the number of rules.
    ///
    /// # Errors
    /// If one change fails; then none is applied.
    ///
    /// ```
    /// use nic_switch::{ChangeError, SwitchMode, RuleFile, Switch, SwitchConfig};
    ///
    /// let mut switch = Switch::new(SwitchConfig { rules: 1, ..SwitchConfig::default() });
    /// let two = "tc filter add dev p0 ingress prio 1 flower action drop\ntc filter add dev p0 ingress prio 2 flower action pass";
    /// let two = RuleFile::parse("two", two)?.changes;
    /// assert_eq!(switch.change(&two), Err(ChangeError::Legacy));
    /// switch.set_mode(SwitchMode::Switchdev);
    /// assert_eq!(switch.change(&two), Err(ChangeError::Full));
    /// assert_eq!(switch.rules().count(), 0);
    /// # Ok::<(), nic_switch::ParseError>(())
    /// ```
    pub fn change(&mut self, changes: &[Change]) -> Result<(), ChangeError> {
        if self.mode == SwitchMode::Legacy {
            return Err(ChangeError::Legacy);
        }
        match changes {
            [one] => self.table.change(one)?,
            _ => {
                // Applied to a copy, so that a failed change leaves all rules untouched.
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

    /// Replaces all rules between two frames. Rules with the same place and match keep their counters.
    ///
    /// # Errors
    /// If one rule is invalid; then the old rules stay.
    ///
    /// ```
    /// use nic_switch::{Change, SwitchMode, RuleFile, RuleReport, Switch, SwitchConfig};
    ///
    /// let mut switch = Switch::new(SwitchConfig::default());
    /// switch.set_mode(SwitchMode::Switchdev);
    /// let file = RuleFile::parse("one", "tc filter add dev p0 ingress prio 1 flower action drop")?;
    /// let rules = file.changes.into_iter().filter_map(|change| match change { Change::Add(rule) => Some(rule), _ => None });
    /// switch.replace_rules(rules)?;
    /// let reports: Vec<RuleReport> = switch.rules().collect();
    /// assert_eq!((reports.len(), reports[0].counters.packets), (1, 0), "no packet has matched yet");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace_rules(&mut self, rules: impl IntoIterator<Item = Rule>) -> Result<(), ChangeError> {
        if self.mode == SwitchMode::Legacy {
            return Err(ChangeError::Legacy);
        }
        let mut table = RuleTable::new(self.config.rules);
        rules.into_iter().try_for_each(|rule| table.change(&Change::Add(rule)))?;
        // Counters survive, because a restarted controller installs its old rules again.
        table.inherit(&self.table);
        self.table = table;
        self.tunnel_ports.extend(self.table.iter().flat_map(|installed| installed.rule.tunnel_ports()));
        Ok(())
    }

    /// Returns the rules by device, chain, priority and handle.
    ///
    /// See [`change`](Self::change) for an example.
    pub fn rules(&self) -> impl Iterator<Item = RuleReport> + '_ {
        self.table.iter().map(|one| RuleReport { rule: one.rule.clone(), handle: one.handle, counters: one.counters })
    }

    /// Returns the counters.
    pub fn counters(&self) -> &SwitchCounters {
        &self.counters
    }

    /// Switches a frame from a port and adds the results to `out`.
    pub fn receive(&mut self, now: Instant, from: Vport, frame: Frame, out: &mut Vec<(Egress, Frame)>) {
        self.counters.frames_in += 1;
        let Some(mut frame) = self.admit(now, from, frame) else { return };
        // The frame must not leave under the SA through which it arrived.
        let sa = frame.sa.take().filter(|_| from == Vport::Uplink);
        match self.mode {
            SwitchMode::Legacy => self.forward(now, from, &frame, out),
            // Packets of a network's SA bypass the host's rules, which could redirect them elsewhere.
            SwitchMode::Switchdev if self.protections.binds(sa) => match self.unwrap(now, &frame, sa, out) {
                UnwrapOutcome::Done => {}
                UnwrapOutcome::Missed => self.miss(from, frame, out),
                UnwrapOutcome::Left => self.represent(from, frame, out),
                UnwrapOutcome::NoTunnel => self.counters.other_sa += 1,
            },
            SwitchMode::Switchdev => {
                let passing = SwitchedFrame::new(frame.clone(), TunnelState::default());
                match self.run(now, from, Device::Port(from), passing, out) {
                    RuleOutcome::Done => {}
                    RuleOutcome::Left(left) => self.represent(from, left, out),
                    RuleOutcome::Missed(left) => {
                        // Only the uplink has tunnels; frames of functions that look encapsulated are ordinary payload.
                        let way = match from {
                            Vport::Uplink => self.unwrap(now, &left, sa, out),
                            _ => UnwrapOutcome::NoTunnel,
                        };
                        match way {
                            UnwrapOutcome::Done => {}
                            UnwrapOutcome::Left => self.represent(from, left, out),
                            UnwrapOutcome::Missed | UnwrapOutcome::NoTunnel => self.miss(from, left, out),
                        }
                    }
                }
            }
        }
    }

    /// Sends a frame from a representor of the host to its port.
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
