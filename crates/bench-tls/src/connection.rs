//! Shared parts of scenarios: the mode of TLS, streams of all kinds, and measured hosts.

use crate::choices;
use bytes::Bytes;
use core::future::poll_fn;
use ktls_offload::{FixedKeys, KtlsStream, LookasideStream, Offload, TlsCounters, TrafficKeys};
use nic_sim::{Delays, NicConfig};
use offload_api::{SegmentStream, TlsKey, TlsSuite, TlsVersion, TxTag};
use offload_base::Seed;
use offload_host_stack::{TcpConfig, TcpMemory, TcpStream};
use offload_testbed::bed::ClockKind;
use std::io;
use std::num::NonZero;

choices! {
    /// The place of TLS.
    pub enum Mode {
        /// No TLS: plain TCP.
        Tcp = "tcp",
        /// The hosts' CPUs, with ring.
        TlsCpu = "tls-cpu",
        /// The NICs.
        TlsNic = "tls-nic",
    }
}

/// A stream of a scenario, plain or under TLS, with the same operations.
///
/// See [`Bulk`](crate::bulk::Bulk) for an example.
pub enum Connection {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS by the CPU or by the NIC.
    Tls(Box<KtlsStream<TcpStream>>),
    /// TLS by an accelerator beside the CPU.
    Jobs(Box<KtlsStream<LookasideStream<TcpStream>>>),
}

impl Connection {
    /// Creates a stream of a mode with these keys, as after a handshake.
    ///
    /// # Errors If the keys cannot be used.
    pub fn with_keys(mode: Mode, stream: TcpStream, keys: TrafficKeys) -> io::Result<Connection> {
        Ok(match mode {
            Mode::Tcp => Connection::Plain(stream),
            // Both modes start in software; `offload` moves the keys to the NIC.
            Mode::TlsCpu | Mode::TlsNic => {
                let stream = KtlsStream::new(stream, keys, Box::new(FixedKeys)).map_err(io::Error::other)?;
                Connection::Tls(Box::new(stream))
            }
        })
    }

    /// Sets the padding of records.
    pub fn pad(&mut self, bytes: usize) {
        match self {
            Connection::Plain(_) => {}
            Connection::Tls(stream) => stream.set_padding(bytes),
            Connection::Jobs(stream) => stream.set_padding(bytes),
        }
    }

    /// Offloads these directions to the NIC if the mode says so, or to the accelerator if there is one, and waits until
    /// received data is offloaded.
    ///
    /// # Errors If the connection failed.
    pub async fn offload(&mut self, mode: Mode, record_size: usize, directions: Offload) -> io::Result<()> {
        match self {
            Connection::Plain(_) => Ok(()),
            Connection::Tls(stream) => offload_stream(stream, mode == Mode::TlsNic, record_size, directions).await,
            Connection::Jobs(stream) => offload_stream(stream, true, record_size, directions).await,
        }
    }

    /// Queues `data` when there is room.
    ///
    /// # Errors If the connection failed.
    pub async fn send(&mut self, data: Bytes) -> io::Result<()> {
        match self {
            Connection::Plain(stream) => {
                poll_fn(|cx| stream.poll_room(cx)).await?;
                stream.send(data, TxTag::PLAIN);
                stream.flush();
                Ok(())
            }
            Connection::Tls(stream) => stream.send_chunk(data).await,
            Connection::Jobs(stream) => stream.send_chunk(data).await,
        }
    }

    /// Returns the next bytes, or `None` when the peer has closed.
    ///
    /// # Errors
    /// If the connection failed.
    pub async fn receive(&mut self) -> io::Result<Option<Bytes>> {
        match self {
            Connection::Plain(stream) => {
                let segment = poll_fn(|cx| stream.poll_segment(cx)).await?;
                Ok(segment.map(|segment| {
                    stream.consume(segment.data.len());
                    segment.data.freeze()
                }))
            }
            Connection::Tls(stream) => stream.next_chunk().await,
            Connection::Jobs(stream) => stream.next_chunk().await,
        }
    }

    /// Waits for [`GO`].
    ///
    /// # Errors
    /// As [`expect`](Self::expect).
    pub async fn expect_go(&mut self) -> io::Result<()> {
        self.expect(GO).await
    }

    /// Waits for a word from the peer.
    ///
    /// # Errors If the peer closed or sent something else.
    pub async fn expect(&mut self, word: &[u8]) -> io::Result<()> {
        // A word may arrive in several chunks.
        let mut heard = Vec::new();
        while heard.len() < word.len() {
            let chunk = self.receive().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            heard.extend_from_slice(&chunk);
        }
        if heard == word { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Closes the sending direction.
    ///
    /// # Errors
    /// If the connection failed.
    pub async fn close(&mut self) -> io::Result<()> {
        match self {
            Connection::Plain(stream) => {
                stream.finish();
                Ok(())
            }
            Connection::Tls(stream) => stream.close().await,
            Connection::Jobs(stream) => stream.close().await,
        }
    }

    /// Waits until the peer has acknowledged the first `bytes` bytes.
    ///
    /// # Errors If the connection failed.
    pub async fn acknowledged(&mut self, bytes: u64) -> io::Result<()> {
        match self {
            Connection::Plain(stream) => poll_fn(|cx| stream.poll_acked(cx, bytes)).await,
            Connection::Tls(stream) => poll_fn(|cx| stream.poll_acked(cx, bytes)).await,
            Connection::Jobs(stream) => poll_fn(|cx| stream.poll_acked(cx, bytes)).await,
        }
    }

    /// Waits until the peer has closed too. If this end were gone before the peer's last record, TCP would answer that
    /// record with a reset. An error is ignored, because all relevant data has arrived.
    pub async fn closed(&mut self) {
        while let Ok(Some(_)) = self.receive().await {}
    }

    /// Returns the counters of TLS; `None` without TLS.
    pub fn counters(&self) -> Option<TlsCounters> {
        match self {
            Connection::Plain(_) => None,
            Connection::Tls(stream) => Some(*stream.counters()),
            Connection::Jobs(stream) => Some(*stream.counters()),
        }
    }
}

async fn offload_stream<S: SegmentStream>(
    stream: &mut KtlsStream<S>,
    to_device: bool,
    record_size: usize,
    directions: Offload,
) -> io::Result<()> {
    stream.set_record_size(record_size);
    if to_device {
        // The stream stays offloaded even on a bad wire, because the run measures exactly that.
        stream.set_retransmit_limit(None);
        stream.offload(directions);
        stream.ready().await?;
    }
    Ok(())
}

/// Returns the keys of a stream at the server.
///
/// # Panics Never: keys have the length of the suite.
pub fn keys(seed: Seed, suite: TlsSuite, stream: u64) -> TrafficKeys {
    let mut secrets = seed.stream(&format!("stream {stream}"));
    let mut key = || {
        let (mut key, mut iv) = (vec![0; suite.key_len()], [0; 12]);
        secrets.fill(&mut key);
        secrets.fill(&mut iv);
        TlsKey::new(TlsVersion::Tls13, suite, &key, iv).expect("as long as the suite has it")
    };
    TrafficKeys { transmit: (0, key()), receive: (0, key()) }
}

/// Adapts the settings of a NIC to the clock.
pub fn nic_on(clock: ClockKind, nic: &NicConfig) -> NicConfig {
    match clock {
        ClockKind::Virtual => nic.clone(),
        ClockKind::Real => {
            NicConfig { delays: Delays::NONE, line_rate: None, receive_ring: real_receive_ring(), ..nic.clone() }
        }
    }
}

/// Returns the number of packets that may wait for a host in real time. If hosts share threads with their NICs, both
/// take turns, and few packets wait. Otherwise a delayed host thread must not cost packets, which needs a long ring;
/// but buffers are used in turn, and so many of them fit no cache and no memory that the system has already mapped.
fn real_receive_ring() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    if cores <= FEWEST_HOSTS { NicConfig::default().receive_ring } else { 8192 }
}

/// Least number of hosts of a scenario.
const FEWEST_HOSTS: usize = 2;

/// Returns settings of TCP that retransmit a FIN as often as data: a FIN that is lost again and again must not leave
/// the other end waiting forever.
pub fn tcp() -> TcpConfig {
    // Runs measure speed, with buffers as large as requested, so memory is not limited.
    let memory = Some(TcpMemory::UNLIMITED);
    TcpConfig { orphan_retries: TcpConfig::default().retries, memory, ..TcpConfig::default() }
}

/// The word of a server that is ready for data from the client.
pub const READY: &[u8] = b"ready";
/// The word of a client after which the clock starts.
pub const GO: &[u8] = b"go";
