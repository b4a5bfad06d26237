//! Keeps a switch as a file says, with what changes by itself: which way tunnels' other ends are, and which SAs there are.
//!
//! Invariant: a network that is to be protected is protected before the first rule is there, by no SA if need be.

use super::steering::{SAMPLING, Said, Steering};
use super::{MachineAt, ProtectedNetwork, Setup};
use core::convert::Infallible;
use core::net::{IpAddr, Ipv6Addr};
use core::pin::pin;
use core::time::Duration;
use ipsec::KeyedDevice;
use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
use nic_sim::switch::{
    FunctionConfig, Mac, NextHop, Rule, RuleReport, SwitchMode, Tunnel, TunnelDevice, TunnelKind, TunnelProtection,
    TunnelSet,
};
use offload_api::{Direction, EspKey, EspSuite, Handle, SaParams};
use offload_console::say;
use offload_testbed::attach::Gate;
use offload_testbed::bed::{BedHost, Eswitch};
use offload_testbed::overlay::inner_mtu;
use offload_testbed::runtime::Runtime;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// What manages the switch of a host's NIC.
#[derive(Debug)]
pub struct Manager {
    /// Read anew at each SIGHUP; `None`: the switch learns addresses, and there are no rules.
    file: Option<PathBuf>,
    setup: Setup,
    machines: Vec<MachineAt>,
    networks: Vec<ProtectedNetwork>,
    /// The Linux that says which rules there are.
    steering: Option<Steering>,
    /// SAs as the file of keys has them.
    sas: Vec<SaParams>,
    /// Whether a Linux' daemon negotiates SAs: an example of those, for which tunnels leave room.
    negotiated: Option<SaParams>,
    /// The longest packet on the wire.
    mtu: u16,
    /// What the switch was told last.
    hops: BTreeMap<IpAddr, Option<NextHop>>,
    protections: Vec<Option<TunnelProtection>>,
    /// Looks in a row at which a network had no SA.
    looks_without: u32,
    complaint: String,
}

impl Manager {
    /// One that reads `file`.
    ///
    /// # Errors
    /// In words, if the file is wrong, or no SA is there for a network that is to be protected.
    pub fn new(
        file: Option<PathBuf>,
        machines: Vec<MachineAt>,
        networks: Vec<ProtectedNetwork>,
        sas: Vec<SaParams>,
        mtu: u16,
    ) -> Result<Manager, String> {
        let setup = file.as_deref().map(Setup::read).transpose()?.unwrap_or_default();
        let numbers: BTreeSet<u16> = machines.iter().map(|machine| machine.number).collect();
        if numbers.len() != machines.len() {
            return Err("--vf: a function has one machine: give each its own number".into());
        }
        if setup.mode == SwitchMode::Legacy && !networks.is_empty() {
            return Err(
                "--protect: rules lead to tunnels, and there are none without --rules, or in legacy mode".into()
            );
        }
        let twice = networks.iter().enumerate().find(|(at, network)| {
            networks[..*at].iter().any(|other| (other.device, other.key) == (network.device, network.key))
        });
        if let Some((_, network)) = twice {
            return Err(format!("--protect: {} is there twice: name its reqids together", network.device));
        }
        let unknown =
            networks.iter().flat_map(|network| &network.reqids).find(|reqid| !sas.iter().any(|sa| sa.reqid == **reqid));
        if let Some(reqid) = unknown {
            return Err(format!("--protect: no SA has reqid {reqid}: give it to one in the file of --keys"));
        }
        let protections = vec![None; networks.len()];
        Ok(Manager {
            file,
            setup,
            machines,
            networks,
            steering: None,
            sas,
            negotiated: None,
            mtu,
            hops: BTreeMap::new(),
            protections,
            looks_without: 0,
            complaint: String::new(),
        })
    }

    /// The same, steered by a Linux: its filters are the rules.
    #[must_use]
    pub fn steered(mut self, steering: Steering) -> Manager {
        self.setup.mode = SwitchMode::Switchdev;
        self.steering = Some(steering);
        self
    }

    /// The same, whose SAs a keying daemon of that Linux negotiates: no packet of a tunnel passes without one.
    #[must_use]
    pub fn keyed(mut self, host: IpAddr) -> Manager {
        let key = EspKey::new(EspSuite::Aes256Gcm, &[0; 36]).expect("36 bytes");
        self.negotiated = Some(SaParams::new(Direction::Transmit, 0x100, host, host, key));
        self
    }

    /// The longest packet of a machine.
    pub fn machine_mtu(&self, machine: &MachineAt) -> u16 {
        let room = match &self.negotiated {
            // Which tunnels there will be is that Linux' to say, and a machine is told but once: so it leaves room for the longest headers.
            Some(sa) => {
                let end = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                inner_mtu(TunnelKind::Vxlan, &TunnelSet::new(end, end), Some(sa), self.mtu)
            }
            None => self.setup.mtu(None, self.mtu, |device, key| self.sas_of(device, key)),
        };
        room.min(self.function(machine).mtu)
    }

    /// A machine's function.
    pub fn function(&self, machine: &MachineAt) -> FunctionConfig {
        let usual = FunctionConfig { mtu: self.mtu, ..FunctionConfig::new(machine.usual_mac()) };
        self.setup.function(machine.port(), usual)
    }

    /// Tells the switch everything.
    ///
    /// # Errors
    /// In words, if it refuses, or the SAs of a network are of no use.
    pub async fn begin(&mut self, host: &BedHost) -> Result<(), String> {
        let eswitch = switch_of(host);
        tell(eswitch, EswitchCommand::Mode(self.setup.mode)).await?;
        if self.steering.is_some() {
            tell(eswitch, EswitchCommand::Sampling(Some(SAMPLING))).await?;
        }
        tell(eswitch, EswitchCommand::ProtectAll(self.negotiated.is_some())).await?;
        let represented = self.steering.as_ref().is_some_and(Steering::has_uplink);
        tell(eswitch, EswitchCommand::RepresentUplink(represented)).await?;
        self.tell_protections(host).await?;
        self.tell_setup(host).await
    }

    /// Does what comes up, for ever: signals to read the file anew, neighbours that come and go, SAs as well, and what a Linux says that
    /// steers. Frames that no rule took go to that one, or nowhere; the switch has counted them. What a keying daemon says waits at `gate`.
    ///
    /// # Errors
    /// If signals cannot be waited for, or sockets not be opened.
    pub fn serve(mut self, host: BedHost, gate: Option<Gate>) -> io::Result<impl Future<Output = Infallible>> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut steering = self.steering.take();
        steering.as_mut().map_or(Ok(()), |steering| steering.open(gate, Mac(host.mac())))?;
        Ok(async move {
            let runtime = host.runtime();
            let mut look = pin!(runtime.sleep(BETWEEN_LOOKS));
            let mut report = pin!(runtime.sleep(BETWEEN_REPORTS));
            loop {
                // In turn: who floods one way does not close the others.
                tokio::select! {
                    _ = hangup.recv() => self.read_anew(&host).await,
                    () = &mut look => {
                        // A network without SAs does not keep the others from their ways.
                        let protected = self.tell_protections(&host).await;
                        let looked = protected.and(self.tell_hops(&host).await);
                        self.complain(looked.err().unwrap_or_default());
                        look.set(runtime.sleep(BETWEEN_LOOKS));
                    }
                    () = &mut report, if steering.is_some() => {
                        let rules = Manager::rules(&host).await;
                        steering.iter_mut().for_each(|steering| steering.report(host.now(), &rules));
                        report.set(runtime.sleep(BETWEEN_REPORTS));
                    }
                    (port, frame) = switch_of(&host).receive() => {
                        steering.iter_mut().for_each(|steering| steering.represent(port, &frame));
                    }
                    said = said(&mut steering, &runtime) => match said {
                        // What there is no room for is lost, as on any wire.
                        Said::Frame(port, frame) => drop(switch_of(&host).send(port, frame)),
                        Said::Rules(rules) => {
                            if let Err(error) = self.tell_rules(&host, rules).await {
                                say!("{error}");
                            }
                        }
                    },
                }
            }
        })
    }

    /// The rules and what they have seen.
    pub async fn rules(host: &BedHost) -> Vec<RuleReport> {
        match switch_of(host).ask(EswitchCommand::Report).await {
            EswitchAnswer::Rules(rules) => rules,
            _ => Vec::new(),
        }
    }

    /// Has these rules in place of all that there are.
    async fn tell_rules(&mut self, host: &BedHost, rules: Vec<Rule>) -> Result<(), String> {
        let mut setup = self.setup.clone();
        setup.rules = rules;
        self.change_setup(host, setup).await.map_err(|error| format!("rules did not change: {error}"))
    }

    async fn read_anew(&mut self, host: &BedHost) {
        let Some(file) = self.file.clone() else { return };
        let done = match Setup::read(&file) {
            Ok(setup) if setup.mode != self.setup.mode => {
                Err("the file changes the mode, and that is fixed until the program ends: restart it".into())
            }
            Ok(setup) => self.change_setup(host, setup).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => say!("rules are as {} says, {} of them", file.display(), self.setup.rules.len()),
            Err(error) => say!("rules did not change: {error}"),
        }
    }

    /// Puts a setup in force, or leaves the one before in force.
    async fn change_setup(&mut self, host: &BedHost, setup: Setup) -> Result<(), String> {
        let before = core::mem::replace(&mut self.setup, setup);
        let told = self.tell_setup(host).await;
        if told.is_err() {
            // What is not refused was told before: it is as it was.
            self.setup = before;
            let _as_before = self.tell_tunnels(host).await;
        }
        told
    }

    /// Functions, tunnels, ways there, rules.
    async fn tell_setup(&mut self, host: &BedHost) -> Result<(), String> {
        let eswitch = switch_of(host);
        // What can be refused comes first.
        if self.setup.mode == SwitchMode::Switchdev {
            self.tell_tunnels(host).await?;
            tell(eswitch, EswitchCommand::Replace(self.setup.rules.clone())).await?;
        }
        for machine in &self.machines {
            tell(eswitch, EswitchCommand::Function(machine.port(), self.function(machine))).await?;
        }
        self.tell_hops(host).await
    }

    /// Tunnels, and the longest packets that they carry.
    async fn tell_tunnels(&self, host: &BedHost) -> Result<(), String> {
        for device in self.setup.tunnels() {
            let mtu = self.setup.mtu(Some(device), self.mtu, |device, key| self.sas_of(device, key));
            let local = vec![host.address().into(), host.ipv6_address().into()];
            tell(switch_of(host), EswitchCommand::Tunnel(Tunnel { mtu, ..Tunnel::new(device, local) })).await?;
        }
        Ok(())
    }

    /// Which way the other ends of tunnels are, as far as that has changed.
    async fn tell_hops(&mut self, host: &BedHost) -> Result<(), String> {
        let ends: BTreeSet<IpAddr> = self.setup.wrapped().map(|(_, set)| set.destination).collect();
        let gone: Vec<IpAddr> = self.hops.keys().filter(|end| !ends.contains(end)).copied().collect();
        for end in gone {
            self.hops.remove(&end);
            tell(switch_of(host), EswitchCommand::NextHop(end, None)).await?;
        }
        for end in ends {
            let destination = host.stack().next_hop(end).map(Mac);
            let hop = destination.map(|destination| NextHop { source: Mac(host.mac()), destination });
            if self.hops.insert(end, hop) != Some(hop) {
                tell(switch_of(host), EswitchCommand::NextHop(end, hop)).await?;
            }
        }
        Ok(())
    }

    /// Which SAs protect networks, as far as that has changed. A network whose SAs are of no use is protected by none: nothing passes.
    async fn tell_protections(&mut self, host: &BedHost) -> Result<(), String> {
        let (mut wrong, mut without) = (Ok(()), None);
        for (network, told) in self.networks.iter().zip(&mut self.protections) {
            let lent = lent(host, network, Direction::Transmit)
                .and_then(|send| Ok(TunnelProtection { send, receive: lent(host, network, Direction::Receive)? }));
            let protection = lent.unwrap_or_else(|error| {
                wrong = Err(error);
                TunnelProtection::default()
            });
            if protection.send.is_empty() || protection.receive.is_empty() {
                without = Some(network);
            }
            if told.as_ref() != Some(&protection) {
                *told = Some(protection.clone());
                tell(switch_of(host), EswitchCommand::Protect(network.device, network.key, Some(protection))).await?;
            }
        }
        // The NIC takes them a little after they were given to it.
        self.looks_without = if without.is_some() { self.looks_without + 1 } else { 0 };
        match without {
            Some(ProtectedNetwork { device, reqids, .. }) if wrong.is_ok() && self.looks_without > LOOKS_WITHOUT => {
                let reqids: Vec<String> = reqids.iter().map(u32::to_string).collect();
                Err(format!(
                    "{device}: nothing passes: the NIC has no SA both ways of reqid {}, of which it does all (`offload packet`)",
                    reqids.join(", ")
                ))
            }
            _ => wrong,
        }
    }

    /// SAs of a network, as the file of keys had them.
    fn sas_of(&self, device: TunnelDevice, key: Option<u32>) -> Vec<&SaParams> {
        if let Some(sa) = &self.negotiated {
            return vec![sa];
        }
        let network = self.networks.iter().find(|network| (network.device, network.key) == (device, key));
        let reqids = network.map_or(&[][..], |network| &network.reqids);
        self.sas.iter().filter(|sa| reqids.contains(&sa.reqid)).collect()
    }

    /// Says what is wrong, once for as long as it stays.
    fn complain(&mut self, complaint: String) {
        if complaint != self.complaint && !complaint.is_empty() {
            say!("{complaint}");
        }
        self.complaint = complaint;
    }
}

/// What the Linux says that steers, if there is one.
async fn said(steering: &mut Option<Steering>, runtime: &Arc<dyn Runtime>) -> Said {
    match steering {
        Some(steering) => steering.next(runtime).await,
        None => core::future::pending().await,
    }
}

fn switch_of(host: &BedHost) -> &Eswitch {
    host.eswitch().expect("the host was built with a switch")
}

/// The SAs of a network, as the NIC calls them.
fn lent(host: &BedHost, network: &ProtectedNetwork, direction: Direction) -> Result<Vec<Handle>, String> {
    let mut all = Vec::new();
    for reqid in &network.reqids {
        let lent = host.stack().with_device(|device| match device.keying() {
            Some(keying) => keying.lend_sas(direction, *reqid),
            None => Ok(Vec::new()),
        });
        all.extend(lent.map_err(|error| {
            format!(
                "reqid {reqid}: {error}. The NIC alone counts numbers of a network's SAs, so each run needs new keys"
            )
        })?);
    }
    Ok(all)
}

async fn tell(eswitch: &Eswitch, command: EswitchCommand) -> Result<(), String> {
    match eswitch.ask(command).await {
        EswitchAnswer::Done => Ok(()),
        EswitchAnswer::Refused(error) => Err(error.to_string()),
        other => Err(format!("the switch says {other:?}")),
    }
}

/// After so many it is not a matter of time.
const LOOKS_WITHOUT: u32 = 5;
/// How long the Linux that steers is told nothing of what its rules did.
const BETWEEN_REPORTS: Duration = Duration::from_millis(500);
/// How long neighbours and SAs are not looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
