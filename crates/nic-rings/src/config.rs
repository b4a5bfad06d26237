//! What a NIC is built with.

use crate::rss::Toeplitz;
use core::time::Duration;
use offload_formats::frame::ETHERNET_BYTES;

/// A NIC's size, speed and delays, and the configuration `E` of its engines. The device and its driver do not know `E`.
/// Build it from the default, as here, because later versions may add fields.
///
/// ```
/// use nic_rings::NicConfig;
///
/// let config = NicConfig::<()> { mtu: 9000, ..NicConfig::default() };
/// assert_eq!(config.line_rate, Some(100_000_000_000));
/// ```
#[derive(Clone, Debug)]
pub struct NicConfig<E = ()> {
    /// Its Ethernet address. Frames to others are not received.
    pub mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Queue pairs, each for a shard of the host (`nic_sim::multi_queue_nic`). Contexts and the memory for
    /// them are shared out among them; rings are of the size given here each.
    pub queues: u16,
    /// The key of the hash by which received packets are spread over the queues.
    pub rss_key: [u8; 40],
    /// Bits per second the port sends at; `None`: as fast as it can.
    pub line_rate: Option<u64>,
    /// Entries of a send ring.
    pub send_ring: usize,
    /// Received packets that may wait for the host, and frames of the MTU that there is memory for.
    pub receive_ring: usize,
    /// Entries of the control ring.
    pub control_ring: usize,
    /// Payload bytes, of packets that ask for no rate, that may be on a send ring before the driver says there is no room: what keeps the queue
    /// in the device short, as byte queue limits do in Linux.
    pub send_queue_bytes: usize,
    /// Most payload bytes of a packet to be cut into segments; 0: the device does not segment. More than 64 KiB is for
    /// hosts that leave the IP header's length zero then, as Linux does for devices with such a `gso_max_size`.
    pub tso_max_bytes: u32,
    /// Whether what it cuts may be UDP datagrams as well.
    pub udp_segmentation: bool,
    /// Whether the device sends a flow's frames no faster than its packets ask.
    pub pacing: bool,
    /// Whether the device fills in and checks checksums.
    pub checksum_offload: bool,
    /// Whether the device joins segments of a flow that the host would see at the same time anyway (large receive
    /// offload). Needs `checksum_offload`.
    pub lro: bool,
    /// Whether it joins datagrams of one sender and one size as well (UDP receive offload, as of NICs under Windows): the
    /// host is told the size, and takes them apart.
    pub lro_datagrams: bool,
    /// Most bytes of the IP packet that segments are joined to. Of one with more than 65,535 the header does not say how
    /// long it is: its length is zero, as in Linux with such a `gro_max_size`. Receive buffers are twice as long, 128 KiB at
    /// least, and each flow that is being joined fills one of its own: `receive_ring` says what memory there is for them.
    pub lro_max_bytes: u32,
    /// How long segments that were received wait for others to be joined to, from the first one on, whatever the host looks
    /// at meanwhile. A segment with PSH or FIN, or shorter than the first, ends the wait when it is joined; one of the
    /// flow that cannot be joined, since the packet is full, say, ends it when it comes; and the oldest wait ends when a
    /// 17th flow is to begin one. Zero: no longer than the host would not look anyway. It saves the host packets and
    /// acknowledgments, and what ends without PSH is late by as much.
    pub lro_wait: Duration,
    /// Memory on the NIC for the state of contexts, in bytes, 208 each; what does not fit lies in host memory.
    pub context_cache_bytes: usize,
    /// How long things take inside.
    pub delays: Delays,
    /// What the bus, fetches and engines cost.
    pub costs: Costs,
    /// Configuration of the engines.
    pub engines: E,
}

impl NicConfig {
    /// What each of the queues is built with. With several, the port is theirs together, and keeps the line's time.
    pub fn of_each_queue(&self) -> NicConfig {
        let share = u32::from(self.queues.max(1));
        NicConfig {
            line_rate: if share > 1 { None } else { self.line_rate },
            context_cache_bytes: self.context_cache_bytes / share as usize,
            costs: self.costs.of_each_queue(share),
            ..self.clone()
        }
    }
}

impl<E> NicConfig<E> {
    /// Splits the engines' configuration off.
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

    /// Bytes of a receive buffer. Without LRO it takes one frame; with it many, for what is joined is to lie in one
    /// piece. Any part of what was received keeps all of it.
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
        let joined = LRO_BUFFER_BYTES.max(2 * self.lro_max_bytes as usize);
        if self.lro { joined.max(frame) } else { frame }
    }

    /// How many of them the device has.
    pub fn receive_buffers(&self) -> usize {
        if !self.lro {
            return self.receive_ring;
        }
        let bytes = self.receive_ring * (usize::from(self.mtu) + ETHERNET_BYTES);
        // One is being filled while the host has the other.
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

/// Time that passes between host and wire, beside the line's own. Assumed figures of the order that PCIe 4
/// devices show, not measurements of one.
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
    /// From the doorbell to the device acting on it.
    pub doorbell: Duration,
    /// Reading or writing host memory, once for a burst: later transfers follow in its wake.
    pub dma: Duration,
    /// Through a crypto engine.
    pub engine: Duration,
    /// From a completion to the host's interrupt handler, moderation included.
    pub interrupt: Duration,
}

impl Delays {
    /// None at all: for real time, where the machine has its own.
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

/// Time that work inside a NIC takes, beside the fixed [`Delays`]. Each direction has its own bus and its own engines. A
/// packet waits until they are free, then leaves, or reaches the host, later by its own cost. On the way out the next packet
/// is worked on while the one before is on the line. By default nothing of it takes time.
///
/// A packet's cost includes its completion, and the DUMPs and parameters before it. ESP at the uplink of a NIC with a switch
/// costs time as elsewhere, and frames keep their order there. Commands on the control ring delay the packets behind them.
/// Not charged: events that the driver did not ask for (resets, lost keys, resync requests), rings by which a switch is
/// managed, and frames of representors.
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
    /// Bits per second of the bus, for packets, descriptors, DUMPs, contexts, commands and completions; `None`: no limit.
    pub pcie_rate: Option<u64>,
    /// How long a packet waits for each of its contexts that lies in host memory.
    pub context_fetch: Duration,
    /// Bits per second of the engines, which encrypt, decrypt and digest; `None`: no limit. Bytes on which several engines
    /// work count once for each.
    pub crypto_rate: Option<u64>,
}

impl Costs {
    /// Tests whether nothing takes time.
    pub fn is_none(&self) -> bool {
        *self == Costs::default()
    }

    /// Returns the time for bytes over the bus and through engines, which overlap, and for fetches of contexts.
    pub fn time(&self, pcie_bytes: u64, fetches: u64, engine_bytes: u64) -> Duration {
        let time = |bytes: u64, rate: Option<u64>| {
            rate.map_or(0, |rate| u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1)))
        };
        let moving = time(pcie_bytes, self.pcie_rate).max(time(engine_bytes, self.crypto_rate));
        let fetching = self.context_fetch.as_nanos() * u128::from(fetches);
        Duration::from_nanos(u64::try_from(moving + fetching).unwrap_or(u64::MAX))
    }

    fn of_each_queue(self, queues: u32) -> Costs {
        let share = |rate: Option<u64>| rate.map(|rate| rate / u64::from(queues));
        Costs { pcie_rate: share(self.pcie_rate), crypto_rate: share(self.crypto_rate), ..self }
    }
}

/// Two of the largest packets that IP headers tell the length of: segments are parted where a buffer ends.
const LRO_BUFFER_BYTES: usize = 128 << 10;
