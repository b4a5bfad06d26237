//! A port that sends frames over a stream, a length before each frame: the peer of QEMU's `-netdev stream`, over a Unix
//! socket or TCP.
//!
//! A listening port has one peer at a time and accepts the next peer when the last one has gone.

use super::AttachCounters;
use super::outlet::Outlet;
use super::watcher::{FileReadiness, FileWatcher};
use core::fmt;
use core::net::SocketAddr;
use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::wire::attach::{FrameReader, frame_prefix};
use offload_base::Instant;
use offload_base::cost::{self, WorkKind};
use smallvec::SmallVec;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A port that sends and receives frames over a stream socket.
///
/// ```text
/// qemu-system-x86_64 -netdev stream,id=n0,server=off,addr.type=unix,addr.path=port.sock \
///                    -device virtio-net-pci,netdev=n0 ...
/// ```
///
/// ```
/// use nic_sim::wire::Port;
/// use offload_base::Instant;
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// use offload_testbed::attach::StreamPort;
///
/// let (inside, mut outside) = UnixStream::pair()?;
/// let mut port = StreamPort::on_unix(inside)?;
/// outside.write_all(&[0, 0, 0, 14])?;
/// outside.write_all(&[7; 14])?;
/// assert_eq!(port.poll_frame(Instant::ZERO).unwrap().data[..], [7; 14]);
/// port.receive_frame(Instant::ZERO, vec![8; 60].into());
/// port.process(Instant::ZERO);
/// let mut length = [0; 4];
/// outside.read_exact(&mut length)?;
/// assert_eq!(length, [0, 0, 0, 60]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamPort {
    listener: Option<PortListener>,
    peer: Option<StreamPeer>,
    watcher: FileWatcher,
    outlet: Outlet,
    scratch: Box<[u8]>,
}

/// The connected peer.
struct StreamPeer {
    socket: Box<dyn StreamSocket>,
    reader: FrameReader,
    /// Bytes of the first waiting frame that have been written, its length prefix included.
    written: usize,
}

impl StreamPort {
    /// Creates a port that waits for its peer at a path.
    ///
    /// # Errors
    /// If the path cannot be bound, for example because another process is bound there.
    pub fn listen_unix(path: &Path) -> io::Result<StreamPort> {
        let socket = bind_in_place_of_the_dead(path)?;
        socket.set_nonblocking(true)?;
        StreamPort::listening(PortListener::Unix { socket, path: path.to_owned() })
    }

    /// Creates a port that waits for its peer at a TCP address of this machine, and returns the bound address. With
    /// port 0 the system chooses the port. Any host that reaches the address can become the peer.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn listen_tcp(address: SocketAddr) -> io::Result<(StreamPort, SocketAddr)> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok((StreamPort::listening(PortListener::Tcp(socket))?, address))
    }

    /// Creates a port on a connected Unix socket.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn on_unix(socket: UnixStream) -> io::Result<StreamPort> {
        socket.set_nonblocking(true)?;
        StreamPort::connected(Box::new(socket))
    }

    /// Creates a port on a connected TCP socket.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn on_tcp(socket: TcpStream) -> io::Result<StreamPort> {
        prepare_tcp(&socket)?;
        StreamPort::connected(Box::new(socket))
    }

    fn listening(listener: PortListener) -> io::Result<StreamPort> {
        let watcher = FileWatcher::start("stream")?;
        match &listener {
            PortListener::Unix { socket, .. } => watcher.add(LISTENER, socket)?,
            PortListener::Tcp(socket) => watcher.add(LISTENER, socket)?,
        }
        Ok(StreamPort::new(Some(listener), watcher))
    }

    fn connected(socket: Box<dyn StreamSocket>) -> io::Result<StreamPort> {
        let mut port = StreamPort::new(None, FileWatcher::start("stream")?);
        port.welcome(socket)?;
        Ok(port)
    }

    fn new(listener: Option<PortListener>, watcher: FileWatcher) -> StreamPort {
        let scratch = vec![0; READ_BYTES].into();
        StreamPort { listener, peer: None, watcher, outlet: Outlet::default(), scratch }
    }

    /// Returns the counters.
    pub fn counters(&self) -> AttachCounters {
        self.outlet.counters
    }

    /// Returns whether a peer is connected.
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    fn welcome(&mut self, socket: Box<dyn StreamSocket>) -> io::Result<()> {
        self.watcher.add(PEER, socket.as_fd())?;
        self.peer = Some(StreamPeer { socket, reader: FrameReader::default(), written: 0 });
        Ok(())
    }

    /// Accepts the next waiting peer if no peer is connected.
    fn accept(&mut self) {
        let Some(listener) = self.listener.as_ref().filter(|_| self.peer.is_none()) else { return };
        let accepted = match listener {
            PortListener::Unix { socket, .. } => socket.accept().and_then(|(peer, _)| {
                peer.set_nonblocking(true)?;
                Ok(Box::new(peer) as Box<dyn StreamSocket>)
            }),
            PortListener::Tcp(socket) => socket.accept().and_then(|(peer, _)| {
                prepare_tcp(&peer)?;
                Ok(Box::new(peer) as Box<dyn StreamSocket>)
            }),
        };
        let outcome = match accepted {
            Ok(socket) => self.welcome(socket),
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            Err(_) => match listener {
                // No peer waits yet: the watcher rings the doorbell when one connects.
                PortListener::Unix { socket, .. } => self.watcher.arm(LISTENER, socket, FileReadiness::Read),
                PortListener::Tcp(socket) => self.watcher.arm(LISTENER, socket, FileReadiness::Read),
            },
        };
        self.outlet.counters.failures += u64::from(outcome.is_err());
    }

    fn send_away(&mut self) {
        self.peer = None;
        self.outlet.counters.failures += 1;
        self.outlet.all_lost();
        self.accept();
    }

    fn receive(&mut self) -> Option<Frame> {
        self.accept();
        let mut reads = 0;
        while let Some(peer) = &mut self.peer {
            // Frames that were read earlier go first, so that the reader's buffer stays small.
            match peer.reader.next_frame() {
                Ok(Some(frame)) if frame.len() < SHORTEST => {
                    self.outlet.counters.rx_malformed += 1;
                    continue;
                }
                Ok(Some(frame)) => {
                    self.outlet.counters.rx_frames += 1;
                    self.outlet.counters.rx_bytes += frame.len() as u64;
                    return Some(frame);
                }
                Ok(None) => {}
                Err(_) => {
                    // After a bad length the stream has no frame boundary to resume at.
                    self.outlet.counters.rx_malformed += 1;
                    self.send_away();
                    continue;
                }
            }
            // The limit keeps a peer that sends only malformed frames from blocking other ports.
            reads += 1;
            if reads > MAX_READS {
                self.arm(FileReadiness::Read);
                break;
            }
            match peer.socket.read(&mut self.scratch) {
                Ok(0) => self.send_away(),
                Ok(bytes) => {
                    let _copying = cost::work(WorkKind::Copy);
                    peer.reader.push(&self.scratch[..bytes]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.arm(FileReadiness::Read);
                    break;
                }
                Err(_) => self.send_away(),
            }
        }
        None
    }

    /// Sends waiting frames until the peer's buffer is full.
    fn send_waiting(&mut self) {
        while !self.outlet.is_empty() {
            let Some(peer) = &mut self.peer else { return self.outlet.all_lost() };
            match peer.write(&self.outlet) {
                Ok(0) => self.send_away(),
                Ok(bytes) => {
                    peer.written += bytes;
                    // One write may have ended in the middle of a frame: only complete frames leave the queue.
                    while let Some(first) = self.outlet.first().map(|frame| PREFIX + frame.len())
                        && peer.written >= first
                    {
                        peer.written -= first;
                        self.outlet.sent();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.arm(FileReadiness::Write),
                Err(_) => self.send_away(),
            }
        }
    }

    fn arm(&mut self, readiness: FileReadiness) {
        let Some(peer) = &self.peer else { return };
        if self.watcher.arm(PEER, peer.socket.as_fd(), readiness).is_err() {
            self.send_away();
        }
    }
}

impl StreamPeer {
    /// Writes as many waiting frames as one system call takes.
    fn write(&mut self, outlet: &Outlet) -> io::Result<usize> {
        let prefixes: SmallVec<[[u8; PREFIX]; MAX_AT_ONCE]> =
            outlet.waiting().take(MAX_AT_ONCE).map(frame_prefix).collect();
        let mut slices: SmallVec<[IoSlice<'_>; 2 * MAX_AT_ONCE]> = SmallVec::new();
        for (frame, prefix) in outlet.waiting().zip(&prefixes) {
            slices.push(IoSlice::new(prefix));
            slices.push(IoSlice::new(&frame.data));
        }
        let mut slices = &mut slices[..];
        // The first frame may be partly written already.
        IoSlice::advance_slices(&mut slices, self.written);
        self.socket.write_vectored(slices)
    }
}

impl Port for StreamPort {
    fn receive_frame(&mut self, _: Instant, frame: Frame) {
        self.outlet.push(frame);
    }

    fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
        self.receive()
    }

    fn process(&mut self, _: Instant) {
        self.accept();
        self.send_waiting();
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.watcher.register(waker);
    }
}

impl fmt::Debug for StreamPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPeer").field("written", &self.written).finish_non_exhaustive()
    }
}

/// A connected stream socket.
trait StreamSocket: Read + Write + AsFd + Send {}
impl<S: Read + Write + AsFd + Send> StreamSocket for S {}

#[derive(Debug)]
enum PortListener {
    Unix { socket: UnixListener, path: PathBuf },
    Tcp(TcpListener),
}

impl Drop for PortListener {
    fn drop(&mut self) {
        if let PortListener::Unix { path, .. } = self {
            // The file may be gone already; that is no fault.
            let _removed = std::fs::remove_file(path);
        }
    }
}

/// Binds `path` and first removes a socket left there by a program that has ended.
fn bind_in_place_of_the_dead(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            // A refused connection proves that no process owns the socket any more.
            let answer = UnixStream::connect(path);
            if answer.is_err_and(|answer| answer.kind() == ErrorKind::ConnectionRefused) {
                std::fs::remove_file(path)?;
                return UnixListener::bind(path);
            }
            Err(error)
        }
        bound => bound,
    }
}

fn prepare_tcp(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)
}

const LISTENER: usize = 0;
const PEER: usize = 1;
/// Bytes of a length prefix.
const PREFIX: usize = 4;
/// Frames in one write.
const MAX_AT_ONCE: usize = 32;
/// Reads for one frame.
const MAX_READS: usize = 64;
/// Bytes read in one call.
const READ_BYTES: usize = 64 * 1024;
/// Length of an Ethernet header.
const SHORTEST: usize = 14;
