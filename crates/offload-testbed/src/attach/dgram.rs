//! One datagram, one frame, over Unix sockets: the other end of QEMU's `-netdev dgram`. Needs no rights.
//!
//! What is received comes by a socket that everybody may send to; what is sent goes by one that is connected to
//! the peer's, for only a connected one tells when the peer has room again. So a peer may come, go and come again.

use super::AttachCounters;
use super::outlet::Outlet;
use super::watcher::{Readiness, Watcher};
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

/// A port whose frames are datagrams.
///
/// The peer, a QEMU whose `local.path` is this port's `remote` and the other way round:
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
    /// Where `sending` is to be connected to, if it is not for good.
    remote: Option<Remote>,
    /// What is removed in the end.
    bound: Option<PathBuf>,
    watcher: Watcher,
    outlet: Outlet,
    /// A datagram as it is read, of whatever length.
    scratch: Box<[u8]>,
    frames: BufferPool,
}

#[derive(Debug)]
struct Remote {
    path: PathBuf,
    connected: bool,
}

impl DgramPort {
    /// A port that receives at `local` and sends to `remote`, which need not be there yet: until it is, what is
    /// sent is dropped and counted. Who can write to a path decides who can send.
    ///
    /// # Errors
    /// If `local` cannot be bound, for example because somebody else is there.
    pub fn bind(local: &Path, remote: &Path) -> io::Result<DgramPort> {
        let receiving = bind_in_place_of_the_dead(local)?;
        let remote = Remote { path: remote.to_owned(), connected: false };
        let mut port = DgramPort::new(receiving, UnixDatagram::unbound()?, Some(remote))?;
        port.bound = Some(local.to_owned());
        Ok(port)
    }

    /// A port on a socket that is connected: one of a pair.
    ///
    /// # Errors
    /// If the system gives no thread or no further file.
    pub fn paired(socket: UnixDatagram) -> io::Result<DgramPort> {
        let sending = socket.try_clone()?;
        DgramPort::new(socket, sending, None)
    }

    fn new(receiving: UnixDatagram, sending: UnixDatagram, remote: Option<Remote>) -> io::Result<DgramPort> {
        let watcher = Watcher::start("dgram")?;
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

    /// What was counted so far.
    pub fn counters(&self) -> AttachCounters {
        self.outlet.counters
    }

    /// Sends what waits, as far as the peer takes it.
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
                    if self.watcher.arm(SENDING, &self.sending, Readiness::Write).is_err() {
                        self.outlet.all_lost();
                    }
                    return;
                }
                Err(error) => {
                    self.outlet.lost();
                    if is_gone(&error) {
                        self.outlet.counters.failures += 1;
                        match &mut self.remote {
                            // Perhaps it is back already: the next frame tries.
                            Some(remote) => remote.connected = false,
                            None => return self.outlet.all_lost(),
                        }
                    }
                }
            }
        }
    }

    fn receive(&mut self) -> Option<Frame> {
        // Somebody who sends nothing but rubbish is not listened to for longer than others are.
        for _ in 0..MOST_IN_A_ROW {
            match self.receiving.recv(&mut self.scratch) {
                // The peer of a pair has shut its side, and this would read the same for ever. An empty datagram does as well,
                // and is no end.
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
        if self.watcher.arm(RECEIVING, &self.receiving, Readiness::Read).is_err() {
            self.outlet.counters.failures += 1;
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
            // If it is gone already, so much the better.
            let _removed = std::fs::remove_file(bound);
        }
    }
}

/// Binds `path`; a socket left there by a program that has ended is removed first.
///
/// # Errors
/// If there is something else, somebody receives there, or the folder cannot be written.
pub fn bind_in_place_of_the_dead(path: &Path) -> io::Result<UnixDatagram> {
    match UnixDatagram::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
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

/// Whether nothing will come any more.
fn is_shut(socket: &UnixDatagram) -> bool {
    let mut files = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut files, Some(&Timespec::default())).is_ok() && files[0].revents().contains(PollFlags::RDHUP)
}

/// The peer's socket is closed, or is another one by now.
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
/// Datagrams looked at for one frame.
const MOST_IN_A_ROW: usize = 64;
/// An Ethernet header.
const SHORTEST: usize = 14;
/// A datagram that fills so much may have been longer.
const LONGEST: usize = 64 * 1024 + 4096;
/// Longer frames are rare enough for an allocation each.
const FRAME_BYTES: usize = 2048;
const FRAMES_PER_SLAB: usize = 64;
