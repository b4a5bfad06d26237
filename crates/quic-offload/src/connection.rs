//! The application's handle of a connection.

use crate::core::{
    Conn, ConnectionRecord, ConnectionStage, EndpointCore, MAX_ACK_DELAY, SILENT, WaitFor, Waiter, WakeReason,
    probe_timeout,
};
use crate::crypto::number_of;
use crate::crypto::session::HandshakeData;
use crate::endpoint::EndpointShared;
use crate::error::{Closed, DatagramError, PathError};
use crate::statistics::{PathStatistics, Statistics};
use crate::stream::{ReceiveStream, SendStream};
use bytes::Bytes;
use core::fmt;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::task::{Context, Poll};
use core::time::Duration;
use noq_proto::{Dir, FourTuple, PathId, PathStatus, SendDatagramError, StreamId, VarInt};
use offload_base::WakingGuard;
use std::sync::Arc;

/// A connection. Clones share the connection. It is closed with code 0 when the last clone and the last stream are
/// dropped.
pub struct Connection {
    held: Arc<ConnectionGuard>,
    /// Waiters of pending polls, at most one per event.
    polled: Vec<Waiter>,
}

/// The shared handle that keeps a connection open.
pub(crate) struct ConnectionGuard {
    pub(crate) shared: Arc<EndpointShared>,
    pub(crate) at: usize,
    pub(crate) id: u64,
    record: Arc<ConnectionRecord>,
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<EndpointShared>,
        at: usize,
        (id, record): (u64, Arc<ConnectionRecord>),
    ) -> Connection {
        Connection { held: Arc::new(ConnectionGuard { shared, at, id, record }), polled: Vec::new() }
    }

    /// Tests whether both handles are of the same connection.
    pub fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }

    pub(crate) fn guard(&self) -> &ConnectionGuard {
        &self.held
    }

    /// Opens a unidirectional stream, as soon as the peer allows one more.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn open_uni(&self) -> Result<SendStream, Closed> {
        let mut waiter = self.held.waiter(WakeReason::Open(Dir::Uni));
        let id = poll_fn(|cx| self.poll_open(cx, Dir::Uni, &mut waiter)).await?;
        Ok(self.sender(id))
    }

    /// Opens a bidirectional stream, as soon as the peer allows one more.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn open_bi(&self) -> Result<(SendStream, ReceiveStream), Closed> {
        let mut waiter = self.held.waiter(WakeReason::Open(Dir::Bi));
        let id = poll_fn(|cx| self.poll_open(cx, Dir::Bi, &mut waiter)).await?;
        Ok(self.both(id))
    }

    /// Accepts the next unidirectional stream of the peer.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn accept_uni(&self) -> Result<ReceiveStream, Closed> {
        let mut waiter = self.held.waiter(WakeReason::Accept(Dir::Uni));
        let id = poll_fn(|cx| self.poll_accept(cx, Dir::Uni, &mut waiter)).await?;
        Ok(self.receiver(id))
    }

    /// Accepts the next bidirectional stream of the peer.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn accept_bi(&self) -> Result<(SendStream, ReceiveStream), Closed> {
        let mut waiter = self.held.waiter(WakeReason::Accept(Dir::Bi));
        let id = poll_fn(|cx| self.poll_accept(cx, Dir::Bi, &mut waiter)).await?;
        Ok(self.both(id))
    }

    /// Polls [`open_uni`](Self::open_uni). The last task that polls this clone is woken.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn poll_open_uni(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, Closed>> {
        let opened = self.polled(WakeReason::Open(Dir::Uni), |this, waiter| this.poll_open(cx, Dir::Uni, waiter));
        opened.map_ok(|id| self.sender(id))
    }

    /// Polls [`open_bi`](Self::open_bi). The last task that polls this clone is woken.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn poll_open_bi(&mut self, cx: &mut Context<'_>) -> Poll<Result<(SendStream, ReceiveStream), Closed>> {
        let opened = self.polled(WakeReason::Open(Dir::Bi), |this, waiter| this.poll_open(cx, Dir::Bi, waiter));
        opened.map_ok(|id| self.both(id))
    }

    /// Polls [`accept_uni`](Self::accept_uni). The last task that polls this clone is woken.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn poll_accept_uni(&mut self, cx: &mut Context<'_>) -> Poll<Result<ReceiveStream, Closed>> {
        let accepted = self.polled(WakeReason::Accept(Dir::Uni), |this, waiter| this.poll_accept(cx, Dir::Uni, waiter));
        accepted.map_ok(|id| self.receiver(id))
    }

    /// Polls [`accept_bi`](Self::accept_bi). The last task that polls this clone is woken.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn poll_accept_bi(&mut self, cx: &mut Context<'_>) -> Poll<Result<(SendStream, ReceiveStream), Closed>> {
        let accepted = self.polled(WakeReason::Accept(Dir::Bi), |this, waiter| this.poll_accept(cx, Dir::Bi, waiter));
        accepted.map_ok(|id| self.both(id))
    }

    /// Polls with this clone's waiter for the event, and keeps the waiter while the poll is pending.
    fn polled<T>(&mut self, event: WakeReason, poll: impl FnOnce(&Connection, &mut Waiter) -> Poll<T>) -> Poll<T> {
        let mut waiter = self.held.waiter(event);
        if let Some(at) = self.polled.iter().position(|known| known.event() == waiter.event()) {
            waiter = self.polled.swap_remove(at);
        }
        let result = poll(self, &mut waiter);
        if result.is_pending() {
            self.polled.push(waiter);
        }
        result
    }

    fn sender(&self, id: StreamId) -> SendStream {
        SendStream::new(self.held.clone(), id)
    }

    fn receiver(&self, id: StreamId) -> ReceiveStream {
        ReceiveStream::new(self.held.clone(), id)
    }

    fn both(&self, id: StreamId) -> (SendStream, ReceiveStream) {
        (self.sender(id), self.receiver(id))
    }

    fn poll_open(&self, cx: &mut Context<'_>, dir: Dir, waiter: &mut Waiter) -> Poll<Result<StreamId, Closed>> {
        let mut core = self.held.core();
        match open(self.held.get(&mut core)?)?.noq.streams().open(dir) {
            Some(id) => Poll::Ready(Ok(id)),
            None => waiter.wait(&mut core, cx),
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>, dir: Dir, waiter: &mut Waiter) -> Poll<Result<StreamId, Closed>> {
        let mut core = self.held.core();
        let conn = self.held.get(&mut core)?;
        // Streams that arrived before the end can still be read.
        if let Some(id) = conn.noq.streams().accept(dir) {
            core.touch(self.held.at);
            return Poll::Ready(Ok(id));
        }
        if let Some(closed) = &conn.closed {
            return Poll::Ready(Err(closed.clone()));
        }
        waiter.wait(&mut core, cx)
    }

    /// Sends an unreliable datagram (RFC 9221) as soon as there is room.
    ///
    /// # Errors
    /// If the connection ended, or the peer accepts no datagrams, or not of this size.
    pub async fn send_datagram(&self, data: Bytes) -> Result<(), DatagramError> {
        let mut waiter = self.held.waiter(WakeReason::DatagramRoom);
        poll_fn(|cx| {
            let mut core = self.held.core();
            let sent = match open(self.held.get(&mut core)?)?.noq.datagrams().send(data.clone(), false) {
                Ok(()) => Ok(()),
                Err(SendDatagramError::Blocked(_)) => return waiter.wait(&mut core, cx),
                Err(SendDatagramError::TooLarge) => Err(DatagramError::TooLong),
                Err(SendDatagramError::UnsupportedByPeer | SendDatagramError::Disabled) => {
                    Err(DatagramError::Unsupported)
                }
            };
            core.touch(self.held.at);
            Poll::Ready(sent)
        })
        .await
    }

    /// Receives the next datagram.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn receive_datagram(&self) -> Result<Bytes, Closed> {
        let mut waiter = self.held.waiter(WakeReason::Datagram);
        poll_fn(|cx| {
            let mut core = self.held.core();
            let conn = self.held.get(&mut core)?;
            if let Some(data) = conn.noq.datagrams().recv() {
                return Poll::Ready(Ok(data));
            }
            if let Some(closed) = &conn.closed {
                return Poll::Ready(Err(closed.clone()));
            }
            waiter.wait(&mut core, cx)
        })
        .await
    }

    /// Opens another path from one of this host's addresses, which only a client may do (draft-ietf-quic-multipath-21
    /// 3.1). Returns the path's number when the path is in use. Dropping the future abandons the path.
    ///
    /// # Errors
    /// If the connection ended, the peer does not support multipath, or no answer arrives within three probe timeouts
    /// (RFC 9000 8.2.4). The probe timeout is that of the slowest path, and the limit is at least 3 s.
    pub async fn open_path(&self, to: SocketAddr, from: Option<IpAddr>) -> Result<u32, PathError> {
        let waiter = self.held.waiter(WakeReason::Path);
        let mut opening = PathOpening { connection: self, path: None, waiter };
        let mut alarm = self.held.shared.alarm();
        let mut due = None;
        poll_fn(|cx| match opening.poll(cx, FourTuple::new(to, from)) {
            Poll::Pending => {
                // The time limit starts when the path is opened.
                let due = *due.get_or_insert_with(|| self.held.shared.now() + self.path_patience());
                alarm.poll(cx, Some(due)).map(|()| Err(PathError::NoAnswer))
            }
            ready => ready,
        })
        .await
    }

    fn path_patience(&self) -> Duration {
        let slowest = self.held.with(|_, conn| conn.slowest_path());
        MIN_PATH_PATIENCE.max(3 * probe_timeout(slowest.unwrap_or_default(), MAX_ACK_DELAY))
    }

    /// Abandons a path. The last path cannot be abandoned.
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

    /// Makes a path a backup, or a normal path again. Both ends send on a backup only while no other path exists
    /// (draft-ietf-quic-multipath-21 3.3). If a server calls this, only the server's own sending changes.
    ///
    /// ```
    /// use quic_offload::{Connection, PathError};
    /// use std::net::{IpAddr, SocketAddr};
    ///
    /// /// Keeps a path over a metered network as a backup of the first path.
    /// async fn fall_back(connection: &Connection, server: SocketAddr, metered: IpAddr) -> Result<(), PathError> {
    ///     let path = connection.open_path(server, Some(metered)).await?;
    ///     connection.set_backup(path, true)
    /// }
    /// ```
    ///
    /// # Errors
    /// If the connection ended, or the path does not exist.
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
        // The state machine's path IDs are opaque, so the path is found by its number.
        let known = conn.noq.paths().into_iter().find(|id| number_of(*id) == path);
        let id = known.ok_or_else(|| PathError::Refused(format!("there is no path {path}")))?;
        f(time, conn, id)?;
        core.touch(self.held.at);
        Ok(())
    }

    /// Updates the keys, unless the last update is too recent.
    pub fn update_keys(&self) {
        let _ = self.held.with(|_, conn| conn.noq.force_key_update());
        self.held.touch();
    }

    /// Closes the connection with the application's code and reason. Unacknowledged data may be lost.
    ///
    /// # Panics
    /// If the code is above 2^62 - 1 (RFC 9000 16).
    pub fn close(&self, code: u64, reason: impl Into<Bytes>) {
        self.held.close(code_of(code), reason.into());
    }

    /// Waits for the end of the connection and returns its reason.
    pub async fn closed(&self) -> Closed {
        let mut waiter = self.held.waiter(WakeReason::Stage);
        poll_fn(|cx| {
            let mut core = self.held.core();
            match self.held.get(&mut core) {
                Err(closed) => Poll::Ready(closed),
                Ok(Conn { closed: Some(closed), .. }) => Poll::Ready(closed.clone()),
                Ok(_) => waiter.wait(&mut core, cx),
            }
        })
        .await
    }

    /// Returns the reason for the end of the connection. `None` while it is open.
    pub fn close_reason(&self) -> Option<Closed> {
        self.held.with(|_, _| ()).err()
    }

    /// Returns the peer's address on the first path.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn remote_addr(&self) -> Result<SocketAddr, Closed> {
        self.held.with(|_, conn| {
            let first = conn.noq.paths().first().copied().unwrap_or(PathId::ZERO);
            conn.noq.network_path(first).map(|path| path.remote()).map_err(|_| Closed::Endpoint)
        })?
    }

    /// Returns the results of the handshake, also after the connection has ended, unless the state machine failed.
    ///
    /// ```
    /// use quic_offload::{Connection, HandshakeData};
    ///
    /// /// Closes connections of clients without a certificate.
    /// fn is_known(connection: &Connection) -> bool {
    ///     let HandshakeData { certificates, .. } = connection.handshake_data();
    ///     if certificates.is_empty() {
    ///         connection.close(403, "a certificate is needed");
    ///     }
    ///     !certificates.is_empty()
    /// }
    /// ```
    pub fn handshake_data(&self) -> HandshakeData {
        let mut core = self.held.core();
        match self.held.get(&mut core) {
            Ok(conn) => conn.handshake_data(),
            Err(_) => self.held.record.last().map(|(data, _)| data.clone()).unwrap_or_default(),
        }
    }

    /// Derives `N` bytes, 1 to 8,160, from the secrets of the handshake (RFC 8446 7.5). Both ends derive the same bytes
    /// from the same label and context; third parties cannot. Any other `N` does not compile.
    ///
    /// ```
    /// # fn example(connection: quic_offload::Connection) -> Result<(), quic_offload::Closed> {
    /// let key: [u8; 32] = connection.export_keying_material(b"EXPERIMENTAL example.org token", b"")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the connection ended.
    pub fn export_keying_material<const N: usize>(&self, label: &[u8], context: &[u8]) -> Result<[u8; N], Closed> {
        const { assert!(N > 0 && N <= 255 * 32, "TLS exports 1 to 8,160 bytes") };
        let mut output = [0; N];
        let exported = self.held.with(|_, conn| {
            conn.noq.crypto_session().export_keying_material(&mut output, label, context).map_err(|_| Closed::Failed)
        });
        exported?.map(|()| output)
    }

    /// Returns the connection's statistics; after the end, the last ones.
    pub fn statistics(&self) -> Statistics {
        let mut core = self.held.core();
        match self.held.get(&mut core) {
            Ok(conn) => conn.statistics(),
            Err(_) => self.held.record.last().map(|(_, statistics)| *statistics).unwrap_or_default(),
        }
    }

    /// Returns a path's statistics. `None` if the path does not exist.
    pub fn path_statistics(&self, path: u32) -> Option<PathStatistics> {
        let found = self.held.with(|_, conn| {
            let id = conn.noq.paths().into_iter().find(|id| number_of(*id) == path)?;
            conn.noq.path_stats(id)
        });
        found.ok()?.map(Into::into)
    }
}

/// A path being opened. Dropping this abandons the path, unless the path is in use.
struct PathOpening<'a> {
    connection: &'a Connection,
    path: Option<u32>,
    waiter: Waiter,
}

impl PathOpening<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, path: FourTuple) -> Poll<Result<u32, PathError>> {
        let held = &self.connection.held;
        let now = held.shared.now();
        let mut core = held.shared.lock();
        let (time, most) = (core.noq_time(now), core.max_paths());
        open(held.get(&mut core)?)?;
        // The events update the count of paths: abandoned paths do not count.
        core.take_events(held.at, now);
        let conn = open(held.get(&mut core)?)?;
        // The first poll opens the path; later polls wait for its validation.
        let Some(opened) = self.path else {
            if conn.noq.is_multipath_negotiated() && conn.open_paths() >= most {
                return Poll::Ready(Err(PathError::Refused(format!("there are {most} paths: raise Config::paths"))));
            }
            match conn.noq.open_path(path, PathStatus::Available, time) {
                Ok(path) => self.path = Some(number_of(path)),
                // The peer's connection IDs for the path have not arrived yet.
                Err(noq_proto::PathError::RemoteCidsExhausted) => {}
                Err(error) => return Poll::Ready(Err(PathError::Refused(error.to_string()))),
            }
            core.touch(held.at);
            return self.waiter.wait(&mut core, cx);
        };
        if conn.paths.contains(&opened) {
            self.path = None;
            return Poll::Ready(Ok(opened));
        }
        if conn.has_lost(opened) {
            return Poll::Ready(Err(PathError::Refused("the path was abandoned before it was in use".into())));
        }
        self.waiter.wait(&mut core, cx)
    }
}

impl Drop for PathOpening<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            // The path may be gone already, or be the only one.
            let _ = self.connection.end_path(path, SILENT);
        }
    }
}

/// Three probe timeouts of a path with unknown round-trip time (RFC 9002 6.2.2).
const MIN_PATH_PATIENCE: Duration = Duration::from_secs(3);

/// Converts an application's error code.
pub(crate) fn code_of(code: u64) -> VarInt {
    VarInt::from_u64(code).expect("an error code of QUIC is at most 2^62 - 1")
}

/// Returns the connection, or the reason for its end.
pub(crate) fn open(conn: &mut Conn) -> Result<&mut Conn, Closed> {
    match &conn.closed {
        Some(closed) => Err(closed.clone()),
        None => Ok(conn),
    }
}

impl ConnectionGuard {
    /// Calls `f` with the connection, or returns the reason for its end.
    pub(crate) fn with<R>(&self, f: impl FnOnce(ConnectionStage, &mut Conn) -> R) -> Result<R, Closed> {
        let mut core = self.shared.lock();
        let conn = open(self.get(&mut core)?)?;
        Ok(f(conn.stage, conn))
    }

    /// Creates a waiter for an event.
    pub(crate) fn waiter(&self, event: WakeReason) -> Waiter {
        Waiter::new(self.shared.clone(), WaitFor::Connection(self.at, self.id, event))
    }

    /// Returns the connection, if the endpoint still has it.
    pub(crate) fn get<'a>(&self, core: &'a mut EndpointCore) -> Result<&'a mut Conn, Closed> {
        core.get(self.at, self.id).ok_or_else(|| self.record.why().unwrap_or(Closed::Endpoint))
    }

    pub(crate) fn core(&self) -> WakingGuard<'_, EndpointCore> {
        self.shared.lock()
    }

    /// Makes the driver process the connection.
    pub(crate) fn touch(&self) {
        let mut core = self.shared.lock();
        if self.get(&mut core).is_ok() {
            core.touch(self.at);
        }
    }

    fn close(&self, code: VarInt, reason: Bytes) {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        if self.get(&mut core).is_ok_and(|conn| conn.closed.is_none()) {
            core.close(self.at, now, code, reason);
        }
    }
}

impl Clone for Connection {
    fn clone(&self) -> Connection {
        Connection { held: self.held.clone(), polled: Vec::new() }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.close(VarInt::from_u32(0), Bytes::new());
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.held.id)
    }
}
