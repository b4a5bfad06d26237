//! A TAP: the machine's own kernel at the other end of a wire, with checksums and segmentation left to this side.
//!
//! The kernel hands over super-segments and takes such: a packet crosses the system call once for some forty frames.
//! What the wire carries are frames all the same, cut and joined here.
//!
//! Source: Linux, Documentation/networking/tuntap.rst; `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`, `TUNSETOFFLOAD`.

use super::AttachCounters;
use super::gone::Gone;
use super::watcher::{Readiness, Watcher};
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

/// What a TAP is to be like.
///
/// See [`TapPort`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// Its name, of at most 15 bytes. A TAP of that name is used if nobody else does, or else made.
    pub name: String,
    /// The Ethernet address of the kernel's side; `None`: as it is, a random one if the TAP is made.
    pub mac: Option<[u8; 6]>,
    /// The largest IP packet on the kernel's side; `None`: as it is, 1500 if the TAP is made. No more than the wire's
    /// other end takes.
    pub mtu: Option<u16>,
    /// Whether to bring the interface up; false: it stays as it is.
    pub up: bool,
}

impl TapConfig {
    /// The TAP of this name, with everything about it as it is.
    pub fn named(name: impl Into<String>) -> TapConfig {
        TapConfig { name: name.into(), mac: None, mtu: None, up: false }
    }
}

/// Why there is no TAP.
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
    /// It is not allowed.
    #[error(
        "not allowed to open the TAP {name}: {source}. Either run as root (or with CAP_NET_ADMIN), or have root make \
         it for you once: ip tuntap add dev {name} mode tap user $USER && ip link set {name} up"
    )]
    NotAllowed {
        /// The TAP's name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel has no TAPs, or the name is no name.
    #[error("cannot open the TAP {name}: {source}")]
    Failed {
        /// The TAP's name.
        name: String,
        /// What the system said.
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
    watcher: Watcher,
    incoming: Resegmenter,
    outgoing: Coalescer,
    counters: AttachCounters,
    gone: Gone,
}

impl TapPort {
    /// Opens the TAP, or makes it. One that was made goes when the port is dropped.
    ///
    /// # Errors
    /// If that is not allowed, if there is such an interface that is no TAP or in use, or if the kernel has no TAPs.
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
        let watcher = Watcher::start(&name)?;
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

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Ethernet address of the kernel's side.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        self.device.mac_address()
    }

    /// What was counted so far.
    pub fn counters(&self) -> AttachCounters {
        self.counters
    }

    /// What tells that the interface was deleted.
    pub fn gone(&self) -> Gone {
        self.gone.clone()
    }

    /// Reads packets until one makes frames. False: there is none.
    fn read(&mut self) -> bool {
        // A kernel that hands over nothing of use is not listened to for longer than others are.
        for _ in 0..MOST_IN_A_ROW {
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
                    // The interface was deleted: nothing comes any more, and there is nothing to wait for.
                    self.counters.failures += 1;
                    self.gone.tell();
                    return false;
                }
            }
        }
        if self.watcher.arm(DEVICE, self.device.as_fd(), Readiness::Read).is_err() {
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
            // The kernel takes a packet or has no memory for it; there is no room to wait for.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.counters.tx_queue_drops += frames,
            // The interface is down, or gone.
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
        // All frames that have arrived by now are in: nothing waits for company that may not come.
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
/// Packets looked at for one frame.
const MOST_IN_A_ROW: usize = 64;
