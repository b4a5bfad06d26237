//! Virtual machines that send to each other from one hypervisor to another: plain, in an overlay, and in one under ESP, by the
//! NICs. What a byte costs the guests, the hypervisors' hosts and the devices, by how many virtual machines there are.
//!
//! Every virtual machine on the left sends to the one of the same number on the right, all at once. What arrives is compared
//! with what was sent. In all modes the guests have the MTU that the protected overlay leaves them, so that modes differ in
//! what the NICs do and not in how long packets are.

use crate::iperf::continues;
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use futures_util::future::join_all;
use nic_sim::NicConfig;
use nic_sim::switch::TunnelKind;
use nic_sim::wire::LinkConfig;
use offload_api::EspSuite;
use offload_base::cost::{self, CpuMeter, Domain, WorkKind};
use offload_base::{Instant, Seed};
use offload_bench_tls::choices;
use offload_bench_tls::connection::{Connection, tcp};
use offload_bench_tls::facts::HostCost;
use offload_bench_tls::observers::Observers;
use offload_testbed::bed::{BedHost, Testbed};
use offload_testbed::overlay::Overlay;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;

choices! {
    /// What happens to guests' frames between the hypervisors.
    pub enum VmMode {
        /// Nothing.
        Plain = "plain",
        /// They are wrapped.
        Overlay = "overlay",
        /// They are wrapped, and ESP protects that.
        OverlayEsp = "overlay-esp",
    }
}

choices! {
    /// How frames are wrapped.
    pub enum TunnelChoice {
        /// VXLAN.
        Vxlan = "vxlan",
        /// Ethernet in GRE.
        Gre = "gre",
        /// Geneve.
        Geneve = "geneve",
    }
}

impl TunnelChoice {
    const fn kind(self) -> TunnelKind {
        match self {
            TunnelChoice::Vxlan => TunnelKind::Vxlan,
            TunnelChoice::Gre => TunnelKind::Gretap,
            TunnelChoice::Geneve => TunnelKind::Geneve,
        }
    }
}

/// A run to be made, in virtual time.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench::vms::{TunnelChoice, VmMode, Vms};
///
/// let run = Vms { vms: 2, bytes: 1 << 20, tunnel: TunnelChoice::Geneve, ..Vms::new(VmMode::OverlayEsp) }.run()?;
/// assert!(run.whole);
/// assert_eq!((run.hypervisors_ns_per_byte.crypto, run.represented), (0.0, 0), "the NICs did it");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Vms {
    /// What happens between the hypervisors.
    pub mode: VmMode,
    /// How frames are wrapped.
    pub tunnel: TunnelChoice,
    /// Virtual machines on each side, 1 to 256.
    pub vms: u16,
    /// SAs of each virtual machine and direction.
    pub sas: u16,
    /// Whether the hypervisors talk over IPv6.
    pub ipv6: bool,
    /// Bytes in all, shared out among the virtual machines.
    pub bytes: u64,
    /// The hypervisors' NICs.
    pub nic: NicConfig,
    /// The virtual machines' functions, but for their MTU.
    pub function: NicConfig,
    /// The wire between the hypervisors.
    pub link: LinkConfig,
    /// The seed of everything random.
    pub seed: Seed,
    /// The observers of the run.
    pub observers: Observers,
}

/// What one run reports.
///
/// See [`Vms`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct VmsRun {
    /// What happened between the hypervisors.
    pub mode: String,
    /// Virtual machines on each side.
    pub vms: u16,
    /// The guests' MTU.
    pub mtu: u16,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Whether what arrived is what was sent.
    pub whole: bool,
    /// Bytes of all guests in 10^9 bits per second of virtual time.
    pub goodput_gbps: f64,
    /// CPU time of the sending guests.
    pub tx_guests_ns_per_byte: HostCost,
    /// CPU time of the receiving guests.
    pub rx_guests_ns_per_byte: HostCost,
    /// CPU time of both hypervisors' hosts.
    pub hypervisors_ns_per_byte: HostCost,
    /// CPU time of both devices: what emulating them cost.
    pub device_ns_per_byte: f64,
    /// Frames that the hypervisors' hosts were shown: by representors, and by their own functions.
    pub represented: u64,
    /// Packets on the wire, both ways.
    pub packets: u64,
    /// Packets that the devices wrapped.
    pub wrapped: u64,
    /// Packets that they protected.
    pub protected: u64,
    /// Counters of all hosts, devices and the wire, added up by name; those that moved.
    pub counters: BTreeMap<String, u64>,
}

impl Vms {
    /// 64 MiB of 8 virtual machines, in VXLAN over IPv4, with one SA each way.
    pub fn new(mode: VmMode) -> Vms {
        let Overlay { nic, function, .. } = Overlay::new(1);
        Vms {
            mode,
            tunnel: TunnelChoice::Vxlan,
            vms: 8,
            sas: 1,
            ipv6: false,
            bytes: 64 << 20,
            nic,
            function,
            link: LinkConfig::default(),
            seed: Seed(1),
            observers: Observers::default(),
        }
    }

    /// Returns the name of the run among others: `overlay-esp-8`.
    pub fn label(&self) -> String {
        format!("{}-{}", self.mode, self.vms)
    }

    /// Makes the run.
    ///
    /// # Errors
    /// When the options make no sense, or a connection is lost.
    pub fn run(&self) -> io::Result<VmsRun> {
        if !(1..=256).contains(&self.vms) || self.sas == 0 || self.bytes < u64::from(self.vms) {
            let text = "there are 1 to 256 virtual machines, an SA at least, and a byte for each of them";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let meter = CpuMeter::new();
        let overlay = self.overlay();
        let builder = overlay.hosts(Testbed::builder(self.seed).meter(&meter));
        let builder = builder.wire(overlay.left(), overlay.right(), self.link.clone());
        let mut bed = self.observers.attach(builder).build()?;
        let attached = meter.attach();
        overlay.install(&mut bed)?;
        let before = bed.counters();
        let pair = |number| (bed.host(overlay.left_vm(number)).clone(), bed.host(overlay.right_vm(number)).clone());
        let pairs = (0..self.vms).map(pair).collect();
        let moved = self.observers.run(&mut bed, self.label(), self.transfer(pairs, meter.clone()));
        drop(attached);
        let moved = moved?;
        self.observers.finish()?;
        let after = bed.counters();
        let value = |name: &str| after.value(name) - before.value(name);
        let hosts = [overlay.left(), overlay.right()].map(|host| bed.host(host).queue_counters());
        let represented = hosts.iter().flatten().map(|queue| queue.value("rx_packets")).sum::<u64>();
        let counts = [
            value("eswitch_rx_steer_missed_packets") + represented,
            value("tx_packets_phy"),
            value("eswitch_encap_packets"),
            value("eswitch_ipsec_tx_pkts"),
        ];
        drop(bed);
        let report = meter.take();
        let cost = |domains: [Domain; 2]| domains.map(|domain| HostCost::of(&report, domain, moved.bytes));
        let [tx, rx] = cost(overlay.guests());
        let [left, right] = cost([Domain::Host(0), Domain::Host(1)]);
        let devices = report.total(Domain::Device(0)) + report.total(Domain::Device(1));
        Ok(VmsRun {
            mode: self.mode.to_string(),
            vms: self.vms,
            mtu: overlay.mtu.unwrap_or_default(),
            bytes: moved.bytes,
            whole: moved.whole && moved.bytes == self.bytes,
            goodput_gbps: moved.bytes as f64 * 8.0 / moved.span.as_nanos().max(1) as f64,
            tx_guests_ns_per_byte: tx,
            rx_guests_ns_per_byte: rx,
            hypervisors_ns_per_byte: left.plus(&right),
            device_ns_per_byte: devices.as_nanos() as f64 / moved.bytes.max(1) as f64,
            represented: counts[0],
            packets: counts[1],
            wrapped: counts[2],
            protected: counts[3],
            counters: after.moved().map(|(name, value)| (name.to_string(), value)).collect(),
        })
    }

    fn overlay(&self) -> Overlay {
        let suite = Some(EspSuite::Aes128Gcm);
        let protected = Overlay {
            tunnel: Some(self.tunnel.kind()),
            suite,
            ipv6: self.ipv6,
            sas: self.sas,
            nic: self.nic.clone(),
            function: self.function.clone(),
            tcp: tcp(),
            seed: self.seed,
            ..Overlay::new(self.vms)
        };
        let mtu = Some(protected.vm_mtu());
        match self.mode {
            VmMode::Plain => Overlay { tunnel: None, suite: None, mtu, ..protected },
            VmMode::Overlay => Overlay { suite: None, mtu, ..protected },
            VmMode::OverlayEsp => Overlay { mtu, ..protected },
        }
    }

    /// Connects all pairs, and then has all of them send.
    async fn transfer(&self, pairs: Vec<(BedHost, BedHost)>, meter: CpuMeter) -> io::Result<Moved> {
        let mut message = BytesMut::zeroed(MESSAGE_BYTES);
        self.seed.stream("message").fill(&mut message);
        let message = message.freeze();
        let mut connected = Vec::new();
        for (left, right) in &pairs {
            let mut listener = right.stack().listen(PORT, 1)?;
            let stream = left.stack().connect(None, (right.address(), PORT).into()).await?;
            connected.push((Connection::Plain(stream), Connection::Plain(listener.accept().await?)));
        }
        meter.restart();
        let started = pairs[0].0.now();
        let mut sending = Vec::new();
        let mut receiving = Vec::new();
        for (number, ((left, right), (from, to))) in (0..).zip(pairs.into_iter().zip(connected)) {
            let of_each = self.bytes / u64::from(self.vms);
            let bytes = of_each + u64::from(number < self.bytes % u64::from(self.vms));
            sending.push(left.spawn("sending", send(from, message.clone(), bytes)));
            receiving
                .push(right.clone().spawn("receiving", receive(to, message.clone(), right, self.observers.clone())));
        }
        let mut moved = Moved { bytes: 0, whole: true, span: Duration::ZERO };
        for received in join_all(receiving).await {
            let (bytes, equal, ended) = received?;
            moved.bytes += bytes;
            moved.whole &= equal;
            moved.span = moved.span.max(ended - started);
        }
        join_all(sending).await.into_iter().collect::<io::Result<Vec<()>>>()?;
        Ok(moved)
    }
}

/// What came of all transfers.
struct Moved {
    bytes: u64,
    whole: bool,
    span: Duration,
}

async fn send(mut connection: Connection, message: Bytes, bytes: u64) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes {
        let next = message.slice(..(bytes - sent).min(message.len() as u64) as usize);
        sent += next.len() as u64;
        connection.send(next).await?;
    }
    connection.close().await?;
    connection.acknowledged(sent).await?;
    connection.closed().await;
    Ok(())
}

/// What arrives, whether it is what was sent, and when the last of it came.
async fn receive(
    mut connection: Connection,
    message: Bytes,
    host: BedHost,
    observers: Observers,
) -> io::Result<(u64, bool, Instant)> {
    let (mut bytes, mut equal, mut ended) = (0, true, host.now());
    while let Some(chunk) = connection.receive().await? {
        let _application = cost::work(WorkKind::Application);
        equal &= continues(&message, bytes, &chunk);
        bytes += chunk.len() as u64;
        observers.arrived(chunk.len() as u64);
        ended = host.now();
    }
    connection.close().await?;
    Ok((bytes, equal, ended))
}

const PORT: u16 = 5201;
const MESSAGE_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_nics_do_the_hypervisors_hosts_do_nothing() {
        for mode in VmMode::ALL {
            for vms in [1, 9] {
                let run = Vms { vms, bytes: 3_000_001, ..Vms::new(mode) }.run().unwrap();
                assert!(run.whole, "{run:?}");
                assert_eq!(run.mtu, 1416);
                assert_eq!(run.represented, 0, "{mode}");
                let hypervisors = run.hypervisors_ns_per_byte;
                assert_eq!((hypervisors.crypto, hypervisors.copy), (0.0, 0.0), "{mode}");
                assert_eq!(run.tx_guests_ns_per_byte.crypto + run.rx_guests_ns_per_byte.crypto, 0.0);
                assert_eq!(run.wrapped, if mode == VmMode::Plain { 0 } else { run.packets }, "{mode}");
                assert_eq!(run.protected, if mode == VmMode::OverlayEsp { run.packets } else { 0 }, "{mode}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (vms, sas, bytes) in [(0, 1, 100), (257, 1, 1000), (2, 0, 100), (200, 1, 100)] {
            let run = Vms { vms, sas, bytes, ..Vms::new(VmMode::Overlay) }.run();
            assert_eq!(run.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
