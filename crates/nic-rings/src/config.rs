//! The configuration of a NIC.

use crate::rss::Toeplitz;
use core::time::Duration;
use offload_formats::frame::ETHERNET_BYTES;

/// A NIC's sizes, speeds and delays, with the configuration `E` of its engines, which device and driver do not look
/// into.
///
/// ```
/// use nic_rings::NicConfig;
///
/// let config = NicConfig::<()> { mtu: 9000, ..NicConfig::default() };
/// assert_eq!(config.line_rate, Some(100_000_000_000));
/// ```
#[derive(Clone, Debug)]
pub struct NicConfig<E = ()> {
    /// Ethernet address. Frames to other addresses are not received.
    pub mac: [u8; 6],
    /// Maximum size of an IP packet in bytes.
    pub mtu: u16,
    /// Number of queue pairs, each for a shard of the host (`nic_sim::multi_queue_nic`). Contexts and their memory are
    /// divided among the pairs. Each pair has rings of the sizes given here.
    pub queues: u16,
    /// Key of the hash that spreads received packets over the queues.
    pub rss_key: [u8; 40],
    /// Rate of the port in bits per second. `None`: unlimited.
    pub line_rate: Option<u64>,
    /// Number of entries in a send ring.
    pub send_ring: usize,
    /// Maximum number of received packets that wait for the host. The receive memory holds as many frames of the MTU.
    pub receive_ring: usize,
    /// Number of entries in the control ring.
    pub control_ring: usize,
    /// Maximum payload on a send ring in bytes, beyond which the driver reports no room. Packets with a rate of their
    /// own do not count. The limit keeps the device's queue short, like byte queue limits in Linux.
    pub send_queue_bytes: usize,
    /// Maximum payload of a packet for segmentation in bytes. 0: the device does not segment. More than 64 KiB needs a
    /// host that writes zero into the IP header's length, as Linux does for devices with such a `gso_max_size`.
    pub tso_max_bytes: u32,
    /// Whether the device also segments UDP datagrams.
    pub udp_segmentation: bool,
    /// Whether the device paces flows, so that a flow's frames do not exceed the rate in its packets.
    pub pacing: bool,
    /// Whether the device fills in and checks checksums.
    pub checksum_offload: bool,
    /// Whether the device joins the segments of a flow that would reach the host at the same time anyway (large receive
    /// offload). Needs `checksum_offload`.
    pub lro: bool,
    /// Whether the device also joins datagrams of one sender and one size (UDP receive offload, as of NICs under
    /// Windows). The host is told the size, and splits them.
    pub lro_datagrams: bool,
    /// Maximum size of a joined IP packet in bytes. The header of a packet with more than 65,535 bytes cannot hold its
    /// length, which is then zero, as in Linux with such a `gro_max_size`. Receive buffers are twice as long, at least
    /// 128 KiB, and each flow that is being joined occupies a buffer of its own, from the memory set by `receive_ring`.
    pub lro_max_bytes: u32,
    /// Time for which a received segment waits for others to be joined to, even if the host polls meanwhile. The wait
    /// ends early when a segment with PSH or FIN, or one shorter than the first, is joined; when a segment of the flow
    /// arrives that cannot be joined, for example because the packet is full; and for the oldest flow, when a 17th flow
    /// begins to wait. Zero: segments wait only until the host would look anyway. Waiting saves the host packets and
    /// acknowledgments, and delays data that end without PSH.
    pub lro_wait: Duration,
    /// Memory of the NIC for contexts of 208 bytes each, in bytes. Further contexts lie in host memory.
    pub context_cache_bytes: usize,
    /// Delays inside the NIC.
    pub delays: Delays,
    /// Costs of the bus, of fetches and of engines.
    pub costs: Costs,
    /// Configuration of the engines.
    pub engines: E,
}

impl NicConfig {
    /// Returns the configuration of each single queue. Several queues share the port, which then keeps the line's time.
    pub fn for_each_queue(&self) -> NicConfig {
        let share = u32::from(self.queues.max(1));
        NicConfig {
            // Only the shared port knows all frames on the line, so a single queue cannot keep the line's time.
            line_rate: if share > 1 { None } else { self.line_rate },
            // The cache and the bus are one device's, divided evenly.
            context_cache_bytes: self.context_cache_bytes / share as usize,
            costs: self.costs.for_each_queue(share),
            ..self.clone()
        }
    }
}

impl<E> NicConfig<E> {
    /// Separates the engines' configuration from the rest.
    pub fn split(self) -> (NicConfig, E) {
        let config = NicConfig {
            mac: self.mac,
            mtu: self.mtu,
            queues: self.queues,
            rss_key: self.rss_key,
            line_rate: self.line_rate,
            send_ring: self.send_ring,
            receive_ring: self.receive_ring,
            control_ring: self.control_ring,
            send_queue_bytes: self.send_queue_bytes,
            tso_max_bytes: self.tso_max_bytes,
            udp_segmentation: self.udp_segmentation,
            pacing: self.pacing,
            checksum_offload: self.checksum_offload,
            lro: self.lro,
            lro_datagrams: self.lro_datagrams,
            lro_max_bytes: self.lro_max_bytes,
            lro_wait: self.lro_wait,
            context_cache_bytes: self.context_cache_bytes,
            delays: self.delays,
            costs: self.costs,
            engines: (),
        };
        (config, self.engines)
    }

    /// Returns the size of a receive buffer in bytes. Without LRO a buffer holds one frame. With LRO it holds many,
    /// because a joined packet must be contiguous. Any part of a buffer that the host keeps holds the whole buffer.
    ///
    /// ```
    /// use nic_rings::NicConfig;
    ///
    /// assert_eq!(NicConfig::<()>::default().receive_buffer_bytes(), 128 << 10);
    /// let joins_more = NicConfig::<()> { lro_max_bytes: 256 << 10, ..NicConfig::default() };
    /// assert_eq!(joins_more.receive_buffer_bytes(), 512 << 10);
    /// ```
    pub fn receive_buffer_bytes(&self) -> usize {
        let frame = (usize::from(self.mtu) + ETHERNET_BYTES).next_multiple_of(64);
        // Twice the largest packet, so that at least half of a buffer is used before its rest is too short.
        let joined = LRO_BUFFER_BYTES.max(2 * self.lro_max_bytes as usize);
        if self.lro { joined.max(frame) } else { frame }
    }

    /// Returns the number of receive buffers of the device.
    pub fn receive_buffers(&self) -> usize {
        if !self.lro {
            return self.receive_ring;
        }
        // With LRO the buffers are larger, and fewer of them give the same memory as without.
        let bytes = self.receive_ring * (usize::from(self.mtu) + ETHERNET_BYTES);
        // At least two: one is being filled while the host has the other.
        bytes.div_ceil(self.receive_buffer_bytes()).max(2).min(self.receive_ring)
    }
}

impl<E: Default> Default for NicConfig<E> {
    fn default() -> NicConfig<E> {
        NicConfig {
            mac: [0x02, 0, 0, 0, 0, 1],
            mtu: 1500,
            queues: 1,
            rss_key: Toeplitz::MICROSOFT_KEY,
            line_rate: Some(100_000_000_000),
            send_ring: 1024,
            receive_ring: 1024,
            control_ring: 256,
            send_queue_bytes: 512 * 1024,
            tso_max_bytes: 64 * 1024,
            udp_segmentation: true,
            pacing: true,
            checksum_offload: true,
            lro: true,
            lro_datagrams: false,
            lro_max_bytes: u16::MAX as u32,
            lro_wait: Duration::ZERO,
            context_cache_bytes: 4 << 20,
            delays: Delays::default(),
            costs: Costs::default(),
            engines: E::default(),
        }
    }
}

/// Delays between host and wire, without the line's own. The figures are assumptions in the range of PCIe 4 devices,
/// not measurements.
///
/// ```
/// use nic_rings::{Delays, NicConfig};
///
/// let usual = Delays::default();
/// assert!(usual.interrupt > usual.doorbell);
/// let real_time = NicConfig::<()> { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
/// assert!(real_time.delays.interrupt.is_zero());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Time from the doorbell until the device acts on it.
    pub doorbell: Duration,
    /// Time of reading or writing host memory, once per burst, because transfers are pipelined.
    pub dma: Duration,
    /// Time in a crypto engine.
    pub engine: Duration,
    /// Time from a completion to the host's interrupt handler, with moderation.
    pub interrupt: Duration,
}

impl Delays {
    /// No delays, for real time, where the machine has delays of its own.
    pub const NONE: Delays =
        Delays { doorbell: Duration::ZERO, dma: Duration::ZERO, engine: Duration::ZERO, interrupt: Duration::ZERO };
}

impl Default for Delays {
    fn default() -> Delays {
        Delays {
            doorbell: Duration::from_nanos(300),
            dma: Duration::from_nanos(600),
            engine: Duration::from_nanos(200),
            interrupt: Duration::from_micros(3),
        }
    }
}

/// Time that work inside a NIC takes, in addition to the fixed [`Delays`]. Each direction has its own bus and its own
/// engines. A packet waits until they are free, and then leaves, or reaches the host, later by its own cost. When
/// sending, the NIC works on the next packet while the previous one is on the line. By default all work is free.
///
/// A packet's cost includes its completion, and the DUMPs and parameters before it. ESP at the uplink of a NIC with a
/// switch has the same costs, and frames keep their order there. Commands on the control ring delay the packets after
/// them. Not charged: events that the driver did not ask for (resets, lost keys, resync requests), rings by which a
/// switch is managed, and frames of representors.
///
/// ```
/// use core::time::Duration;
/// use nic_rings::Costs;
///
/// let costs = Costs { pcie_rate: Some(64_000_000_000), context_fetch: Duration::from_micros(1), ..Costs::default() };
/// // 8,000 bytes over the bus, two contexts, and 1,448 bytes through an engine.
/// assert_eq!(costs.time(8000, 2, 1448), Duration::from_micros(3));
/// assert!(Costs::default().is_none());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Rate of the bus in bits per second, for packets, descriptors, DUMPs, contexts, commands and completions. `None`:
    /// unlimited.
    pub pcie_rate: Option<u64>,
    /// Time to fetch a context from host memory. A packet waits once for each of its contexts there.
    pub context_fetch: Duration,
    /// Rate of the engines in bits per second, for encryption, decryption and digests. `None`: unlimited. Bytes that
    /// pass several engines count once for each engine.
    pub crypto_rate: Option<u64>,
}

impl Costs {
    /// Tests whether all work is free.
    pub fn is_none(&self) -> bool {
        *self == Costs::default()
    }

    /// Returns the time of bytes on the bus and in engines, which overlap, plus the time of context fetches.
    pub fn time(&self, pcie_bytes: u64, fetches: u64, engine_bytes: u64) -> Duration {
        let time = |bytes: u64, rate: Option<u64>| {
            rate.map_or(0, |rate| u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1)))
        };
        // Bus and engines work as a pipeline: the slower one determines the time.
        let moving = time(pcie_bytes, self.pcie_rate).max(time(engine_bytes, self.crypto_rate));
        let fetching = self.context_fetch.as_nanos() * u128::from(fetches);
        Duration::from_nanos(u64::try_from(moving + fetching).unwrap_or(u64::MAX))
    }

    fn for_each_queue(self, queues: u32) -> Costs {
        let share = |rate: Option<u64>| rate.map(|rate| rate / u64::from(queues));
        Costs { pcie_rate: share(self.pcie_rate), crypto_rate: share(self.crypto_rate), ..self }
    }
}

/// Two of the largest packets with a length in their IP header, because a segment is split where a buffer ends.
const LRO_BUFFER_BYTES: usize = 128 << 10;
