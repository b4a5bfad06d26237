//! A port that sends each frame as one datagram over Unix sockets: the peer of QEMU's `-netdev dgram`. Needs no
//! privileges.
//!
//! The port receives by a socket that any process may send to, and sends by a socket connected to the peer's, because
//! only a connected socket signals when the peer has room again. A peer may therefore leave and come back.

use super::AttachCounters;
use super::outlet::Outlet;
use super::watcher::{FileReadiness, FileWatcher};
use bytes::BytesMut;
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use offload_base::cost::{self, WorkKind};
use offload_base::{BufferPool, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// A port that sends and receives frames as datagrams.
///
/// The peer is a QEMU with this port's `remote` as `local.path`, and this port's `local` as `remote.path`:
///
/// ```text
/// qemu-system-x86_64 -netdev dgram,id=n0,local.type=unix,local.path=guest.sock,remote.type=unix,remote.path=port.sock \
///                    -device virtio-net-pci,netdev=n0 ...
/// ```
///
/// ```
/// use nic_sim::wire::Port;
/// use offload_base::Instant;
/// use std::os::unix::net::UnixDatagram;
/// use offload_testbed::attach::DgramPort;
///
/// let (inside, outside) = UnixDatagram::pair()?;
/// let mut port = DgramPort::paired(inside)?;
/// outside.send(&[7; 60])?;
/// assert_eq!(port.poll_frame(Instant::ZERO).unwrap().data[..], [7; 60]);
/// port.receive_frame(Instant::ZERO, vec![8; 60].into());
/// port.process(Instant::ZERO);
/// assert_eq!(outside.recv(&mut [0; 100])?, 60);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct DgramPort {
    receiving: UnixDatagram,
    sending: UnixDatagram,
    /// The peer's address. `None` if `sending` is connected for good.
    remote: Option<RemotePath>,
    /// Path of the bound socket, removed on drop.
    bound: Option<PathBuf>,
    watcher: FileWatcher,
    outlet: Outlet,
    /// Read buffer for one datagram of any accepted length.
    scratch: Box<[u8]>,
    frames: BufferPool,
}

#[derive(Debug)]
struct RemotePath {
    path: PathBuf,
    connected: bool,
}

impl DgramPort {
    /// Creates a port that receives at `local` and sends to `remote`. Until `remote` exists, outgoing frames are
    /// dropped and counted. File permissions of the paths decide which users can send.
    ///
    /// # Errors
    /// If `local` cannot be bound, for example because another process is bound there.
    pub fn bind(local: &Path, remote: &Path) -> io::Result<DgramPort> {
        let receiving = bind_in_place_of_the_dead(local)?;
        let remote = RemotePath { path: remote.to_owned(), connected: false };
        let mut port = DgramPort::new(receiving, UnixDatagram::unbound()?, Some(remote))?;
        port.bound = Some(local.to_owned());
        Ok(port)
    }

    /// Creates a port on a connected socket, one of a pair.
    ///
    /// # Errors
    /// If the system refuses a thread or another file descriptor.
    pub fn paired(socket: UnixDatagram) -> io::Result<DgramPort> {
        let sending = socket.try_clone()?;
        DgramPort::new(socket, sending, None)
    }

    fn new(receiving: UnixDatagram, sending: UnixDatagram, remote: Option<RemotePath>) -> io::Result<DgramPort> {
        let watcher = FileWatcher::start("dgram")?;
        for (number, socket) in [(RECEIVING, &receiving), (SENDING, &sending)] {
            socket.set_nonblocking(true)?;
            watcher.add(number, socket)?;
        }
        Ok(DgramPort {
            receiving,
            sending,
            remote,
            bound: None,
            watcher,
            outlet: Outlet::default(),
            scratch: vec![0; LONGEST].into(),
            frames: BufferPool::new(FRAME_BYTES, FRAMES_PER_SLAB),
        })
    }

    /// Returns the counters.
    pub fn counters(&self) -> AttachCounters {
        self.outlet.counters
    }

    /// Sends waiting frames until the peer's queue is full.
    fn send_waiting(&mut self) {
        while let Some(frame) = self.outlet.first() {
            if let Some(remote) = &mut self.remote
                && !remote.connected
            {
                remote.connected = self.sending.connect(&remote.path).is_ok();
                if !remote.connected {
                    return self.outlet.all_lost();
                }
            }
            match self.sending.send(&frame.data) {
                Ok(_) => self.outlet.sent(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.watcher.arm(SENDING, &self.sending, FileReadiness::Write).is_err() {
                        self.outlet.all_lost();
                    }
                    return;
                }
                Err(error) => {
                    self.outlet.lost();
                    if is_gone(&error) {
                        self.outlet.counters.failures += 1;
                        match &mut self.remote {
                            // The peer may be back already, so the next frame connects again.
                            Some(remote) => remote.connected = false,
                            None => return self.outlet.all_lost(),
                        }
                    }
                }
            }
        }
    }

    fn receive(&mut self) -> Option<Frame> {
        // The limit keeps a peer that sends only malformed frames from blocking other ports.
        for _ in 0..MAX_IN_A_ROW {
            match self.receiving.recv(&mut self.scratch) {
                // The peer of a pair has shut its side; every further read would return 0 as well. An empty datagram
                // also reads as 0 but ends nothing.
                Ok(0) if is_shut(&self.receiving) => return None,
                Ok(bytes) if bytes < SHORTEST || bytes == LONGEST => self.outlet.counters.rx_malformed += 1,
                Ok(bytes) => {
                    let _copying = cost::work(WorkKind::Copy);
                    let mut frame =
                        if bytes <= FRAME_BYTES { self.frames.take() } else { BytesMut::with_capacity(bytes) };
                    frame.extend_from_slice(&self.scratch[..bytes]);
                    self.outlet.counters.rx_frames += 1;
                    self.outlet.counters.rx_bytes += bytes as u64;
                    return Some(Frame::from(frame));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.outlet.counters.failures += 1,
            }
        }
        if self.watcher.arm(RECEIVING, &self.receiving, FileReadiness::Read).is_err() {
            self.outlet.counters.failures += 1;
            // Nothing is left to read: the watcher rings the doorbell at the next datagram.
        }
        None
    }
}

impl Port for DgramPort {
    fn receive_frame(&mut self, _: Instant, frame: Frame) {
        self.outlet.push(frame);
    }

    fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
        self.receive()
    }

    fn process(&mut self, _: Instant) {
        self.send_waiting();
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.watcher.register(waker);
    }
}

impl Drop for DgramPort {
    fn drop(&mut self) {
        if let Some(bound) = &self.bound {
            // The file may be gone already; that is no fault.
            let _removed = std::fs::remove_file(bound);
        }
    }
}

/// Binds `path` and first removes a socket left there by a program that has ended.
///
/// # Errors
/// If another kind of file is there, a process receives there, or the folder cannot be written.
pub fn bind_in_place_of_the_dead(path: &Path) -> io::Result<UnixDatagram> {
    match UnixDatagram::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            // A refused connection proves that no process owns the socket any more.
            let answer = UnixDatagram::unbound()?.connect(path);
            if answer.is_err_and(|answer| answer.kind() == ErrorKind::ConnectionRefused) {
                std::fs::remove_file(path)?;
                return UnixDatagram::bind(path);
            }
            Err(error)
        }
        bound => bound,
    }
}

/// Returns whether the peer has shut its side for good.
fn is_shut(socket: &UnixDatagram) -> bool {
    let mut files = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut files, Some(&Timespec::default())).is_ok() && files[0].revents().contains(PollFlags::RDHUP)
}

/// Returns whether the error means that the peer's socket was closed or replaced.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::NotFound
            | ErrorKind::BrokenPipe
            | ErrorKind::PermissionDenied
    )
}

const RECEIVING: usize = 0;
const SENDING: usize = 1;
/// Datagrams read for one frame.
const MAX_IN_A_ROW: usize = 64;
/// Length of an Ethernet header.
const SHORTEST: usize = 14;
/// Read buffer size: a datagram that fills the buffer may have been truncated.
const LONGEST: usize = 64 * 1024 + 4096;
/// Pooled buffer size; longer frames are rare enough for an allocation each.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;
