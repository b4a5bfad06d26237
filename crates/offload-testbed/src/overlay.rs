//! Tenants on two hypervisors: virtual machines in overlay networks, which the hypervisors' NICs encapsulate and
//! encrypt.
//!
//! ```text
//!  vm0 ─┐                                                         ┌─ vm0
//!  vm1 ─┼─ switch ─ VXLAN, Geneve or GRE ─ ESP ══ wire ══ ESP ─ ... ─ switch ─┼─ vm1      a network for each pair
//! left ─┘                                                         └─ right
//! ```
//!
//! Invariant: every two virtual machines with the same number form a tenant with its own network, rules and SAs.

use crate::bed::{BedHost, Builder, Testbed};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
use nic_sim::switch::overlay::overhead;
use nic_sim::switch::{
    Change, Mac, RuleFile, SwitchMode, Tunnel, TunnelDevice, TunnelHop, TunnelKind, TunnelProtection, TunnelSet, Vport,
};
use nic_sim::{NicConfig, SwitchConfig};
use offload_api::{Direction, EspKey, EspSuite, Handle, OffloadKind, SaParams, SaRefusal};
use offload_base::Seed;
use offload_base::cost::Domain;
use offload_esp::OuterHeaders;
use offload_host_stack::TcpConfig;

/// Configuration of tenants on two hypervisors.
///
/// ```
/// use nic_sim::wire::LinkConfig;
/// use offload_base::Seed;
/// use offload_testbed::Testbed;
/// use offload_testbed::overlay::Overlay;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let overlay = Overlay::new(1);
/// assert_eq!(overlay.vm_mtu(), 1416);
/// let mut bed = overlay.hosts(Testbed::builder(Seed(1))).wire(overlay.left(), overlay.right(), LinkConfig::default()).build()?;
/// overlay.install(&mut bed)?;
///
/// let (here, there) = (bed.host(overlay.left_vm(0)).clone(), bed.host(overlay.right_vm(0)).clone());
/// let mut listener = there.stack().listen(7, 1)?;
/// let to = (there.address(), 7).into();
/// let heard = here.clone().spawn("here", async move {
///     let mut stream = here.stack().connect(None, to).await?;
///     let mut word = [0; 5];
///     stream.read_exact(&mut word).await.map(|_| word)
/// });
/// let said = there.spawn("there", async move { listener.accept().await?.write_all(b"hello").await });
/// assert_eq!(&bed.run(heard)?, b"hello");
/// bed.run(said)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Overlay {
    /// Virtual machines of each hypervisor.
    pub vms: u16,
    /// Tunnel protocol of the tenants' frames. `None` for bare frames, which are then not encrypted either.
    pub tunnel: Option<TunnelKind>,
    /// Whether the hypervisors use IPv6 between them.
    pub ipv6: bool,
    /// ESP suite of the tunnels. `None` for no encryption.
    pub suite: Option<EspSuite>,
    /// SAs of each tenant and direction.
    pub sas: u16,
    /// Configuration of the hypervisors' NICs.
    pub nic: NicConfig,
    /// Configuration of the virtual machines' functions, except the MTU.
    pub function: NicConfig,
    /// MTU of the virtual machines. `None` for the longest packet that fits into one packet on the wire
    /// ([`vm_mtu`](Self::vm_mtu)).
    pub mtu: Option<u16>,
    /// TCP configuration of all hosts.
    pub tcp: TcpConfig,
    /// Seed of the SAs' keys.
    pub seed: Seed,
}

/// Reason why an overlay could not be installed.
///
/// See [`Overlay`] for an example that succeeds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The device refused an SA.
    #[error("the NIC takes no SA: {0}")]
    Sa(#[from] SaRefusal),
    /// The switch refused a command.
    #[error("the switch refuses: {0:?}")]
    Switch(EswitchAnswer),
    /// The NIC has no IPsec or no switch.
    #[error("the NIC of the hypervisor has no switch, or no IPsec")]
    NotThere,
}

impl From<OverlayError> for std::io::Error {
    fn from(error: OverlayError) -> std::io::Error {
        std::io::Error::other(error)
    }
}

/// One end of a tunnel.
struct TunnelEnd {
    hypervisor: BedHost,
    address: IpAddr,
    /// Address of the other end.
    remote: IpAddr,
    hop: TunnelHop,
}

impl Overlay {
    /// Returns a configuration of `vms` tenants: VXLAN over IPv4 under AES-128-GCM, one SA in each direction.
    pub fn new(vms: u16) -> Overlay {
        // Small rings, because there may be hundreds of virtual machines; a ring still holds a burst.
        let function = NicConfig { receive_ring: 512, ..NicConfig::default() };
        Overlay {
            vms,
            tunnel: Some(TunnelKind::Vxlan),
            ipv6: false,
            suite: Some(EspSuite::Aes128Gcm),
            sas: 1,
            nic: NicConfig::default(),
            function,
            mtu: None,
            tcp: TcpConfig::default(),
            seed: Seed(1),
        }
    }

    /// Returns the left hypervisor's number in the testbed.
    pub fn left(&self) -> usize {
        0
    }

    /// Returns the right hypervisor's number.
    pub fn right(&self) -> usize {
        1
    }

    /// Returns the number of a virtual machine on the left.
    pub fn left_vm(&self, number: u16) -> usize {
        2 + usize::from(number)
    }

    /// Returns the number of a virtual machine on the right.
    pub fn right_vm(&self, number: u16) -> usize {
        2 + usize::from(self.vms) + usize::from(number)
    }

    /// Returns the longest packet of a virtual machine that fits into one packet on the wire.
    pub fn vm_mtu(&self) -> u16 {
        let Some(tunnel) = self.tunnel else { return self.nic.mtu };
        let (here, there) = match self.ipv6 {
            true => (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()),
            false => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()),
        };
        let any = |suite| sa(suite, Direction::Transmit, 256, (here, there), &mut Seed(0).stream("no key"));
        inner_mtu(tunnel, &self.set(here, there, 0), self.suite.map(any).as_ref(), self.nic.mtu)
    }

    /// Adds both hypervisors and their virtual machines to a testbed without hosts. The time of each side's virtual
    /// machines is [charged to one domain](Self::guests).
    #[must_use]
    pub fn hosts(&self, mut builder: Builder) -> Builder {
        let function = NicConfig { mtu: self.mtu.unwrap_or_else(|| self.vm_mtu()), ..self.function.clone() };
        for side in SIDES {
            builder = builder.host(side, self.nic.clone(), self.tcp.clone()).switched(SwitchConfig::default());
        }
        for (hypervisor, side) in SIDES.into_iter().enumerate() {
            for number in 0..self.vms {
                let name = format!("{side} vm{number}");
                builder = builder.vm(hypervisor, &name, function.clone(), self.tcp.clone());
                builder = builder.charged_to(self.guests()[hypervisor]);
            }
        }
        builder
    }

    /// Returns the domains of the left and of the right virtual machines.
    pub fn guests(&self) -> [Domain; 2] {
        [Domain::Host(2), Domain::Host(3)]
    }

    /// Installs SAs, tunnels and rules on both NICs. Before this call, frames between virtual machines are dropped.
    ///
    /// # Errors
    /// If a NIC refuses.
    pub fn install(&self, bed: &mut Testbed) -> Result<(), OverlayError> {
        let left = self.side(bed, self.left(), self.right());
        let right = self.side(bed, self.right(), self.left());
        // Bare frames have no tunnel that ESP could protect.
        let protections = match self.suite.filter(|_| self.tunnel.is_some()) {
            Some(suite) => self.key(bed, suite, &left, &right)?,
            None => [Vec::new(), Vec::new()],
        };
        for (side, protections) in [&left, &right].into_iter().zip(protections) {
            let eswitch = side.hypervisor.eswitch().ok_or(OverlayError::NotThere)?.clone();
            let mut commands = vec![EswitchCommand::Mode(SwitchMode::Switchdev)];
            if let Some(device) = self.device() {
                commands.push(EswitchCommand::Tunnel(Tunnel {
                    mtu: self.vm_mtu(),
                    ..Tunnel::new(device, vec![side.address])
                }));
                commands.push(EswitchCommand::NextHop(side.remote, Some(side.hop)));
                let protect =
                    |(number, protection)| EswitchCommand::Protect(device, Some(network(number)), Some(protection));
                commands.extend((0..).zip(protections).map(protect));
            }
            commands.push(EswitchCommand::Change(self.rules(bed, side)));
            // The order matters: rules name the tunnel device, and the tunnel needs its next hop and SAs.
            for command in commands {
                match bed.run(eswitch.ask(command)) {
                    EswitchAnswer::Done => {}
                    refused => return Err(OverlayError::Switch(refused)),
                }
            }
        }
        Ok(())
    }

    fn side(&self, bed: &Testbed, own: usize, other: usize) -> TunnelEnd {
        let (own, other) = (bed.host(own), bed.host(other));
        let address = |host: &BedHost| if self.ipv6 { host.ipv6_address().into() } else { host.address().into() };
        TunnelEnd {
            hypervisor: own.clone(),
            address: address(own),
            remote: address(other),
            hop: TunnelHop { source: Mac(own.mac()), destination: Mac(other.mac()) },
        }
    }

    /// Returns the forwarding rules, written in the syntax of tc.
    fn rules(&self, bed: &Testbed, side: &TunnelEnd) -> Vec<Change> {
        let is_left = side.hypervisor.address() == bed.host(self.left()).address();
        let mut text = String::new();
        for number in 0..self.vms {
            let (own, other) = match is_left {
                true => (self.left_vm(number), self.right_vm(number)),
                false => (self.right_vm(number), self.left_vm(number)),
            };
            let (own, other) = (Mac(bed.host(own).mac()), Mac(bed.host(other).mac()));
            let port = Vport::Virtual(number);
            let Some(device) = self.device() else {
                text += &format!(
                    "tc filter add dev {port} ingress prio 1 flower dst_mac {other} action mirred egress redirect dev p0\n\
                     tc filter add dev p0 ingress prio 1 flower dst_mac {own} action mirred egress redirect dev {port}\n"
                );
                continue;
            };
            let (here, there, network) = (side.address, side.remote, network(number));
            let checksum = if self.set(here, there, number).checksum { "" } else { " nocsum" };
            text += &format!(
                "tc filter add dev {port} ingress prio 1 flower dst_mac {other} action tunnel_key set \
                 src_ip {here} dst_ip {there} id {network}{checksum} action mirred egress redirect dev {device}\n\
                 tc filter add dev {device} ingress prio 1 flower dst_mac {own} enc_key_id {network} enc_src_ip {there} \
                 action tunnel_key unset action mirred egress redirect dev {port}\n"
            );
        }
        RuleFile::parse("overlay", &text).expect("the lines above").changes
    }

    /// Installs the SAs of all tenants on both NICs, and waits until both have accepted.
    fn key(
        &self,
        bed: &mut Testbed,
        suite: EspSuite,
        left: &TunnelEnd,
        right: &TunnelEnd,
    ) -> Result<[Vec<TunnelProtection>; 2], OverlayError> {
        let mut secrets = self.seed.stream("keys of tenants");
        let mut protections = [Vec::new(), Vec::new()];
        let mut spi = 0x1000;
        for _ in 0..self.vms {
            let mut of_tenant = [TunnelProtection::default(), TunnelProtection::default()];
            for (from, to) in [(0, 1), (1, 0)] {
                for _ in 0..self.sas {
                    spi += 1;
                    let sides = [left, right];
                    // Each SA exists twice: at its sender for transmit and at its receiver for receive, with the same
                    // key.
                    let addresses = (sides[from].address, sides[to].address);
                    let sends = sa(suite, Direction::Transmit, spi, addresses, &mut secrets);
                    // Both ends take the same key from one draw of the seed.
                    let receives = SaParams { direction: Direction::Receive, ..sends.clone() };
                    of_tenant[from].send.push(add_sa(bed, &sides[from].hypervisor, &sends)?);
                    of_tenant[to].receive.push(add_sa(bed, &sides[to].hypervisor, &receives)?);
                }
            }
            protections.iter_mut().zip(of_tenant).for_each(|(all, one)| all.push(one));
        }
        let all = 2 * usize::from(self.vms) * usize::from(self.sas);
        for side in [left, right] {
            // The device installs SAs asynchronously; a packet that came earlier would be dropped.
            while side.hypervisor.device_contexts() < all {
                pause(bed);
            }
        }
        Ok(protections)
    }

    fn device(&self) -> Option<TunnelDevice> {
        self.tunnel.map(|kind| TunnelDevice { kind, number: 0 })
    }

    fn set(&self, source: IpAddr, destination: IpAddr, number: u16) -> TunnelSet {
        // RFC 8200 8.1: UDP over IPv6 needs a checksum.
        let checksum = self.ipv6 && self.tunnel != Some(TunnelKind::Gretap);
        TunnelSet { key: Some(network(number)), checksum, ..TunnelSet::new(source, destination) }
    }
}

/// Returns the longest packet that fits into a tunnel, and into its SA if given, when packets on the wire have at most
/// `mtu` bytes.
///
/// ```
/// use nic_sim::switch::{TunnelKind, TunnelSet};
/// use offload_testbed::overlay::inner_mtu;
///
/// let set = TunnelSet::new("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
/// assert_eq!(inner_mtu(TunnelKind::Vxlan, &set, None, 1500), 1450);
/// ```
pub fn inner_mtu(kind: TunnelKind, set: &TunnelSet, sa: Option<&SaParams>, mtu: u16) -> u16 {
    let wrapped = sa.map_or(mtu.into(), |sa| OuterHeaders::plain_mtu(sa, set.destination.is_ipv6(), mtu.into()));
    let room = wrapped.saturating_sub(overhead(kind, set));
    u16::try_from(room).unwrap_or(u16::MAX)
}

/// Returns the network identifier of a tenant.
fn network(number: u16) -> u32 {
    100 + u32::from(number)
}

fn sa(
    suite: EspSuite,
    direction: Direction,
    spi: u32,
    (source, destination): (IpAddr, IpAddr),
    secrets: &mut offload_base::random::Rng,
) -> SaParams {
    let mut material = vec![0; suite.key_len() + SALT_BYTES];
    secrets.fill(&mut material);
    let key = EspKey::new(suite, &material).expect("as long as the suite wants");
    SaParams {
        esn: true,
        replay_window: 256,
        offload: OffloadKind::Packet,
        ..SaParams::new(direction, spi, source, destination, key)
    }
}

fn add_sa(bed: &mut Testbed, host: &BedHost, params: &SaParams) -> Result<Handle, OverlayError> {
    loop {
        let added = host.stack().with_device(|device| Some(device.ipsec()?.add_sa(params)));
        match added.ok_or(OverlayError::NotThere)? {
            Err(SaRefusal::Busy) => pause(bed),
            added => return Ok(added?),
        }
    }
}

fn pause(bed: &mut Testbed) {
    let runtime = bed.runtime();
    bed.run(runtime.sleep(Duration::from_micros(10)));
}

const SIDES: [&str; 2] = ["left", "right"];
const SALT_BYTES: usize = 4;
