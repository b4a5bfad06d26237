//! What a NIC is built with.

use crate::rss::Toeplitz;
use core::time::Duration;
use offload_api::ResyncMode;
use offload_formats::frame::ETHERNET_BYTES;

/// A NIC's size, speed and delays.
///
/// ```
/// use nic_rings::NicConfig;
///
/// let config = NicConfig { mtu: 9000, ..NicConfig::default() };
/// assert_eq!(config.line_rate, Some(100_000_000_000));
/// ```
#[derive(Clone, Debug)]
pub struct NicConfig {
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
    /// TLS contexts there is room for, each with its key; 0: the device has no TLS face.
    pub tls_contexts: u32,
    /// IPsec security associations there is room for, and as many policies; 0: the device has no IPsec face. Of several
    /// queues, each has room for its share, rounded up: a NIC that has IPsec at all has it at each of them.
    pub ipsec_sas: u32,
    /// NVMe/TCP contexts there is room for; 0: the device has no NVMe/TCP face.
    pub nvme_contexts: u32,
    /// QUIC contexts there is room for, one for each direction of a connection; 0: the device has no QUIC face.
    pub quic_contexts: u32,
    /// Commands that move fewer bytes are not worth placing.
    pub nvme_io_threshold: usize,
    /// Memory on the NIC for the state of contexts, in bytes, 208 each; what does not fit lies in host memory.
    pub context_cache_bytes: usize,
    /// TLS transmit contexts given up that the driver keeps for others, at most: those need a key only, and no answer from
    /// the device; 0: each is created and destroyed.
    pub tls_context_pool: usize,
    /// What is done about a packet that a TLS transmit context does not stand at.
    pub tls_transmit_resync: TransmitResync,
    /// How TLS receive contexts that lost their place find it again.
    pub tls_resync: ResyncMode,
    /// How long things take inside.
    pub delays: Delays,
}

impl NicConfig {
    /// What each of the queues is built with. With several, the port is theirs together, and keeps the line's time.
    pub fn of_each_queue(&self) -> NicConfig {
        let share = u32::from(self.queues.max(1));
        NicConfig {
            line_rate: if share > 1 { None } else { self.line_rate },
            tls_contexts: self.tls_contexts / share,
            nvme_contexts: self.nvme_contexts / share,
            quic_contexts: self.quic_contexts / share,
            ipsec_sas: self.ipsec_sas.div_ceil(share),
            context_cache_bytes: self.context_cache_bytes / share as usize,
            ..self.clone()
        }
    }

    /// Bytes of a receive buffer. Without LRO it takes one frame; with it many, for what is joined is to lie in one
    /// piece. Any part of what was received keeps all of it.
    ///
    /// ```
    /// use nic_rings::NicConfig;
    ///
    /// assert_eq!(NicConfig::default().receive_buffer_bytes(), 128 << 10);
    /// let joins_more = NicConfig { lro_max_bytes: 256 << 10, ..NicConfig::default() };
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

impl Default for NicConfig {
    fn default() -> NicConfig {
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
            tls_contexts: 1 << 18,
            ipsec_sas: 1 << 14,
            nvme_contexts: 1 << 12,
            quic_contexts: 1 << 14,
            nvme_io_threshold: 32 << 10,
            context_cache_bytes: 4 << 20,
            tls_context_pool: 1024,
            tls_transmit_resync: TransmitResync::Dump,
            tls_resync: ResyncMode::DriverRequest,
            delays: Delays::default(),
        }
    }
}

/// What a driver does about a packet that is not the next of its TLS transmit context: one that is sent again, or that
/// comes after one.
///
/// ```
/// use nic_rings::{NicConfig, TransmitResync};
///
/// let config = NicConfig { tls_transmit_resync: TransmitResync::NextRecord, ..NicConfig::default() };
/// assert_ne!(config.tls_transmit_resync, TransmitResync::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransmitResync {
    /// It has the device go to that place: the bytes of the record before it are read once more (DUMPs). The host's CPU
    /// has nothing to do, the bus has.
    #[default]
    Dump,
    /// It has software seal the record, and the device goes on where it stood, or begins afresh at the next record. The
    /// bus has nothing to do, the host's CPU has.
    NextRecord,
}

/// Time that passes between host and wire, beside the line's own. Assumed figures of the order that PCIe 4
/// devices show, not measurements of one.
///
/// ```
/// use nic_rings::{Delays, NicConfig};
///
/// let usual = Delays::default();
/// assert!(usual.interrupt > usual.doorbell);
/// let real_time = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
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

/// Two of the largest packets that IP headers tell the length of: segments are parted where a buffer ends.
const LRO_BUFFER_BYTES: usize = 128 << 10;
