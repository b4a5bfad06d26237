//! Modelled costs of NICs: they change the times of packets, and never their contents.

use crate::rig;

use bytes::Bytes;
use core::time::Duration;
use ktls_offload::{FixedKeys, KtlsStream, Offload, TrafficKeys};
use nic_sim::wire::{FrameRecorder, LinkConfig, TapDirection};
use nic_sim::{Costs, Delays, NicConfig};
use offload_api::{TlsKey, TlsSuite, TlsVersion};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::Testbed;
use rig::{CryptoPlace, Transfer, streams, tcp};

/// Results of a run of requests and answers, one at a time.
struct Exchange {
    took: Duration,
    /// Contexts that both NICs fetched meanwhile.
    fetched: u64,
    /// Segments of the whole run that have payload: direction, sequence number, payload.
    segments: Vec<(TapDirection, u32, Vec<u8>)>,
}

/// Sends requests over two TLS connections in turn, so that each message needs another context of each NIC than the
/// previous message.
fn exchange(costs: Costs) -> Exchange {
    let key = |byte| TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
    let keys = TrafficKeys { transmit: (0, key(1)), receive: (0, key(2)) };
    // The interrupt or the line time of an acknowledgment would hide a part of the cost of the data after it.
    let delays = Delays { interrupt: Duration::ZERO, ..Delays::default() };
    // The cache holds one context, so each message evicts the context of the other connection.
    let nic = NicConfig { context_cache_bytes: 208, costs, delays, line_rate: None, ..NicConfig::default() };
    let recorder = FrameRecorder::default();
    let mut bed = Testbed::builder(Seed(3))
        .host("client", nic.clone(), TcpConfig::default())
        .host("server", nic, TcpConfig::default())
        .wire(0, 1, LinkConfig { rate: None, ..LinkConfig::default() })
        .recorded(&recorder)
        .build()
        .unwrap();
    let (client, server) = (bed.host(0).clone(), bed.host(1).clone());
    let over_tls = |stream: TcpStream, keys: TrafficKeys| {
        let mut stream = KtlsStream::new(stream, keys, Box::new(FixedKeys)).unwrap();
        stream.offload(Offload { tx: true, rx: true });
        stream
    };
    let (host, theirs) = (server.clone(), keys.clone().swapped());
    let _runs_on = server.spawn("server", async move {
        let mut listener = host.stack().listen(443, 4).unwrap();
        while let Ok(stream) = listener.accept().await {
            let mut stream = over_tls(stream, theirs.clone());
            let _runs_on = host.spawn("answers", async move {
                while let Ok(Some(request)) = stream.next_chunk().await {
                    stream.send_chunk(request).await.unwrap();
                }
            });
        }
    });
    let (host, other, address) = (client.clone(), server.clone(), server.address());
    let asking = client.spawn("client", async move {
        let connect = || host.stack().connect(None, (address, 443).into());
        let mut connections =
            [connect().await.unwrap(), connect().await.unwrap()].map(|stream| over_tls(stream, keys.clone()));
        let count = || {
            let mut all = CounterSet::default();
            [&host, &other].into_iter().for_each(|host| host.count(&mut all));
            all.value("ctx_fetched")
        };
        let mut before = (host.now(), count());
        // The first rounds create the contexts.
        for round in 0..14_u8 {
            // Four rounds suffice for both directions of both connections to be offloaded.
            if round == 4 {
                before = (host.now(), count());
            }
            for connection in &mut connections {
                // A request fits in one segment, so that the number of fetched contexts is known.
                let request = Bytes::from(vec![round; 100]);
                connection.send_chunk(request.clone()).await.unwrap();
                assert_eq!(connection.next_chunk().await.unwrap(), Some(request));
            }
        }
        (host.now() - before.0, count() - before.1)
    });
    let (took, fetched) = bed.run(asking);
    // Pure acknowledgments depend on timing, so only segments with payload are compared.
    let segments = recorder.take().into_iter().filter_map(|seen| {
        let (seq, _, payload) = tcp(&seen.frame.data)?;
        (!payload.is_empty()).then(|| (seen.direction, seq, payload.to_vec()))
    });
    Exchange { took, fetched, segments: segments.collect() }
}

#[test]
fn each_context_fetched_delays_its_packet() {
    let free = exchange(Costs::default());
    assert_eq!(free.fetched, 10 * 2 * 4, "both NICs, out and in, for each request");
    for micros in [1, 7, 50] {
        let context_fetch = Duration::from_micros(micros);
        let costly = exchange(Costs { context_fetch, ..Costs::default() });
        assert!(costly.segments == free.segments, "{context_fetch:?}: other packets");
        assert_eq!(costly.fetched, free.fetched);
        assert_eq!(costly.took - free.took, context_fetch * free.fetched as u32);
    }
}

#[test]
fn transfers_with_costs_put_the_same_bytes_on_the_wire() {
    let transfer = Transfer::new(CryptoPlace::Nic, 5, (1..6).map(|byte| Bytes::from(vec![byte; 70_000])).collect());
    let free = transfer.run();
    let rate = Some(10_000_000_000);
    let costs = [
        Costs { pcie_rate: rate, ..Costs::default() },
        Costs { crypto_rate: rate, ..Costs::default() },
        Costs { pcie_rate: rate, crypto_rate: rate, context_fetch: Duration::from_micros(3) },
    ];
    for costs in costs {
        let nic = NicConfig { context_cache_bytes: 208, costs, ..NicConfig::default() };
        let costly = Transfer { nic, ..transfer.clone() }.run();
        assert!(costly.received == transfer.sent(), "{costs:?}");
        assert!(streams(&costly.seen) == streams(&free.seen), "{costs:?}");
        let [sooner, later] = [&free, &costly].map(|run| run.seen.last().expect("frames").at);
        assert!(later > sooner, "{costs:?}");
    }
}
