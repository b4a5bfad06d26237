//! Many connections between two hosts that start together.
//!
//! Keys are installed as after a handshake; both ends derive a connection's keys from the client's port. A server with
//! several queues listens on each of its shards, and RSS chooses the shard of a connection; the client's shards take
//! turns. A connection is ready when both ends have offloaded their directions to their NICs.

use bytes::Bytes;
use core::future::poll_fn;
use core::task::Poll;
use futures_util::future::join_all;
use ktls_offload::Offload;
use offload_api::TlsSuite;
use offload_base::Seed;
use offload_bench_tls::connection::{Connection, GO, Mode, keys};
use offload_host_stack::{TcpListener, TcpStream};
use offload_testbed::bed::BedHost;
use std::io;

/// Settings of all connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionGroup {
    pub(crate) mode: Mode,
    pub(crate) connections: u16,
    pub(crate) record_size: usize,
    pub(crate) suite: TlsSuite,
    pub(crate) seed: Seed,
    /// Directions that the server offloads, in mode `tls-nic`.
    pub(crate) of_server: Offload,
    /// Directions that the client offloads.
    pub(crate) of_client: Offload,
    /// The port of the server.
    pub(crate) port: u16,
}

impl ConnectionGroup {
    /// Listens on all shards of `server`. Must precede the first connection.
    pub(crate) fn listen(&self, server: &BedHost) -> io::Result<Vec<TcpListener>> {
        server.shards().iter().map(|shard| shard.listen(self.port, usize::from(self.connections))).collect()
    }

    /// Accepts all connections and returns the server's ends when all are ready.
    pub(crate) async fn admit(&self, server: &BedHost, mut listeners: Vec<TcpListener>) -> io::Result<Vec<Connection>> {
        let mut getting_ready = Vec::new();
        for _ in 0..self.connections {
            let stream = accept_any(&mut listeners).await?;
            let crowd = self.clone();
            // Connections get ready in tasks of their own: a connection that waits for its device must not delay the
            // other connections.
            getting_ready.push(server.spawn("getting ready", async move {
                let port = stream.peer_addr().port();
                let mut connection = crowd.connection(stream, port, true)?;
                connection.offload(crowd.mode, crowd.record_size, crowd.of_server).await?;
                connection.expect_go().await?;
                io::Result::Ok(connection)
            }));
        }
        join_all(getting_ready).await.into_iter().collect()
    }

    /// Opens the client's end of connection `number` and tells the server that this end is ready.
    pub(crate) async fn join(&self, client: &BedHost, server: &BedHost, number: u16) -> io::Result<Connection> {
        let shards = client.shards();
        let shard = &shards[usize::from(number) % shards.len()];
        // With several shards, a shard can only use ports with replies that RSS delivers to it, so the stack chooses the
        // port.
        let from = (shards.len() == 1).then_some(FIRST_CLIENT_PORT + number);
        let stream = shard.connect(from, (server.address(), self.port).into()).await?;
        let port = stream.local_addr().port();
        let mut connection = self.connection(stream, port, false)?;
        connection.offload(self.mode, self.record_size, self.of_client).await?;
        // The word is the first data, so the server knows that the client's receive context is installed.
        connection.send(Bytes::from_static(GO)).await?;
        Ok(connection)
    }

    fn connection(&self, stream: TcpStream, client_port: u16, of_server: bool) -> io::Result<Connection> {
        let keys = keys(self.seed, self.suite, client_port.into());
        Connection::with_keys(self.mode, stream, if of_server { keys } else { keys.swapped() })
    }
}

async fn accept_any(listeners: &mut [TcpListener]) -> io::Result<TcpStream> {
    poll_fn(|cx| {
        let accepted = listeners.iter_mut().map(|listener| listener.poll_accept(cx)).find(Poll::is_ready);
        accepted.unwrap_or(Poll::Pending)
    })
    .await
}

const FIRST_CLIENT_PORT: u16 = 20_000;
