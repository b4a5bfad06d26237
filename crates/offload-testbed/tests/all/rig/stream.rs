//! A long stream from a server to a client in virtual time. The client keeps no data, but measures the longest gap
//! between arrivals.

use super::CryptoPlace;
use bytes::Bytes;
use core::future::poll_fn;
use core::time::Duration;
use ktls_offload::{KtlsStream, Offload};
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_api::{SegmentStream, TxTag};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seed};
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::{BedHost, Testbed};
use std::io;
use std::sync::Arc;

/// The parameters of a stream.
#[derive(Clone)]
pub(crate) struct LongStream {
    /// The place where records are sealed and opened. `None` for plain TCP.
    pub(crate) tls: Option<CryptoPlace>,
    pub(crate) seed: u64,
    pub(crate) bytes: u64,
    pub(crate) link: LinkConfig,
}

/// The result of a stream.
pub(crate) struct StreamTiming {
    /// Time from the client's first byte to the server's last.
    pub(crate) took: Duration,
    /// The longest time between two arrivals.
    pub(crate) longest_gap: Duration,
    pub(crate) counters: CounterSet,
}

impl LongStream {
    /// Sends the stream and compares every byte.
    pub(crate) fn run(&self) -> io::Result<StreamTiming> {
        let mut bed = Testbed::builder(Seed(self.seed))
            .host("server", NicConfig::default(), TcpConfig::default())
            .host("client", NicConfig::default(), TcpConfig::default())
            .wire(0, 1, self.link.clone())
            .build()?;
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        let data = pattern(self.seed);
        let serving = server.spawn("server", serve(self.clone(), server.clone(), data.clone()));
        let fetching = client.spawn("client", fetch(self.clone(), client.clone(), server, data));
        let (took, longest_gap) = bed.run_within(ENOUGH, fetching)?;
        bed.run_within(ENOUGH, serving)?;
        Ok(StreamTiming { took, longest_gap, counters: bed.counters() })
    }
}

async fn serve(long: LongStream, host: BedHost, data: Bytes) -> io::Result<()> {
    let stream = host.stack().listen(PORT, 1)?.accept().await?;
    let mut stream = match long.tls {
        None => Stream::Plain(stream),
        Some(who) => {
            let config = server_config(Randomness::Seeded(Seed(long.seed).derive("server")), None);
            let stream = ktls_offload::accept(stream, Arc::new(config)).await?;
            Stream::Tls(offloaded(stream, who).await?)
        }
    };
    assert_eq!(stream.receive().await?.as_deref(), Some(GO));
    let mut sent = 0;
    while sent < long.bytes {
        // Parts are slices of one buffer, so that a gibibyte needs no memory.
        let part = part(&data, sent, (long.bytes - sent).min(WRITE));
        sent += part.len() as u64;
        stream.send(part).await?;
    }
    stream.close().await?;
    while stream.receive().await?.is_some() {}
    Ok(())
}

async fn fetch(long: LongStream, host: BedHost, server: BedHost, data: Bytes) -> io::Result<(Duration, Duration)> {
    let stream = host.stack().connect(None, (server.address(), PORT).into()).await?;
    let mut stream = match long.tls {
        None => Stream::Plain(stream),
        Some(who) => {
            let config = client_config(Randomness::Seeded(Seed(long.seed).derive("client")), None);
            let stream = ktls_offload::connect(stream, Arc::new(config), server_name()).await?;
            Stream::Tls(offloaded(stream, who).await?)
        }
    };
    stream.send(Bytes::from_static(GO)).await?;
    let started = host.now();
    let mut last: Instant = started;
    let mut longest_gap = Duration::ZERO;
    let mut received = 0;
    while let Some(chunk) = stream.receive().await? {
        let now = host.now();
        // A stall shows as a gap, even if the average rate looks right.
        longest_gap = longest_gap.max(now - last);
        last = now;
        let mut chunk = &chunk[..];
        while !chunk.is_empty() {
            let expected = part(&data, received, chunk.len() as u64);
            // A chunk may cross the end of the pattern, so it is compared in parts.
            let (head, tail) = chunk.split_at(expected.len());
            assert!(head == expected, "what arrived differs in the {WRITE} bytes from {received} on");
            received += head.len() as u64;
            chunk = tail;
        }
    }
    assert_eq!(received, long.bytes);
    stream.close().await?;
    Ok((last - started, longest_gap))
}

async fn offloaded(mut stream: KtlsStream<TcpStream>, who: CryptoPlace) -> io::Result<Box<KtlsStream<TcpStream>>> {
    if who == CryptoPlace::Nic {
        stream.set_retransmit_limit(None);
        stream.offload(Offload::BOTH);
        stream.ready().await?;
    }
    Ok(Box::new(stream))
}

/// A plain or a TLS stream.
enum Stream {
    Plain(TcpStream),
    Tls(Box<KtlsStream<TcpStream>>),
}

impl Stream {
    async fn send(&mut self, data: Bytes) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => {
                poll_fn(|cx| stream.poll_room(cx)).await?;
                stream.send(data, TxTag::PLAIN);
                stream.flush();
                Ok(())
            }
            Stream::Tls(stream) => stream.send_chunk(data).await,
        }
    }

    async fn receive(&mut self) -> io::Result<Option<Bytes>> {
        match self {
            Stream::Plain(stream) => {
                let Some(segment) = poll_fn(|cx| stream.poll_segment(cx)).await? else { return Ok(None) };
                stream.consume(segment.data.len());
                Ok(Some(segment.data.freeze()))
            }
            Stream::Tls(stream) => stream.next_chunk().await,
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => {
                stream.finish();
                Ok(())
            }
            Stream::Tls(stream) => stream.close().await,
        }
    }
}

/// Returns the pattern that is sent repeatedly. Its length is prime, so that a lost or duplicated part never fits the
/// pattern, for any length of records and segments.
fn pattern(seed: u64) -> Bytes {
    let mut data = vec![0; 1_048_573];
    Seed(seed).stream("pattern").fill(&mut data);
    data.into()
}

/// Returns at most `length` bytes of the stream from `at`.
fn part(data: &Bytes, at: u64, length: u64) -> Bytes {
    let at = (at % data.len() as u64) as usize;
    data.slice(at..data.len().min(at + length as usize))
}

/// Limit of virtual time for all waits: covers timeouts, but catches a wait without an end.
const ENOUGH: Duration = Duration::from_secs(3600);
const PORT: u16 = 443;
const GO: &[u8] = b"go";
/// Bytes of a write.
const WRITE: u64 = 256 << 10;
