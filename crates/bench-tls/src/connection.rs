//! What scenarios have in common: who does the TLS, streams of either kind, hosts as they are measured.

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
    /// Who does the TLS.
    pub enum Mode {
        /// Nobody: plain TCP.
        Tcp = "tcp",
        /// The hosts, with ring.
        TlsCpu = "tls-cpu",
        /// The NICs.
        TlsNic = "tls-nic",
    }
}

/// A stream of a scenario, plain or under TLS, used the same way. See [`Bulk`](crate::bulk::Bulk) for an example.
pub enum Connection {
    /// TCP alone.
    Plain(TcpStream),
    /// TLS, by the CPU or by the NIC.
    Tls(Box<KtlsStream<TcpStream>>),
    /// With an accelerator beside the CPU for a TLS device.
    Jobs(Box<KtlsStream<LookasideStream<TcpStream>>>),
}

impl Connection {
    /// A stream as the mode has it, with these keys as a handshake would leave them.
    ///
    /// # Errors
    /// If the keys cannot be used.
    pub fn with_keys(mode: Mode, stream: TcpStream, keys: TrafficKeys) -> io::Result<Connection> {
        Ok(match mode {
            Mode::Tcp => Connection::Plain(stream),
            Mode::TlsCpu | Mode::TlsNic => {
                let stream = KtlsStream::new(stream, keys, Box::new(FixedKeys)).map_err(io::Error::other)?;
                Connection::Tls(Box::new(stream))
            }
        })
    }

    /// Has records padded.
    pub fn pad(&mut self, bytes: usize) {
        match self {
            Connection::Plain(_) => {}
            Connection::Tls(stream) => stream.set_padding(bytes),
            Connection::Jobs(stream) => stream.set_padding(bytes),
        }
    }

    /// Hands these directions to the NIC if the mode says so, or to the accelerator if there is one, and waits until it works on
    /// what arrives.
    ///
    /// # Errors
    /// If the connection failed.
    pub async fn offload(&mut self, mode: Mode, record_size: usize, directions: Offload) -> io::Result<()> {
        match self {
            Connection::Plain(_) => Ok(()),
            Connection::Tls(stream) => offload_stream(stream, mode == Mode::TlsNic, record_size, directions).await,
            Connection::Jobs(stream) => offload_stream(stream, true, record_size, directions).await,
        }
    }

    /// Queues `data` when there is room.
    ///
    /// # Errors
    /// If the connection failed.
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

    /// Waits for a word of the other end.
    ///
    /// # Errors
    /// If the peer closed or sent something else.
    pub async fn expect(&mut self, word: &[u8]) -> io::Result<()> {
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

    /// Waits until the peer has the first `bytes` bytes that were sent.
    ///
    /// # Errors
    /// If the connection failed.
    pub async fn acknowledged(&mut self, bytes: u64) -> io::Result<()> {
        match self {
            Connection::Plain(stream) => poll_fn(|cx| stream.poll_acked(cx, bytes)).await,
            Connection::Tls(stream) => poll_fn(|cx| stream.poll_acked(cx, bytes)).await,
            Connection::Jobs(stream) => poll_fn(|cx| stream.poll_acked(cx, bytes)).await,
        }
    }

    /// Waits until the peer has closed too: to a peer that is gone by then, its last record would be data for nobody, and TCP
    /// would answer with a reset. Whether it comes is of no importance: what had to arrive has arrived.
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
        // The NIC keeps the flow however bad the wire: that is what is to be seen.
        stream.set_retransmit_limit(None);
        stream.offload(directions);
        stream.ready().await?;
    }
    Ok(())
}

/// The keys of a stream, from the server's side.
///
/// # Panics
/// Never: keys are made as long as the suite needs.
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

/// A NIC as `nic`, made for the clock.
pub fn nic_on(clock: ClockKind, nic: &NicConfig) -> NicConfig {
    match clock {
        ClockKind::Virtual => nic.clone(),
        ClockKind::Real => {
            NicConfig { delays: Delays::NONE, line_rate: None, receive_ring: real_receive_ring(), ..nic.clone() }
        }
    }
}

/// Packets that may wait for a host in real time. Where hosts share their threads with their NICs, they take turns, and
/// few do. Else a host's thread may have to wait for a core, and that must not cost packets; but buffers are used in
/// turn, and so many are in no cache, nor in memory that the system has handed out already.
fn real_receive_ring() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    if cores <= FEWEST_HOSTS { NicConfig::default().receive_ring } else { 8192 }
}

/// Hosts of a scenario, at least.
const FEWEST_HOSTS: usize = 2;

/// TCP that tries to close as long as it tries to send: a FIN that is lost again and again must not leave the other
/// end waiting for ever.
pub fn tcp() -> TcpConfig {
    // What is measured is how fast it is, with buffers as large as asked for.
    let memory = Some(TcpMemory::UNLIMITED);
    TcpConfig { orphan_retries: TcpConfig::default().retries, memory, ..TcpConfig::default() }
}

/// What a server says that is ready for whatever a client may say.
pub const READY: &[u8] = b"ready";
/// What a client says when the clock may start.
pub const GO: &[u8] = b"go";
