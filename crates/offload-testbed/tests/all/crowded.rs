//! More TLS streams than a NIC has contexts: the surplus streams begin in software and move to the device when other
//! streams have ended.

use bytes::Bytes;
use futures_util::future::join_all;
use ktls_offload::{FixedKeys, KtlsStream, Offload, TlsCounters, TrafficKeys};
use nic_sim::wire::LinkConfig;
use nic_sim::{NicConfig, TlsEngineConfig};
use offload_api::{TlsKey, TlsSuite, TlsVersion};
use offload_base::Seed;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::{BedHost, Testbed};
use std::io;
use tokio::io::AsyncReadExt;

/// Counters of the streams' ends, by stream.
#[derive(Debug, PartialEq)]
struct CrowdCounters {
    servers: Vec<TlsCounters>,
    clients: Vec<TlsCounters>,
}

/// Runs [`STREAMS`] streams that begin together and end one after the other. Each sends records of a kilobyte to a
/// client with an equal NIC.
fn crowd(nic: &NicConfig) -> CrowdCounters {
    // A small send buffer, so that records are sealed during the whole run and not all queued at its start.
    let tcp = TcpConfig { send_buffer: 16 << 10, ..TcpConfig::default() };
    let mut bed = Testbed::builder(Seed(1))
        .host("server", nic.clone(), tcp.clone())
        .host("client", nic.clone(), tcp)
        .wire(0, 1, LinkConfig::default())
        .build()
        .unwrap();
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    // The backlog holds all streams, because all connect at once.
    let mut listener = server.stack().listen(PORT, STREAMS).unwrap();
    let host = server.clone();
    let serving = server.spawn("serve", async move {
        let mut ends = Vec::new();
        for _ in 0..STREAMS {
            let stream = listener.accept().await.unwrap();
            ends.push(host.spawn("send", send(stream)));
        }
        join_all(ends).await.into_iter().collect::<io::Result<Vec<_>>>().unwrap()
    });
    let clients: Vec<_> =
        (0..STREAMS).map(|number| client.spawn("receive", receive(client.clone(), server.clone(), number))).collect();
    bed.run(async move {
        let clients = join_all(clients).await.into_iter().collect::<io::Result<Vec<_>>>().unwrap();
        let mut servers = serving.await;
        // Streams are accepted in any order.
        servers.sort_by_key(|(number, _)| *number);
        CrowdCounters { servers: servers.into_iter().map(|(_, counters)| counters).collect(), clients }
    })
}

/// Sends the records of the stream with this client's port.
async fn send(stream: TcpStream) -> io::Result<(usize, TlsCounters)> {
    let number = usize::from(stream.peer_addr().port() - FIRST_PORT);
    let mut stream = tls(stream, keys().swapped())?;
    stream.offload(Offload { tx: true, rx: false });
    for record in 0..records(number) {
        stream.send_chunk(content(number, record)).await?;
    }
    stream.close().await?;
    while stream.next_chunk().await?.is_some() {}
    Ok((number, stream.into_counters()))
}

async fn receive(host: BedHost, server: BedHost, number: usize) -> io::Result<TlsCounters> {
    let port = FIRST_PORT + number as u16;
    let stream = host.stack().connect(Some(port), (server.address(), PORT).into()).await?;
    let mut stream = tls(stream, keys())?;
    stream.offload(Offload { tx: false, rx: true });
    stream.ready().await?;
    for record in 0..records(number) {
        let mut got = [0; 1000];
        stream.read_exact(&mut got).await?;
        assert!(got[..] == content(number, record), "record {record} of stream {number}");
    }
    assert_eq!(stream.next_chunk().await?, None);
    stream.close().await?;
    Ok(stream.into_counters())
}

fn tls(stream: TcpStream, keys: TrafficKeys) -> io::Result<KtlsStream<TcpStream>> {
    KtlsStream::new(stream, keys, Box::new(FixedKeys)).map_err(io::Error::other)
}

fn keys() -> TrafficKeys {
    let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
    TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) }
}

fn records(number: usize) -> usize {
    100 * (number + 1)
}

fn content(number: usize, record: usize) -> Bytes {
    vec![(number ^ record) as u8; 1000].into()
}

/// Checks that every stream had the device in the end, and that late offloads are counted. Returns the number of late
/// offloads.
fn check(ends: &CrowdCounters) -> u64 {
    let mut late = 0;
    for (number, counters) in ends.servers.iter().enumerate() {
        assert_eq!(counters.tx_device, 1, "stream {number} sends: {counters:?}");
        late += counters.offload_later;
    }
    for (number, counters) in ends.clients.iter().enumerate() {
        assert_eq!(counters.rx_device, 1, "stream {number} receives: {counters:?}");
        assert_eq!(counters.decrypt_error, 0);
        late += counters.offload_later;
    }
    for counters in ends.servers.iter().chain(&ends.clients) {
        assert_eq!(counters.offload_refused, counters.offload_later, "{counters:?}");
        assert!(counters.offload_retried >= counters.offload_later);
    }
    late
}

#[test]
fn ended_streams_make_room_for_refused_ones() {
    // A pooled context keeps its place in the device while keys come and go.
    for context_pool in [0, TlsEngineConfig::default().context_pool] {
        let ends = crowd(&NicConfig {
            engines: TlsEngineConfig { contexts: ROOM as u32, context_pool, ..TlsEngineConfig::default() }.into(),
            ..NicConfig::default()
        });
        assert_eq!(check(&ends), 2 * (STREAMS - ROOM) as u64);
        for counters in ends.servers.iter().chain(&ends.clients) {
            // At most 600 records, and one in 32 asks again.
            assert!(counters.offload_retried <= 5 + 600 / 32, "{counters:?}");
        }
    }
}

#[test]
fn short_control_ring_keeps_all_streams_offloaded() {
    let nic = NicConfig { control_ring: 3, ..NicConfig::default() };
    let ends = crowd(&nic);
    assert!(check(&ends) > 0, "nobody found it full");
    assert_eq!(ends, crowd(&nic), "two runs of one seed differ");
}

const STREAMS: usize = 6;
const ROOM: usize = 2;
const PORT: u16 = 443;
const FIRST_PORT: u16 = 20_000;
