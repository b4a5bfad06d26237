//! UDP between emulated hosts, with a device that segments datagrams and one that leaves segmentation to the stack.

use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use nic_sim::NicConfig;
use nic_sim::wire::{FrameRecorder, LinkConfig};
use offload_base::Seed;
use offload_host_stack::TcpConfig;
use offload_testbed::Testbed;

/// Received datagrams, frames on the wire, and the number of packets that the device segmented.
struct DatagramRun {
    datagrams: Vec<Vec<u8>>,
    wire: Vec<Vec<u8>>,
    cut: u64,
}

fn run(six: bool, nic: NicConfig) -> DatagramRun {
    let recorder = FrameRecorder::default();
    let mut bed = Testbed::builder(Seed(5))
        .host("sender", nic.clone(), TcpConfig::default())
        .host("receiver", nic, TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .recorded(&recorder)
        .build()
        .expect("virtual time needs nothing");
    let (sender, receiver) = (bed.host(0).clone(), bed.host(1).clone());
    let address: IpAddr = if six { receiver.ipv6_address().into() } else { receiver.address().into() };
    let inbox = receiver.stack().bind_udp(Some(PORT)).expect("a free port");
    let receiving = receiver.spawn("receiver", async move {
        let mut datagrams = Vec::new();
        // The wire is perfect, so a missing datagram would be a fault and hang the test.
        while datagrams.len() < BURSTS * BURST_BYTES.div_ceil(SEGMENT) {
            datagrams.push(inbox.recv_from().await.expect("a socket that is open").0.to_vec());
        }
        datagrams
    });
    let outbox = sender.stack().bind_udp(None).expect("a free port");
    let sending = sender.spawn("sender", async move {
        let size = NonZeroU16::new(SEGMENT as u16).expect("not zero");
        for burst in 0..BURSTS {
            let sent = outbox.send_segmented(burst_of(burst), size, SocketAddr::new(address, PORT)).await;
            sent.expect("a host that is there");
        }
    });
    let datagrams = bed.run(receiving);
    bed.run(sending);
    let counters = bed.counters();
    // Each segment needs its own UDP checksum, by the device or by the stack.
    assert_eq!((counters.value("rx_csum_bad"), counters.value("UdpOutDatagrams")), (0, datagrams.len() as u64));
    let wire = recorder.seen().iter().map(|seen| seen.frame.data.to_vec()).collect();
    DatagramRun { datagrams, wire, cut: counters.value("tx_tso_packets") }
}

fn burst_of(number: usize) -> Bytes {
    let mut data = vec![0; BURST_BYTES];
    Seed(number as u64).stream("burst").fill(&mut data);
    data.into()
}

#[test]
fn a_device_that_cuts_datagrams_puts_the_same_on_the_wire() {
    for six in [false, true] {
        let by_device = run(six, NicConfig::default());
        // Without segmentation offload, the stack must produce the same datagrams.
        let by_stack = run(six, NicConfig { udp_segmentation: false, ..NicConfig::default() });
        let sent =
            (0..BURSTS).flat_map(|burst| burst_of(burst).chunks(SEGMENT).map(<[u8]>::to_vec).collect::<Vec<_>>());
        assert!(sent.eq(by_device.datagrams.iter().cloned()), "every datagram, whole and in order");
        assert!(by_device.wire == by_stack.wire, "the wire shows who cut them (IPv6: {six})");
        assert_eq!((by_device.cut, by_stack.cut), (BURSTS as u64, 0));
    }
}

const PORT: u16 = 4000;
const BURSTS: usize = 3;
const BURST_BYTES: usize = 20_500;
const SEGMENT: usize = 1200;
