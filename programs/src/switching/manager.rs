//! Configures a switch from a file and keeps it up to date: with the next hops of tunnel endpoints, and with SAs.
//!
//! Invariant: a protected network is protected before its first rule is installed, if need be by an empty set of SAs.

use super::steering::{LinuxSteering, SAMPLING, SteeringEvent};
use super::{MachineAt, ProtectedNetwork, Setup};
use core::convert::Infallible;
use core::net::{IpAddr, Ipv6Addr};
use core::pin::pin;
use core::time::Duration;
use ipsec::KeyedDevice;
use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
use nic_sim::switch::{
    FunctionConfig, Mac, Rule, RuleReport, SwitchMode, Tunnel, TunnelDevice, TunnelHop, TunnelKind, TunnelProtection,
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

/// The manager of the switch in a host's NIC.
#[derive(Debug)]
pub struct Manager {
    /// The file of rules, read again at each SIGHUP. `None`: the switch learns addresses and has no rules.
    file: Option<PathBuf>,
    setup: Setup,
    machines: Vec<MachineAt>,
    networks: Vec<ProtectedNetwork>,
    /// The Linux machine that supplies the rules, if there is one.
    steering: Option<LinuxSteering>,
    /// SAs as in the key file.
    sas: Vec<SaParams>,
    /// An example of the SAs that a daemon negotiates. Tunnels must leave room for its overhead. `None` without a
    /// daemon.
    negotiated: Option<SaParams>,
    /// MTU of the wire.
    mtu: u16,
    /// Next hops as last reported to the switch.
    hops: BTreeMap<IpAddr, Option<TunnelHop>>,
    protections: Vec<Option<TunnelProtection>>,
    /// Consecutive checks at which a network had no SA.
    looks_without: u32,
    complaint: String,
}

impl Manager {
    /// Creates a manager that reads `file`.
    ///
    /// # Errors The reason as text: the file is wrong, or a protected network has no SA.
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
        // Two entries for one network would overwrite each other in the switch.
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

    /// Takes the rules from a Linux machine's filters.
    #[must_use]
    pub fn steered(mut self, steering: LinuxSteering) -> Manager {
        self.setup.mode = SwitchMode::Switchdev;
        self.steering = Some(steering);
        self
    }

    /// Takes the SAs from the keying daemon of the same Linux machine. No packet of a tunnel passes without an SA then.
    #[must_use]
    pub fn keyed(mut self, host: IpAddr) -> Manager {
        let key = EspKey::new(EspSuite::Aes256Gcm, &[0; 36]).expect("36 bytes");
        self.negotiated = Some(SaParams::new(Direction::Transmit, 0x100, host, host, key));
        self
    }

    /// Returns the MTU of a machine.
    pub fn machine_mtu(&self, machine: &MachineAt) -> u16 {
        let room = match &self.negotiated {
            // Tunnels come and go with the filters, but a machine learns its MTU only once. So the MTU leaves room for
            // the longest headers.
            Some(sa) => {
                let end = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
                inner_mtu(TunnelKind::Vxlan, &TunnelSet::new(end, end), Some(sa), self.mtu)
            }
            None => self.setup.mtu(None, self.mtu, |device, key| self.sas_of(device, key)),
        };
        room.min(self.function(machine).mtu)
    }

    /// Returns the configuration of a machine's function.
    pub fn function(&self, machine: &MachineAt) -> FunctionConfig {
        let usual = FunctionConfig { mtu: self.mtu, ..FunctionConfig::new(machine.usual_mac()) };
        self.setup.function(machine.port(), usual)
    }

    /// Configures the switch for the first time.
    ///
    /// # Errors The reason as text, if the switch refuses, or the SAs of a network cannot be used.
    pub async fn begin(&mut self, host: &BedHost) -> Result<(), String> {
        let eswitch = switch_of(host);
        tell(eswitch, EswitchCommand::Mode(self.setup.mode)).await?;
        if self.steering.is_some() {
            tell(eswitch, EswitchCommand::Sampling(Some(SAMPLING))).await?;
        }
        tell(eswitch, EswitchCommand::ProtectAll(self.negotiated.is_some())).await?;
        let represented = self.steering.as_ref().is_some_and(LinuxSteering::has_uplink);
        tell(eswitch, EswitchCommand::RepresentUplink(represented)).await?;
        // Protections come before rules, or frames of a protected network could leave in clear text in between.
        self.tell_protections(host).await?;
        self.tell_setup(host).await
    }

    /// Serves forever: reloads the file at signals, follows changes of neighbours and SAs, and applies the filters of
    /// the steering Linux machine. That machine also gets the frames that no rule matched; without it they are only
    /// counted. A keying daemon's messages wait at `gate`.
    ///
    /// # Errors If signal handlers or sockets cannot be created.
    pub fn serve(mut self, host: BedHost, gate: Option<Gate>) -> io::Result<impl Future<Output = Infallible>> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut steering = self.steering.take();
        steering.as_mut().map_or(Ok(()), |steering| steering.open(gate, Mac(host.mac())))?;
        Ok(async move {
            let runtime = host.runtime();
            let mut look = pin!(runtime.sleep(BETWEEN_LOOKS));
            let mut report = pin!(runtime.sleep(BETWEEN_REPORTS));
            loop {
                // Not biased: a flood of one kind of event must not starve the other kinds.
                tokio::select! {
                    _ = hangup.recv() => self.read_anew(&host).await,
                    () = &mut look => {
                        // A network without SAs must not keep next hops of other networks from being updated.
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
                        // A full send queue loses frames, as on any wire.
                        SteeringEvent::Frame(port, frame) => drop(switch_of(&host).send(port, frame)),
                        SteeringEvent::Rules(rules) => {
                            if let Err(error) = self.tell_rules(&host, rules).await {
                                say!("{error}");
                            }
                        }
                    },
                }
            }
        })
    }

    /// Returns the rules and their counters.
    pub async fn rules(host: &BedHost) -> Vec<RuleReport> {
        match switch_of(host).ask(EswitchCommand::Report).await {
            EswitchAnswer::Rules(rules) => rules,
            _ => Vec::new(),
        }
    }

    /// Replaces all rules.
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

    /// Applies a setup, or restores the previous one.
    async fn change_setup(&mut self, host: &BedHost, setup: Setup) -> Result<(), String> {
        let before = core::mem::replace(&mut self.setup, setup);
        let told = self.tell_setup(host).await;
        if told.is_err() {
            // Refused rules leave the switch as before, so only the tunnels have to be restored.
            self.setup = before;
            let _ = self.tell_tunnels(host).await;
        }
        told
    }

    /// Sends functions, tunnels, next hops and rules to the switch.
    async fn tell_setup(&mut self, host: &BedHost) -> Result<(), String> {
        let eswitch = switch_of(host);
        // Commands that can be refused come first, so that a refusal changes little.
        if self.setup.mode == SwitchMode::Switchdev {
            self.tell_tunnels(host).await?;
            tell(eswitch, EswitchCommand::Replace(self.setup.rules.clone())).await?;
        }
        for machine in &self.machines {
            tell(eswitch, EswitchCommand::Function(machine.port(), self.function(machine))).await?;
        }
        self.tell_hops(host).await
    }

    /// Sends the tunnels and their MTUs to the switch.
    async fn tell_tunnels(&self, host: &BedHost) -> Result<(), String> {
        for device in self.setup.tunnels() {
            let mtu = self.setup.mtu(Some(device), self.mtu, |device, key| self.sas_of(device, key));
            let local = vec![host.address().into(), host.ipv6_address().into()];
            tell(switch_of(host), EswitchCommand::Tunnel(Tunnel { mtu, ..Tunnel::new(device, local) })).await?;
        }
        Ok(())
    }

    /// Sends changed next hops of tunnel endpoints to the switch.
    async fn tell_hops(&mut self, host: &BedHost) -> Result<(), String> {
        let ends: BTreeSet<IpAddr> = self.setup.wrapped().map(|(_, set)| set.destination).collect();
        // Next hops of removed tunnel endpoints are deleted, so that the switch's table cannot grow.
        let gone: Vec<IpAddr> = self.hops.keys().filter(|end| !ends.contains(end)).copied().collect();
        for end in gone {
            self.hops.remove(&end);
            tell(switch_of(host), EswitchCommand::NextHop(end, None)).await?;
        }
        for end in ends {
            let destination = host.stack().next_hop(end).map(Mac);
            let hop = destination.map(|destination| TunnelHop { source: Mac(host.mac()), destination });
            if self.hops.insert(end, hop) != Some(hop) {
                tell(switch_of(host), EswitchCommand::NextHop(end, hop)).await?;
            }
        }
        Ok(())
    }

    /// Sends changed protections of networks to the switch. A network without usable SAs is protected by an empty set,
    /// so that nothing passes.
    async fn tell_protections(&mut self, host: &BedHost) -> Result<(), String> {
        let (mut wrong, mut without) = (Ok(()), None);
        for (network, told) in self.networks.iter().zip(&mut self.protections) {
            // If either direction fails, the protection is empty in both, and nothing passes.
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
        // The NIC accepts SAs a little after they are installed, so the first few checks may find too few.
        self.looks_without = if without.is_some() { self.looks_without + 1 } else { 0 };
        match without {
            Some(ProtectedNetwork { device, reqids, .. }) if wrong.is_ok() && self.looks_without > LOOKS_WITHOUT => {
                let reqids: Vec<String> = reqids.iter().map(u32::to_string).collect();
                Err(format!(
                    "{device}: no packets pass: the NIC lacks an SA for each direction of reqid {}; install both with `offload packet`",
                    reqids.join(", ")
                ))
            }
            _ => wrong,
        }
    }

    /// Returns the SAs of a network, as in the key file.
    fn sas_of(&self, device: TunnelDevice, key: Option<u32>) -> Vec<&SaParams> {
        if let Some(sa) = &self.negotiated {
            return vec![sa];
        }
        let network = self.networks.iter().find(|network| (network.device, network.key) == (device, key));
        let reqids = network.map_or(&[][..], |network| &network.reqids);
        self.sas.iter().filter(|sa| reqids.contains(&sa.reqid)).collect()
    }

    /// Logs a complaint once, until it changes.
    fn complain(&mut self, complaint: String) {
        if complaint != self.complaint && !complaint.is_empty() {
            say!("{complaint}");
        }
        self.complaint = complaint;
    }
}

/// Waits for the next event of the steering Linux machine. Never completes without one.
async fn said(steering: &mut Option<LinuxSteering>, runtime: &Arc<dyn Runtime>) -> SteeringEvent {
    match steering {
        Some(steering) => steering.next(runtime).await,
        None => core::future::pending().await,
    }
}

fn switch_of(host: &BedHost) -> &Eswitch {
    host.eswitch().expect("the host was built with a switch")
}

/// Returns the handles of a network's SAs in the NIC.
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
        other => Err(format!("unexpected answer of the switch: {other:?}")),
    }
}

/// Number of consecutive checks without an SA after which a complaint is logged.
const LOOKS_WITHOUT: u32 = 5;
/// Interval of the reports about rules to the steering Linux machine.
const BETWEEN_REPORTS: Duration = Duration::from_millis(500);
/// Interval of the checks of neighbours and SAs.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
