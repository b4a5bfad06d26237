//! A connection in an application's hands.

use crate::core::{Conn, Core, MAX_ACK_DELAY, SILENT, Stage, place_of, probe_timeout, wait};
use crate::crypto::number_of;
use crate::endpoint::Shared;
use crate::error::{Closed, DatagramError, PathError};
use crate::stream::{ReceiveStream, SendStream};
use bytes::Bytes;
use core::fmt;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::task::{Context, Poll};
use core::time::Duration;
use noq_proto::{Dir, FourTuple, PathId, PathStatus, SendDatagramError};
use std::sync::{Arc, OnceLock};

/// A connection. Clones are the same one; when the last clone and the last stream are dropped, it is closed with code 0.
#[derive(Clone)]
pub struct Connection {
    held: Arc<Held>,
}

/// What keeps a connection open.
pub(crate) struct Held {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: usize,
    pub(crate) id: u64,
    /// Why it ended, if it did.
    ended: Arc<OnceLock<Closed>>,
}

/// What became of a connection so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// The estimated round-trip time of the first path.
    pub rtt: Duration,
    /// Packets that were sent, and of those, declared lost.
    pub sent: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Bytes of the datagrams sent, and received.
    pub bytes_sent: u64,
    /// Bytes of the datagrams received.
    pub bytes_received: u64,
    /// Times that the keys changed.
    pub key_updates: u64,
    /// Paths that are open.
    pub paths: usize,
}

/// What became of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStatistics {
    /// The estimated round-trip time.
    pub rtt: Duration,
    /// The congestion window.
    pub window: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Bytes of the datagrams sent.
    pub bytes_sent: u64,
    /// Bytes of the largest datagram that the path is known to take.
    pub udp_payload: u16,
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>, at: usize, (id, ended): (u64, Arc<OnceLock<Closed>>)) -> Connection {
        Connection { held: Arc::new(Held { shared, at, id, ended }) }
    }

    /// Whether both are the same one.
    pub fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Opens a stream this way, as soon as the peer allows one more.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn open_uni(&self) -> Result<SendStream, Closed> {
        let id = poll_fn(|cx| self.poll_open(cx, Dir::Uni)).await?;
        Ok(SendStream::new(self.held.clone(), id))
    }

    /// Opens a stream both ways, as soon as the peer allows one more.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn open_bi(&self) -> Result<(SendStream, ReceiveStream), Closed> {
        let id = poll_fn(|cx| self.poll_open(cx, Dir::Bi)).await?;
        Ok((SendStream::new(self.held.clone(), id), ReceiveStream::new(self.held.clone(), id)))
    }

    /// The next stream that the peer opened this way.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn accept_uni(&self) -> Result<ReceiveStream, Closed> {
        let id = poll_fn(|cx| self.poll_accept(cx, Dir::Uni)).await?;
        Ok(ReceiveStream::new(self.held.clone(), id))
    }

    /// The next stream that the peer opened both ways.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn accept_bi(&self) -> Result<(SendStream, ReceiveStream), Closed> {
        let id = poll_fn(|cx| self.poll_accept(cx, Dir::Bi)).await?;
        Ok((SendStream::new(self.held.clone(), id), ReceiveStream::new(self.held.clone(), id)))
    }

    fn poll_open(&self, cx: &mut Context<'_>, dir: Dir) -> Poll<Result<noq_proto::StreamId, Closed>> {
        self.held.with(|_, conn| match conn.noq.streams().open(dir) {
            Some(id) => Poll::Ready(Ok(id)),
            None => {
                wait(&mut conn.waiting.open[place_of(dir)], cx.waker());
                Poll::Pending
            }
        })?
    }

    fn poll_accept(&self, cx: &mut Context<'_>, dir: Dir) -> Poll<Result<noq_proto::StreamId, Closed>> {
        let mut core = self.held.shared.lock();
        let conn = self.held.get(&mut core)?;
        // What came before the end is still there to be read.
        if let Some(id) = conn.noq.streams().accept(dir) {
            core.touch(self.held.at);
            return Poll::Ready(Ok(id));
        }
        if let Some(closed) = &conn.closed {
            return Poll::Ready(Err(closed.clone()));
        }
        wait(&mut conn.waiting.accept[place_of(dir)], cx.waker());
        Poll::Pending
    }

    /// Sends a datagram (RFC 9221), which may be lost, as soon as there is room.
    ///
    /// # Errors
    /// If the connection ended, the peer takes none, or none of that size.
    pub async fn send_datagram(&self, data: Bytes) -> Result<(), DatagramError> {
        poll_fn(|cx| {
            let sent = self.held.with(|_, conn| match conn.noq.datagrams().send(data.clone(), false) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(SendDatagramError::Blocked(_)) => {
                    wait(&mut conn.waiting.datagram_room, cx.waker());
                    Poll::Pending
                }
                Err(SendDatagramError::TooLarge) => Poll::Ready(Err(DatagramError::TooLong)),
                Err(SendDatagramError::UnsupportedByPeer | SendDatagramError::Disabled) => {
                    Poll::Ready(Err(DatagramError::Unsupported))
                }
            })?;
            if sent.is_ready() {
                self.held.touch();
            }
            sent
        })
        .await
    }

    /// The next datagram.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn receive_datagram(&self) -> Result<Bytes, Closed> {
        poll_fn(|cx| {
            let mut core = self.held.shared.lock();
            let conn = self.held.get(&mut core)?;
            if let Some(data) = conn.noq.datagrams().recv() {
                return Poll::Ready(Ok(data));
            }
            if let Some(closed) = &conn.closed {
                return Poll::Ready(Err(closed.clone()));
            }
            wait(&mut conn.waiting.datagrams, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Opens one more path, from one of this host's addresses, as a client may (draft-ietf-quic-multipath-21 3.1). Its number,
    /// once it is in use. Dropped before that, the path is given up.
    ///
    /// # Errors
    /// If the connection ended, the peer has no multipath, or the path does not come about: for nothing comes back from it within three
    /// probe timeouts of a path of which nothing is known, 3 s, or of the slowest path there is (RFC 9000 8.2.4).
    pub async fn open_path(&self, to: SocketAddr, from: Option<IpAddr>) -> Result<u32, PathError> {
        let mut opening = Opening { connection: self, path: None };
        let mut alarm = self.held.shared.alarm();
        let mut due = None;
        poll_fn(|cx| match opening.poll(cx, FourTuple::new(to, from)) {
            Poll::Pending => {
                let due = *due.get_or_insert_with(|| self.held.shared.now() + self.path_patience());
                alarm.poll(cx, Some(due)).map(|()| Err(PathError::NoAnswer))
            }
            ready => ready,
        })
        .await
    }

    fn path_patience(&self) -> Duration {
        let slowest = self.held.with(|_, conn| conn.slowest_path());
        LEAST_PATH_PATIENCE.max(3 * probe_timeout(slowest.unwrap_or_default(), MAX_ACK_DELAY))
    }

    /// Gives a path up. The last one stays.
    ///
    /// # Errors
    /// If the connection ended, or there is no other path.
    pub fn close_path(&self, path: u32) -> Result<(), PathError> {
        self.end_path(path, 0)
    }

    fn end_path(&self, path: u32, code: u32) -> Result<(), PathError> {
        self.on_path(path, |core_time, conn, id| {
            let closed = conn.noq.close_path(core_time, id, code.into());
            closed.map_err(|error| PathError::Refused(error.to_string()))
        })
    }

    /// Sends on a path only while no other is there that may be used, or again like on any other.
    ///
    /// # Errors
    /// If the connection ended, or there is no such path.
    pub fn set_backup(&self, path: u32, backup: bool) -> Result<(), PathError> {
        self.on_path(path, |_, conn, id| {
            let status = if backup { PathStatus::Backup } else { PathStatus::Available };
            let set = conn.noq.set_path_status(id, status);
            set.map(|_| ()).map_err(|error| PathError::Refused(error.to_string()))
        })
    }

    fn on_path(
        &self,
        path: u32,
        f: impl FnOnce(std::time::Instant, &mut Conn, PathId) -> Result<(), PathError>,
    ) -> Result<(), PathError> {
        let now = self.held.shared.now();
        let mut core = self.held.shared.lock();
        let time = core.noq_time(now);
        let conn = open(self.held.get(&mut core)?)?;
        let known = conn.noq.paths().into_iter().find(|id| number_of(*id) == path);
        let id = known.ok_or_else(|| PathError::Refused(format!("there is no path {path}")))?;
        f(time, conn, id)?;
        core.touch(self.held.at);
        Ok(())
    }

    /// Changes the keys, unless they have just been changed.
    pub fn update_keys(&self) {
        let _done = self.held.with(|_, conn| conn.noq.force_key_update());
        self.held.touch();
    }

    /// Closes the connection, with a code and a reason of the application's. What was not acknowledged may be lost.
    pub fn close(&self, code: u64, reason: impl Into<Bytes>) {
        self.held.close(code, reason.into());
    }

    /// Why the connection ended, once it did.
    pub async fn closed(&self) -> Closed {
        poll_fn(|cx| {
            let mut core = self.held.shared.lock();
            match self.held.get(&mut core) {
                Err(closed) => Poll::Ready(closed),
                Ok(Conn { closed: Some(closed), .. }) => Poll::Ready(closed.clone()),
                Ok(conn) => {
                    wait(&mut conn.waiting.stage, cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The peer's address, on the first path.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn remote_addr(&self) -> Result<SocketAddr, Closed> {
        self.held.with(|_, conn| {
            let first = conn.noq.paths().first().copied().unwrap_or(PathId::ZERO);
            conn.noq.network_path(first).map(|path| path.remote()).map_err(|_| Closed::Endpoint)
        })?
    }

    /// The protocol that the handshake agreed on, if any (ALPN).
    pub fn protocol(&self) -> Option<Vec<u8>> {
        let data = self.held.with(|_, conn| {
            let data = conn.noq.crypto_session().handshake_data()?;
            *data.downcast::<Option<Vec<u8>>>().ok()?
        });
        data.ok().flatten()
    }

    /// What became of it so far.
    ///
    /// # Errors
    /// If it is long over.
    pub fn statistics(&self) -> Result<Statistics, Closed> {
        let mut core = self.held.shared.lock();
        let conn = self.held.get(&mut core)?;
        let stats = conn.noq.stats();
        let mut total = Statistics {
            rtt: conn.noq.rtt(PathId::ZERO).unwrap_or_default(),
            bytes_sent: stats.udp_tx.bytes,
            bytes_received: stats.udp_rx.bytes,
            key_updates: conn.key_updates,
            paths: conn.paths.len(),
            ..Statistics::default()
        };
        for path in conn.noq.paths() {
            let Some(path) = conn.noq.path_stats(path) else { continue };
            total.sent += path.sent_packets;
            total.lost += path.lost_packets;
        }
        Ok(total)
    }

    /// What became of a path so far; `None`: no path has this number.
    pub fn path_statistics(&self, path: u32) -> Option<PathStatistics> {
        let found = self.held.with(|_, conn| {
            let id = conn.noq.paths().into_iter().find(|id| number_of(*id) == path)?;
            conn.noq.path_stats(id)
        });
        let stats = found.ok()??;
        Some(PathStatistics {
            rtt: stats.rtt,
            window: stats.cwnd,
            sent: stats.sent_packets,
            lost: stats.lost_packets,
            bytes_sent: stats.udp_tx.bytes,
            udp_payload: stats.current_mtu,
        })
    }
}

/// A path that is being opened. Dropped, it is given up unless it is in use.
struct Opening<'a> {
    connection: &'a Connection,
    path: Option<u32>,
}

impl Opening<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, path: FourTuple) -> Poll<Result<u32, PathError>> {
        let held = &self.connection.held;
        let now = held.shared.now();
        let mut core = held.shared.lock();
        let (time, most) = (core.noq_time(now), core.most_paths());
        open(held.get(&mut core)?)?;
        // A path that was given up does not count.
        core.take_events(held.at, now);
        let conn = open(held.get(&mut core)?)?;
        let Some(opened) = self.path else {
            if conn.noq.is_multipath_negotiated() && conn.open_paths() >= most {
                return Poll::Ready(Err(PathError::Refused(format!("there are {most} paths: raise Config::paths"))));
            }
            match conn.noq.open_path(path, PathStatus::Available, time) {
                Ok(path) => self.path = Some(number_of(path)),
                // The peer's connection IDs for it are still to come.
                Err(noq_proto::PathError::RemoteCidsExhausted) => {}
                Err(error) => return Poll::Ready(Err(PathError::Refused(error.to_string()))),
            }
            wait(&mut conn.waiting.path, cx.waker());
            core.touch(held.at);
            return Poll::Pending;
        };
        if conn.paths.contains(&opened) {
            self.path = None;
            return Poll::Ready(Ok(opened));
        }
        if conn.abandoned.contains(&opened) {
            return Poll::Ready(Err(PathError::Refused("the path was abandoned before it was in use".into())));
        }
        wait(&mut conn.waiting.path, cx.waker());
        Poll::Pending
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            let _or_it_is_given_up = self.connection.end_path(path, SILENT);
        }
    }
}

/// Three probe timeouts of a path of unknown round-trip time (RFC 9002 6.2.2).
const LEAST_PATH_PATIENCE: Duration = Duration::from_secs(3);

/// The connection, unless it ended.
pub(crate) fn open(conn: &mut Conn) -> Result<&mut Conn, Closed> {
    match &conn.closed {
        Some(closed) => Err(closed.clone()),
        None => Ok(conn),
    }
}

impl Held {
    /// Calls `f` with the connection, unless it ended.
    pub(crate) fn with<R>(&self, f: impl FnOnce(Stage, &mut Conn) -> R) -> Result<R, Closed> {
        let mut core = self.shared.lock();
        let conn = open(self.get(&mut core)?)?;
        Ok(f(conn.stage, conn))
    }

    /// The connection, if it is there still.
    pub(crate) fn get<'a>(&self, core: &'a mut Core) -> Result<&'a mut Conn, Closed> {
        core.get(self.at, self.id).ok_or_else(|| self.ended.get().cloned().unwrap_or(Closed::Endpoint))
    }

    pub(crate) fn core(&self) -> std::sync::MutexGuard<'_, Core> {
        self.shared.lock()
    }

    /// Has the driver look at it.
    pub(crate) fn touch(&self) {
        let mut core = self.shared.lock();
        if self.get(&mut core).is_ok() {
            core.touch(self.at);
        }
    }

    fn close(&self, code: u64, reason: Bytes) {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        if self.get(&mut core).is_ok_and(|conn| conn.closed.is_none()) {
            core.close(self.at, now, code, reason);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.close(0, Bytes::new());
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.held.id)
    }
}
