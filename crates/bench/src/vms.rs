//! Virtual machines on one hypervisor that send to virtual machines on another: in clear text, in an overlay, or in an
//! overlay under ESP, all by the NICs. The result is the cost of a byte for the guests, the hypervisors' hosts and the
//! devices, by number of virtual machines.
//!
//! Each virtual machine on the left sends to its counterpart on the right, all at once. Received data is compared with
//! the sent data. Guests have the same MTU in all modes, as small as the protected overlay requires, so that modes
//! differ in the NICs' work and not in packet sizes.

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
    /// The treatment of guests' frames between the hypervisors.
    pub enum VmMode {
        /// Frames are forwarded unchanged.
        Plain = "plain",
        /// Frames are encapsulated.
        Overlay = "overlay",
        /// Frames are encapsulated and protected by ESP.
        OverlayEsp = "overlay-esp",
    }
}

choices! {
    /// The encapsulation of frames.
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

/// The settings of a run, in virtual time.
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
    /// The treatment of frames between the hypervisors.
    pub mode: VmMode,
    /// The encapsulation.
    pub tunnel: TunnelChoice,
    /// Virtual machines on each side, 1 to 256.
    pub vms: u16,
    /// SAs of each virtual machine and direction.
    pub sas: u16,
    /// Whether the hypervisors use IPv6.
    pub ipv6: bool,
    /// Bytes in total, shared by the virtual machines.
    pub bytes: u64,
    /// The hypervisors' NICs.
    pub nic: NicConfig,
    /// Settings of the virtual machines' functions, except for their MTU.
    pub function: NicConfig,
    /// The wire between the hypervisors.
    pub link: LinkConfig,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// The observers of the run.
    pub observers: Observers,
}

/// The result of one run.
///
/// See [`Vms`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct VmsRun {
    /// The treatment of frames between the hypervisors.
    pub mode: String,
    /// Virtual machines on each side.
    pub vms: u16,
    /// The guests' MTU.
    pub mtu: u16,
    /// Received bytes.
    pub bytes: u64,
    /// Whether the received data equals the sent data.
    pub whole: bool,
    /// Bytes of all guests in 10^9 bits per second of virtual time.
    pub goodput_gbps: f64,
    /// CPU time of the sending guests.
    pub tx_guests_ns_per_byte: HostCost,
    /// CPU time of the receiving guests.
    pub rx_guests_ns_per_byte: HostCost,
    /// CPU time of both hypervisors' hosts.
    pub hypervisors_ns_per_byte: HostCost,
    /// CPU time of both emulated devices.
    pub device_ns_per_byte: f64,
    /// Frames delivered to the hypervisors' hosts, by representors and by the hosts' own functions.
    pub represented: u64,
    /// Packets on the wire in both directions.
    pub packets: u64,
    /// Packets that the devices encapsulated.
    pub wrapped: u64,
    /// Packets that the devices protected by ESP.
    pub protected: u64,
    /// Counters of all hosts, devices and the wire that moved, summed by name.
    pub counters: BTreeMap<String, u64>,
}

impl Vms {
    /// Returns 64 MiB over 8 virtual machines, in VXLAN over IPv4, with one SA in each direction.
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

    /// Runs the transfers.
    ///
    /// # Errors If the options are invalid, or a connection is lost.
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
        // Installing the overlay moves counters too, so only the differences are reported.
        let before = bed.counters();
        // Each virtual machine talks only to its counterpart, so that the load is symmetric.
        let pair = |number| (bed.host(overlay.left_vm(number)).clone(), bed.host(overlay.right_vm(number)).clone());
        let pairs = (0..self.vms).map(pair).collect();
        let moved = self.observers.run(&mut bed, self.label(), self.transfer(pairs, meter.clone()));
        drop(attached);
        let moved = moved?;
        self.observers.finish()?;
        let after = bed.counters();
        // Only the transfer counts, not the setup before.
        let value = |name: &str| after.value(name) - before.value(name);
        let hosts = [overlay.left(), overlay.right()].map(|host| bed.host(host).queue_counters());
        let represented = hosts.iter().flatten().map(|queue| queue.value("rx_packets")).sum::<u64>();
        let counts = [
            value("eswitch_rx_steer_missed_packets") + represented,
            value("tx_packets_phy"),
            value("eswitch_encap_packets"),
            value("eswitch_ipsec_tx_pkts"),
        ];
        // Threads report their CPU time when they end, so the testbed is dropped before the meter is read.
        drop(bed);
        let report = meter.take();
        let cost = |domains: [Domain; 2]| domains.map(|domain| HostCost::from_report(&report, domain, moved.bytes));
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
        // All modes use the MTU of the protected overlay, see the module's description.
        let mtu = Some(protected.vm_mtu());
        match self.mode {
            VmMode::Plain => Overlay { tunnel: None, suite: None, mtu, ..protected },
            VmMode::Overlay => Overlay { suite: None, mtu, ..protected },
            VmMode::OverlayEsp => Overlay { mtu, ..protected },
        }
    }

    /// Connects all pairs, and then starts all transfers.
    async fn transfer(&self, pairs: Vec<(BedHost, BedHost)>, meter: CpuMeter) -> io::Result<VmsResult> {
        let mut message = BytesMut::zeroed(MESSAGE_BYTES);
        self.seed.stream("message").fill(&mut message);
        let message = message.freeze();
        let mut connected = Vec::new();
        for (left, right) in &pairs {
            let mut listener = right.stack().listen(PORT, 1)?;
            let stream = left.stack().connect(None, (right.address(), PORT).into()).await?;
            connected.push((Connection::Plain(stream), Connection::Plain(listener.accept().await?)));
        }
        // Connections exist by now, so handshakes are not measured.
        meter.restart();
        let started = pairs[0].0.now();
        let mut sending = Vec::new();
        let mut receiving = Vec::new();
        for (number, ((left, right), (from, to))) in (0..).zip(pairs.into_iter().zip(connected)) {
            // The remainder goes to the first machines, so that the total is exact.
            let of_each = self.bytes / u64::from(self.vms);
            let bytes = of_each + u64::from(number < self.bytes % u64::from(self.vms));
            sending.push(left.spawn("sending", send(from, message.clone(), bytes)));
            receiving
                .push(right.clone().spawn("receiving", receive(to, message.clone(), right, self.observers.clone())));
        }
        let mut moved = VmsResult { bytes: 0, whole: true, span: Duration::ZERO };
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

/// The result of all transfers.
struct VmsResult {
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
    // The connection must not be dropped with unacknowledged data.
    connection.acknowledged(sent).await?;
    connection.closed().await;
    Ok(())
}

/// Receives everything. Returns the number of bytes, whether all are right, and the time of the last one.
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
    fn hypervisor_hosts_stay_idle_in_every_mode() {
        for mode in VmMode::ALL {
            for vms in [1, 9] {
                let run = Vms { vms, bytes: 3_000_001, ..Vms::new(mode) }.run().unwrap();
                assert!(run.whole, "{run:?}");
                assert_eq!(run.mtu, 1416);
                // A frame at a representor would mean that software switched it.
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
    fn invalid_options_are_refused() {
        for (vms, sas, bytes) in [(0, 1, 100), (257, 1, 1000), (2, 0, 100), (200, 1, 100)] {
            let run = Vms { vms, sas, bytes, ..Vms::new(VmMode::Overlay) }.run();
            assert_eq!(run.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
