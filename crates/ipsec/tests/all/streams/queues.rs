//! Multi-queue NICs with a shard of the host at each queue and one IPsec layer around all queues: many flows under
//! several SAs, while SAs are rekeyed and devices are reset.

use super::rig::{ENOUGH, MARK, StreamPair, lossy, only_esp, testbed_sleep};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use ipsec::{KeyedDevice, Keying, SaEvent, SaId, SecureDevice};
use nic_sim::wire::tap::RecordedFrame;
use nic_sim::wire::{FrameRecorder, LinkConfig, TapDirection as Way};
use nic_sim::{EspEngineConfig, NicConfig};
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, Lifetime, Limits, OffloadKind, Policy, SaParams, Selector, Template,
};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_esp::{EspAt, EspCipher};
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::{BedHost, ClockKind, Testbed};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const QUEUES: u16 = 4;
/// SAs per direction. Each protects the flows to one port.
const SAS: u16 = 3;
const PORT: u16 = 700;
const KINDS: [OffloadKind; 3] = [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet];

/// The events of a run.
#[derive(Clone, Copy, Default)]
struct QueueRun {
    /// The number of packets after which an SA asks for a successor.
    rekey_after: Option<u64>,
    /// The interval between resets of both NICs.
    reset_every: Option<Duration>,
    /// Whether RSS maps all flows to the third queue.
    one_queue: bool,
    /// Whether the run uses real time.
    real: bool,
}

struct QueueOutcome {
    seen: Vec<RecordedFrame>,
    counters: CounterSet,
    /// SAs by which a host sent, with their parameters.
    sent_by: Vec<SaParams>,
    /// Connections that each shard of the server accepted.
    accepted: Vec<u64>,
    /// Packets that each queue of the server's NIC sent and opened.
    of_queues: Vec<(u64, u64)>,
}

struct QueueTestbed {
    bed: Testbed,
    hosts: [BedHost; 2],
    recorder: FrameRecorder,
    keys: Arc<Mutex<TestSas>>,
}

/// The SAs of both hosts.
#[derive(Default)]
struct TestSas {
    /// Transmitting SAs: by host and SA, the index among [`SAS`] and the receiver's SA.
    current: BTreeMap<(usize, SaId), (u16, SaId)>,
    /// Parameters of the SAs.
    sent_by: Vec<SaParams>,
    /// Number of SAs added.
    made: u32,
}

impl TestSas {
    /// Adds an SA in place of `which`, from host `from`. The receiver gets its SA first, so that no packet arrives
    /// early.
    fn add(&mut self, pair: &StreamPair, hosts: &[BedHost; 2], from: usize, which: u16, old: Option<(SaId, SaId)>) {
        self.made += 1;
        let spi = 0x1000 + self.made;
        let mut material = vec![0x5a; 20];
        material[..4].copy_from_slice(&spi.to_be_bytes());
        let key = EspKey::new(EspSuite::Aes128Gcm, &material).unwrap();
        let sa = |direction| SaParams { spi, key: key.clone(), reqid: which.into(), ..pair.sa(direction, from, 0) };
        let added = [(1 - from, Direction::Receive), (from, Direction::Transmit)].map(|(at, direction)| {
            let (now, params) = (hosts[at].now(), sa(direction));
            // Every shard's keying interface is the same layer.
            let added = with_keying(&hosts[at], self.made as usize % usize::from(QUEUES), |keying| match old {
                None => keying.add_sa(now, params),
                Some((sent, received)) => {
                    let old = if direction == Direction::Transmit { sent } else { received };
                    keying.rekey_sa(now, old, spi, params.key)
                }
            });
            let added = added.expect("a good SA");
            assert_eq!(added.refused, None);
            added.sa
        });
        self.current.insert((from, added[1]), (which, added[0]));
        self.sent_by.push(sa(Direction::Transmit));
    }
}

fn with_keying<T>(host: &BedHost, shard: usize, f: impl FnOnce(&mut dyn Keying) -> T) -> T {
    host.shards()[shard].with_device(|device| f(device.keying().expect("an IPsec layer")))
}

fn policies(pair: &StreamPair, host: usize) -> Vec<Policy> {
    let mut policies = Vec::new();
    for which in 1..=SAS {
        for (direction, from) in [(Direction::Transmit, host), (Direction::Receive, 1 - host)] {
            let (source, destination) = (pair.outer(from), pair.outer(1 - from));
            let template = match pair.mode {
                EspMode::Transport => Template::transport(which.into()),
                EspMode::Tunnel => Template::tunnel(source, destination, which.into()),
            };
            let port = Some(PORT + which);
            let selector = match from {
                0 => Selector { source_port: port, ..Selector::ANY },
                _ => Selector { destination_port: port, ..Selector::ANY },
            };
            policies.push(Policy { direction, selector, priority: 0, action: Action::Protect(template) });
        }
    }
    policies
}

impl QueueTestbed {
    fn new(pair: &StreamPair, course: QueueRun) -> QueueTestbed {
        let recorder = FrameRecorder::default();
        // More SA slots than a run uses, so that every SA fits into the device.
        let nic = NicConfig {
            mtu: pair.mtu,
            engines: EspEngineConfig { sas: 1024 }.into(),
            queues: QUEUES,
            ..NicConfig::default()
        };
        let bed = Testbed::builder(Seed(pair.seed))
            .clock(if course.real { ClockKind::Real } else { ClockKind::Virtual })
            .host("server", nic.clone(), TcpConfig::default())
            .layer(SecureDevice::for_queues)
            .host("client", nic, TcpConfig::default())
            .layer(SecureDevice::for_queues)
            .wire(0, 1, pair.link.clone())
            .recorded(&recorder)
            .build()
            .unwrap();
        let hosts = [bed.host(0).clone(), bed.host(1).clone()];
        for (number, host) in hosts.iter().enumerate() {
            // Policies are added through different shards, which share one layer.
            for (shard, policy) in policies(pair, number).into_iter().enumerate() {
                with_keying(host, shard % usize::from(QUEUES), |keying| keying.add_policy(policy)).unwrap();
            }
        }
        if course.one_queue {
            hosts.iter().for_each(|host| host.stack().set_indirection(&[2; INDIRECTION_ENTRIES]).unwrap());
        }
        let soft = Limits { packets: course.rekey_after, ..Limits::default() };
        let pair = StreamPair { lifetime: Lifetime { soft, ..Lifetime::default() }, ..pair.clone() };
        let mut keys = TestSas::default();
        for which in 1..=SAS {
            (0..2).for_each(|from| keys.add(&pair, &hosts, from, which, None));
        }
        let keys = Arc::new(Mutex::new(keys));
        let (runtime, keyed, there) = (bed.runtime(), hosts.clone(), keys.clone());
        let _keys_task = hosts[0].spawn("keys", async move {
            let mut old: Vec<(u32, usize, SaId, SaId)> = Vec::new();
            for tick in 0u32.. {
                testbed_sleep(&*runtime, TICK).await;
                if course.reset_every.is_some_and(|every| tick % (every.as_micros() / TICK.as_micros()) as u32 == 9) {
                    keyed.iter().for_each(BedHost::reset_device);
                }
                for (from, host) in keyed.iter().enumerate() {
                    // Any shard reports the events of other queues.
                    let shard = tick as usize % usize::from(QUEUES);
                    while let Some(event) = with_keying(host, shard, |keying| keying.poll_sa_event()) {
                        let SaEvent::SoftLimit { sa, .. } = event else { continue };
                        let mut keys = there.lock().unwrap();
                        let Some((which, received)) = keys.current.remove(&(from, sa)) else { continue };
                        keys.add(&pair, &keyed, from, which, Some((sa, received)));
                        old.push((tick + AFTER, from, sa, received));
                    }
                }
                old.retain(|(until, from, sent, received)| {
                    if *until <= tick {
                        with_keying(&keyed[*from], 0, |keying| keying.delete_sa(*sent)).unwrap();
                        with_keying(&keyed[1 - *from], 1, |keying| keying.delete_sa(*received)).unwrap();
                    }
                    *until > tick
                });
            }
        });
        QueueTestbed { bed, hosts, recorder, keys }
    }

    fn outcome(self) -> QueueOutcome {
        let shards = self.hosts[0].shards().iter();
        let accepted = shards.map(|shard| {
            let mut set = CounterSet::default();
            set.add(&shard.counters());
            set.value("TcpPassiveOpens")
        });
        let of_queues = self.hosts[0].queue_counters();
        QueueOutcome {
            seen: self.recorder.seen(),
            counters: self.bed.counters(),
            sent_by: self.keys.lock().unwrap().sent_by.clone(),
            accepted: accepted.collect(),
            of_queues: of_queues
                .iter()
                .map(|queue| (queue.value("ipsec_tx_pkts"), queue.value("ipsec_rx_pkts")))
                .collect(),
        }
    }
}

/// Runs a conversation: every shard of the client opens `of_each_shard` connections to the server and reads the echo.
fn talk(pair: &StreamPair, course: QueueRun, of_each_shard: usize, bytes: usize) -> QueueOutcome {
    let mut bed = QueueTestbed::new(pair, course);
    let [server, client] = bed.hosts.clone();
    for shard in server.shards() {
        for which in 1..=SAS {
            let (host, mut listener) = (server.clone(), shard.listen(PORT + which, 64).unwrap());
            let _listener_task = server.spawn("listener", async move {
                while let Ok(stream) = listener.accept().await {
                    let _echo_task = host.spawn("echo", async move {
                        let (mut reader, mut writer) = tokio::io::split(stream);
                        tokio::io::copy(&mut reader, &mut writer).await?;
                        writer.shutdown().await
                    });
                }
            });
        }
    }
    let mut talks = Vec::new();
    for number in 0..of_each_shard * usize::from(QUEUES) {
        // Shards and ports are assigned independently, so that most packets leave by another shard's queue.
        let shard = &client.shards()[number % usize::from(QUEUES)];
        let to = SocketAddr::new(IpAddr::from(server.address()), PORT + 1 + number as u16 % SAS);
        let (connecting, host) = (shard.connect(None, to), client.clone());
        talks.push(client.spawn("talk", async move { echoed(&host, connecting.await?, number, bytes).await }));
    }
    for talk in talks {
        bed.bed.run_within(ENOUGH, talk).unwrap();
    }
    bed.outcome()
}

async fn echoed(host: &BedHost, stream: TcpStream, number: usize, bytes: usize) -> io::Result<()> {
    let said: Vec<u8> = MARK.iter().copied().cycle().skip(number).take(bytes).collect();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let words = said.clone();
    let speaking = host.spawn("speaker", async move {
        for piece in words.chunks(10_000) {
            writer.write_all(piece).await?;
        }
        writer.shutdown().await
    });
    let mut heard = Vec::new();
    reader.read_to_end(&mut heard).await?;
    speaking.await?;
    assert!(heard == said, "connection {number}: {} of {} bytes, or others", heard.len(), said.len());
    Ok(())
}

/// Checks the frames that the server sent: ESP only, no plaintext, no number twice, ascending numbers per SA, and valid
/// ICVs. Returns the number of packets.
fn check_wire(outcome: &QueueOutcome, what: &str) -> usize {
    let udp = outcome.sent_by.iter().any(|sa| sa.encapsulation.is_some());
    assert!(only_esp(&outcome.seen, udp), "{what}");
    let ciphers: BTreeMap<u32, EspCipher> = outcome.sent_by.iter().map(|sa| (sa.spi, EspCipher::new(sa))).collect();
    let mut last: BTreeMap<u32, u32> = BTreeMap::new();
    let mut packets = 0;
    for seen in outcome.seen.iter() {
        let data = &seen.frame.data;
        assert!(!data.windows(MARK.len()).any(|window| window == MARK), "{what}: in the clear");
        if seen.direction != Way::Outbound {
            continue;
        }
        let Some(at) = EspAt::find(data) else { continue };
        packets += 1;
        let before = last.insert(at.spi, at.low).unwrap_or(0);
        assert!(at.low > before, "{what}: {:#x} sent {} after {before}", at.spi, at.low);
        let mut frame = data.to_vec();
        let opened = ciphers[&at.spi].open(&mut frame, &at, at.low.into());
        assert!(opened.is_ok(), "{what}: {:#x} number {}", at.spi, at.low);
    }
    packets
}

fn pair(offload: OffloadKind) -> StreamPair {
    StreamPair { offload, esn: true, queues: QUEUES, ..StreamPair::default() }
}

#[test]
fn flows_are_spread_and_return_to_their_shards() {
    for kind in KINDS {
        for mode in [EspMode::Transport, EspMode::Tunnel] {
            let what = format!("{kind:?} {mode:?}");
            let outcome = talk(&StreamPair { mode, ..pair(kind) }, QueueRun::default(), 15, 20_000);
            let packets = check_wire(&outcome, &what) as u64;
            let all = &outcome.counters;
            assert_eq!((all.value("HostShardPassed"), all.value("HostShardDrops")), (0, 0), "{what}");
            assert_eq!((all.value("TcpExtTCPOFOQueue"), all.value("TcpRetransSegs")), (0, 0), "{what}: in order");
            assert_eq!(outcome.accepted.iter().sum::<u64>(), 60, "{what}");
            assert!(outcome.accepted.iter().all(|accepted| *accepted >= 5), "{what}: {:?}", outcome.accepted);
            let (sent, opened): (Vec<u64>, Vec<u64>) = outcome.of_queues.iter().copied().unzip();
            if kind == OffloadKind::None {
                assert_eq!((sent, opened), (vec![0; 4], vec![0; 4]), "{what}");
            } else {
                // Three SAs per direction: each queue has one or two of the six.
                assert_eq!(sent.iter().sum::<u64>(), packets, "{what}");
                assert!(sent.iter().zip(&opened).all(|(sent, opened)| sent + opened > 0), "{what}");
                assert!(sent.iter().filter(|sent| **sent > 0).count() >= 2, "{what}: {sent:?}");
                for software in ["ipsec_sw_tx_pkts", "ipsec_sw_rx_pkts", "ipsec_rx_fallback", "ipsec_tx_fallback"] {
                    assert_eq!(all.value(software), 0, "{software}, {what}");
                }
            }
            for name in ["XfrmInStateSeqError", "XfrmInNoStates", "XfrmInTmplMismatch", "ipsec_rx_drop_pkts"] {
                assert_eq!(all.value(name), 0, "{name}, {what}");
            }
        }
    }
}

#[test]
fn stream_survives_a_bad_wire() {
    for kind in KINDS {
        let link = lossy(0.01, 0.01, 0.01, 0.002);
        let outcome = talk(&StreamPair { link, ..pair(kind) }, QueueRun::default(), 6, 60_000);
        let what = format!("{kind:?}");
        check_wire(&outcome, &what);
        let replays = outcome.counters.value("XfrmInStateSeqError") + outcome.counters.value("ipsec_rx_drop_pkts");
        assert!(replays > 0, "duplicates were replays, {what}");
        assert!(outcome.counters.value("XfrmInStateProtoError") > 0, "corrupted packets were forgeries, {what}");
    }
}

/// ESP in UDP also reaches its SA's queue if the device opens ESP. In software, it arrives at the queue of its port
/// hash.
#[test]
fn esp_in_udp_reaches_its_queue() {
    for (kind, mode) in [
        (OffloadKind::None, EspMode::Transport),
        (OffloadKind::None, EspMode::Tunnel),
        (OffloadKind::Packet, EspMode::Transport),
    ] {
        let what = format!("{kind:?} {mode:?}");
        let outcome = talk(&StreamPair { mode, udp: true, ..pair(kind) }, QueueRun::default(), 6, 20_000);
        check_wire(&outcome, &what);
        let all = &outcome.counters;
        assert_eq!((all.value("HostShardPassed"), all.value("TcpRetransSegs")), (0, 0), "{what}");
        assert_eq!(all.value("ipsec_sw_rx_pkts") > 0, kind == OffloadKind::None, "{what}");
    }
}

/// Whichever queue RSS chooses for ESP, the opened packets reach their original shards.
#[test]
fn flows_survive_a_change_of_the_rss_table() {
    for kind in KINDS {
        let course = QueueRun { one_queue: true, ..QueueRun::default() };
        let outcome = talk(&pair(kind), course, 15, 5_000);
        let what = format!("{kind:?}");
        check_wire(&outcome, &what);
        let all = &outcome.counters;
        // After a change of the table, a SYN is passed to every shard until one takes it. No other packet is passed.
        assert_eq!((all.value("HostShardPassed"), all.value("TcpRetransSegs")), (60 * 4, 0), "{what}");
        assert!(outcome.accepted.iter().all(|accepted| *accepted >= 5), "{what}: {:?}", outcome.accepted);
    }
}

#[test]
fn streams_run_in_real_time() {
    for kind in KINDS {
        let course = QueueRun { real: true, rekey_after: Some(100), ..QueueRun::default() };
        let outcome = talk(&pair(kind), course, 3, 100_000);
        let what = format!("{kind:?}");
        check_wire(&outcome, &what);
        assert!(outcome.sent_by.len() > 6, "{what}: keys changed");
    }
}

#[test]
fn rekeying_under_load_loses_nothing() {
    for kind in KINDS {
        let course = QueueRun { rekey_after: Some(200), ..QueueRun::default() };
        let outcome = talk(&pair(kind), course, 6, 100_000);
        let what = format!("{kind:?}");
        check_wire(&outcome, &what);
        assert!(outcome.sent_by.len() >= 20, "{} SAs, {what}", outcome.sent_by.len());
        for name in ["TcpRetransSegs", "XfrmInNoStates", "XfrmOutNoStates", "XfrmOutStateInvalid", "ipsec_tx_fallback"]
        {
            assert_eq!(outcome.counters.value(name), 0, "{name}, {what}");
        }
    }
}

#[test]
fn streams_survive_rekeying_and_resets_on_a_bad_wire() {
    for kind in KINDS {
        let link = lossy(0.005, 0.01, 0.01, 0.001);
        let reset_every = (kind != OffloadKind::None).then_some(Duration::from_millis(2));
        let course = QueueRun { rekey_after: Some(300), reset_every, ..QueueRun::default() };
        let outcome = talk(&StreamPair { link, window: 256, ..pair(kind) }, course, 4, 100_000);
        let what = format!("{kind:?}");
        check_wire(&outcome, &what);
        assert!(outcome.sent_by.len() > 6, "{what}");
        if kind != OffloadKind::None {
            assert!(outcome.counters.value("ipsec_sa_offload_lost") > 0, "{what}");
        }
    }
}

#[test]
fn equal_seeds_repeat_a_run() {
    let run = || {
        let reset_every = Some(Duration::from_millis(2));
        let course = QueueRun { rekey_after: Some(300), reset_every, ..QueueRun::default() };
        let link = lossy(0.01, 0.01, 0.01, 0.002);
        let outcome = talk(&StreamPair { link, ..pair(OffloadKind::Crypto) }, course, 3, 30_000);
        let frames: Vec<_> = outcome.seen.into_iter().map(|seen| (seen.at, seen.frame.data)).collect();
        (frames, outcome.counters)
    };
    assert!(run() == run());
}

/// A UDP receiver does not remove duplicates, so each datagram must be delivered exactly once, and at most the wire may
/// lose one.
#[test]
fn datagram_is_delivered_once() {
    for kind in KINDS {
        for (link, clean) in [(LinkConfig::default(), true), (lossy(0.02, 0.05, 0.2, 0.002), false)] {
            let what = format!("{kind:?}, clean: {clean}");
            let mut bed = QueueTestbed::new(&StreamPair { link, window: 256, ..pair(kind) }, QueueRun::default());
            let [server, client] = bed.hosts.clone();
            let heard: Arc<Mutex<Vec<[u8; 4]>>> = Arc::default();
            for shard in server.shards() {
                for which in 1..=SAS {
                    let (socket, heard) = (shard.bind_udp(Some(PORT + which)).unwrap(), heard.clone());
                    let _receiver_task = server.spawn("hears", async move {
                        while let Ok((data, _)) = socket.recv_from().await {
                            heard.lock().unwrap().push(data[..4].try_into().unwrap());
                        }
                    });
                }
            }
            let mut sending = Vec::new();
            for (number, shard) in client.shards().iter().enumerate() {
                let (socket, address) = (shard.bind_udp(None).unwrap(), IpAddr::from(server.address()));
                let runtime = bed.bed.runtime();
                sending.push(client.spawn("says", async move {
                    for datagram in 0..300u16 {
                        let port = PORT + 1 + datagram % SAS;
                        let [high, low] = datagram.to_be_bytes();
                        let data = [&[number as u8, 0, high, low], MARK].concat();
                        socket.send_to(Bytes::from(data), SocketAddr::new(address, port)).await?;
                        // Pauses keep the senders within the receiver's buffers.
                        if datagram % 10 == 0 {
                            testbed_sleep(&*runtime, TICK).await;
                        }
                    }
                    testbed_sleep(&*runtime, Duration::from_millis(10)).await;
                    io::Result::Ok(())
                }));
            }
            for sending in sending {
                bed.bed.run_within(ENOUGH, sending).unwrap();
            }
            let heard = core::mem::take(&mut *heard.lock().unwrap());
            // A datagram is identified by its shard and number.
            let distinct: BTreeSet<[u8; 4]> = heard.iter().copied().collect();
            assert_eq!(distinct.len(), heard.len(), "{what}: twice");
            assert!(
                if clean { heard.len() == 1200 } else { (900..1200).contains(&heard.len()) },
                "{what}: {}",
                heard.len()
            );
            check_wire(&bed.outcome(), &what);
        }
    }
}

/// The interval at which the test polls keying events.
const TICK: Duration = Duration::from_micros(10);
/// Number of ticks after which no packet of an old SA is under way.
const AFTER: u32 = 2000;
