//! A small send ring: a task that ran out of room is woken by the room itself and not by a timer.

use core::time::Duration;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_base::Seed;
use offload_host_stack::TcpConfig;
use offload_testbed::Testbed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns the time for `bytes` bytes, from the first write to the end of the stream, with a window that holds all of
/// them.
fn transfer(nic: NicConfig, bytes: usize) -> Duration {
    let link = LinkConfig { delay: ONE_WAY, ..LinkConfig::default() };
    // With so large a window, only the send ring limits the sender.
    let tcp = TcpConfig { initial_window: 1000, ..TcpConfig::default() };
    let mut bed = Testbed::builder(Seed(1))
        .host("a", nic.clone(), tcp.clone())
        .host("b", nic, tcp)
        .wire(0, 1, link)
        .build()
        .unwrap();
    let (a, b) = (bed.host(0).clone(), bed.host(1).clone());
    let address = b.address();
    let host = b.clone();
    let reading = b.spawn("read", async move {
        let mut listener = host.stack().listen(80, 4).unwrap();
        let mut stream = listener.accept().await.unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        (read.len(), host.now())
    });
    let host = a.clone();
    let writing = a.spawn("write", async move {
        let mut stream = host.stack().connect(None, (address, 80).into()).await.unwrap();
        let start = host.now();
        stream.write_all(&vec![1; bytes]).await.unwrap();
        stream.shutdown().await.unwrap();
        // The stream is returned, so that it lives until the reader is done.
        (stream, start)
    });
    let ((read, end), (_stream, start)) = bed.run(async move { (reading.await, writing.await) });
    assert_eq!(read, bytes);
    end - start
}

#[test]
fn a_ring_smaller_than_the_data_costs_no_round_trips() {
    let no_tso = NicConfig { tso_max_bytes: 0, ..NicConfig::default() };
    let cases = [
        ("the default", NicConfig::default()),
        ("64 entries", NicConfig { send_ring: 64, ..NicConfig::default() }),
        ("64 entries, no TSO", NicConfig { send_ring: 64, ..no_tso.clone() }),
        ("a byte under way, no TSO", NicConfig { send_queue_bytes: 1, ..no_tso }),
    ];
    for (name, nic) in cases {
        let took = transfer(nic, 100_000);
        // The receive window is 64 KiB at first: one more round trip, and the last flight.
        assert!(took < ONE_WAY * 3 + ONE_WAY / 10, "{name}: {took:?}");
    }
}

const ONE_WAY: Duration = Duration::from_millis(50);
