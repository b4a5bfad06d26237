//! A TAP port: the machine's own kernel at the far end of a wire, with checksum and segmentation offload to this side.
//!
//! The kernel exchanges super-segments with this port, so that one system call moves about forty frames. The wire still
//! carries ordinary frames, which are cut and joined here.
//!
//! Source: Linux, Documentation/networking/tuntap.rst; `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`, `TUNSETOFFLOAD`.

use super::AttachCounters;
use super::gone::Gone;
use super::watcher::{FileReadiness, FileWatcher};
use core::fmt;
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::wire::attach::{Coalescer, OutPacket, Resegmenter};
use offload_base::Instant;
use offload_base::cost::{self, WorkKind};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// Configuration of a TAP.
///
/// See [`TapPort`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// Interface name, at most 15 bytes. An existing TAP of that name is used if the TAP is free; otherwise a TAP is
    /// created.
    pub name: String,
    /// Ethernet address of the kernel's side. `None` leaves the address as it is; a new TAP then has a random one.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet on the kernel's side, at most the MTU of the wire's other end. `None` leaves the MTU as it is;
    /// a new TAP then has 1500.
    pub mtu: Option<u16>,
    /// Whether to bring the interface up. If false, its state does not change.
    pub up: bool,
}

impl TapConfig {
    /// Returns a configuration for the TAP of this name that changes nothing else.
    pub fn named(name: impl Into<String>) -> TapConfig {
        TapConfig { name: name.into(), mac: None, mtu: None, up: false }
    }
}

/// Reason why a TAP could not be opened.
///
/// ```
/// use offload_testbed::attach::{TapConfig, TapError, TapPort};
///
/// let refused: TapError = TapPort::open(TapConfig::named("longer than 15 bytes")).err().unwrap();
/// assert!(refused.to_string().contains("the TAP longer than 15 bytes"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// The process lacks permission.
    #[error(
        "not allowed to open the TAP {name}: {source}. Either run as root (or with CAP_NET_ADMIN), or have root make \
         it for you once: ip tuntap add dev {name} mode tap user $USER && ip link set {name} up"
    )]
    NotAllowed {
        /// The TAP's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel has no TAPs, or the name is invalid.
    #[error("cannot open the TAP {name}: {source}")]
    Failed {
        /// The TAP's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

/// A port that is a TAP of this machine.
///
/// ```no_run
/// use offload_testbed::attach::{TapConfig, TapPort};
///
/// // Behind it, this machine sees the emulated hosts as its neighbours on an Ethernet.
/// let port = TapPort::open(TapConfig { up: true, ..TapConfig::named("tap7") })?;
/// assert_eq!(port.name(), "tap7");
/// # Ok::<(), offload_testbed::attach::TapError>(())
/// ```
pub struct TapPort {
    device: SyncDevice,
    name: String,
    watcher: FileWatcher,
    incoming: Resegmenter,
    outgoing: Coalescer,
    counters: AttachCounters,
    gone: Gone,
}

impl TapPort {
    /// Opens the TAP, or creates one. A created TAP is deleted when the port is dropped.
    ///
    /// # Errors
    /// If the process lacks permission, if an interface of that name is in use or is no TAP, or if the kernel has no
    /// TAPs.
    pub fn open(config: TapConfig) -> Result<TapPort, TapError> {
        let name = config.name.clone();
        TapPort::try_open(config).map_err(|source| match source.kind() {
            ErrorKind::PermissionDenied => TapError::NotAllowed { name, source },
            _ => TapError::Failed { name, source },
        })
    }

    fn try_open(config: TapConfig) -> io::Result<TapPort> {
        let mut builder = DeviceBuilder::new().name(config.name).layer(Layer::L2).offload(true).inherit_enable_state();
        if let Some(mac) = config.mac {
            builder = builder.mac_addr(mac);
        }
        if let Some(mtu) = config.mtu {
            builder = builder.mtu(mtu);
        }
        if config.up {
            builder = builder.enable(true);
        }
        let device = builder.build_sync()?;
        device.set_nonblocking(true)?;
        let name = device.name()?;
        let watcher = FileWatcher::start(&name)?;
        watcher.add(DEVICE, device.as_fd())?;
        Ok(TapPort {
            device,
            name,
            watcher,
            incoming: Resegmenter::default(),
            outgoing: Coalescer::default(),
            counters: AttachCounters::default(),
            gone: Gone::default(),
        })
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the Ethernet address of the kernel's side.
    ///
    /// # Errors
    /// If the system cannot tell the address.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        self.device.mac_address()
    }

    /// Returns the counters.
    pub fn counters(&self) -> AttachCounters {
        self.counters
    }

    /// Returns the signal that the interface was deleted.
    pub fn gone(&self) -> Gone {
        self.gone.clone()
    }

    /// Reads packets until one of them yields frames. Returns false if no packet is left.
    fn read(&mut self) -> bool {
        // The limit keeps a kernel that sends only malformed packets from blocking other ports.
        for _ in 0..MAX_IN_A_ROW {
            let copying = cost::work(WorkKind::Copy);
            let read = rustix::io::read(&self.device, self.incoming.buffer());
            drop(copying);
            match read {
                Ok(bytes) => match self.incoming.filled(bytes) {
                    Ok(()) => {
                        self.counters.rx_super_segments += u64::from(self.incoming.is_super_segment());
                        return true;
                    }
                    Err(_) => self.counters.rx_malformed += 1,
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    // The interface was deleted. No packet will come, so the watcher is not armed.
                    self.counters.failures += 1;
                    self.gone.tell();
                    return false;
                }
            }
        }
        if self.watcher.arm(DEVICE, self.device.as_fd(), FileReadiness::Read).is_err() {
            self.counters.failures += 1;
        }
        false
    }

    fn write(&mut self, packet: &OutPacket) {
        let mut slices: SmallVec<[IoSlice<'_>; 4]> = SmallVec::new();
        slices.push(IoSlice::new(packet.virtio_header()));
        slices.extend(packet.pieces().map(IoSlice::new));
        let frames = packet.frames() as u64;
        let copying = cost::work(WorkKind::Copy);
        let written = loop {
            match rustix::io::writev(&self.device, &slices) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        drop(copying);
        match written {
            Ok(_) => {
                self.counters.tx_frames += frames;
                self.counters.tx_bytes += packet.len() as u64;
                self.counters.tx_super_segments += u64::from(frames > 1);
            }
            // The kernel either takes a packet at once or has no memory for the packet, so waiting would not help.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.counters.tx_queue_drops += frames,
            // The interface is down or deleted.
            Err(_) => self.counters.tx_unreachable += frames,
        }
    }

    fn write_ready(&mut self) {
        while let Some(packet) = self.outgoing.pop() {
            self.write(&packet);
        }
    }
}

impl Port for TapPort {
    fn receive_frame(&mut self, _: Instant, frame: Frame) {
        self.outgoing.push(frame);
        self.write_ready();
    }

    fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
        loop {
            if let Some(frame) = self.incoming.next_frame() {
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += frame.len() as u64;
                return Some(frame);
            }
            if !self.read() {
                return None;
            }
        }
    }

    fn process(&mut self, _: Instant) {
        // All frames that have arrived by now are queued. Waiting for more frames to join could wait for ever.
        self.outgoing.flush();
        self.write_ready();
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.watcher.register(waker);
    }
}

impl fmt::Debug for TapPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapPort").field("name", &self.name).field("counters", &self.counters).finish_non_exhaustive()
    }
}

const DEVICE: usize = 0;
/// Packets read for one frame.
const MAX_IN_A_ROW: usize = 64;
