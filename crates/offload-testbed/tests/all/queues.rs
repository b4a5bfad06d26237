//! Hosts with multi-queue NICs and one stack shard for each queue: flows are spread by their hash, stay on their queue,
//! and lose nothing when the table changes.

use crate::rig;

use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use ktls_offload::{KtlsStream, Offload};
use nic_sim::wire::{FrameRecorder, Impairments, Link, LinkConfig, Share};
use nic_sim::{NicConfig, multi_queue_nic};
use offload_api::NetDevice;
use offload_base::cost::Domain;
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seed};
use offload_host_stack::{Config, Host, Ipv6Config, TcpConfig, TcpListener, TcpStream};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::{BedHost, JoinHandle, Runtime, Station, Testbed, VirtualTime, connect};
use rig::{CryptoPlace, marked};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn queues(queues: u16) -> NicConfig {
    NicConfig { queues, ..NicConfig::default() }
}

fn bed(nic: &NicConfig, link: LinkConfig, recorder: &FrameRecorder) -> Testbed {
    let builder = Testbed::builder(Seed(7)).host("server", nic.clone(), TcpConfig::default()).host(
        "client",
        nic.clone(),
        TcpConfig::default(),
    );
    builder.wire(0, 1, link).recorded(recorder).build().expect("virtual time needs nothing")
}

/// Echoes received bytes, on each shard.
fn echo(server: &BedHost) {
    for (index, shard) in server.shards().iter().enumerate() {
        let (host, mut listener) = (server.clone(), shard.listen(PORT, 1024).expect("a free port"));
        let _runs_on = server.spawn(format!("listener {index}"), async move {
            while let Ok(mut stream) = listener.accept().await {
                let _runs_on = host.spawn("echo", async move {
                    let (mut reader, mut writer) = tokio::io::split(&mut stream);
                    tokio::io::copy(&mut reader, &mut writer).await?;
                    writer.shutdown().await
                });
            }
        });
    }
}

/// Sends `writes` numbered pieces and reads them back.
async fn talk(host: BedHost, stream: TcpStream, number: usize, writes: usize) -> io::Result<()> {
    let said: Vec<u8> = (0..writes).flat_map(|write| piece(number, write)).collect();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let words = said.clone();
    let speaking = host.spawn("speaker", async move {
        for write in words.chunks(PIECE) {
            writer.write_all(write).await?;
        }
        writer.shutdown().await
    });
    let mut heard = Vec::new();
    reader.read_to_end(&mut heard).await?;
    speaking.await?;
    assert!(heard == said, "connection {number}: {} of {} bytes, or others", heard.len(), said.len());
    Ok(())
}

fn piece(number: usize, write: usize) -> Vec<u8> {
    (0..PIECE).map(|at| (number * 31 + write * 7 + at) as u8).collect()
}

fn talkers(client: &BedHost, server: &BedHost, of_each_shard: usize, writes: usize) -> Vec<JoinHandle<io::Result<()>>> {
    let to = (IpAddr::from(server.address()), PORT).into();
    let shards = client.shards().iter();
    let connecting = shards.flat_map(|shard| (0..of_each_shard).map(move |_| shard.connect(None, to)));
    let talking = connecting.enumerate().map(|(number, connecting)| {
        let host = client.clone();
        client.spawn(format!("talker {number}"), async move { talk(host, connecting.await?, number, writes).await })
    });
    talking.collect()
}

fn counters_of(shard: &Host) -> CounterSet {
    let mut set = CounterSet::default();
    set.add(&shard.counters());
    set
}

#[test]
fn a_thousand_connections_are_spread_over_four_shards() {
    let mut bed = bed(&queues(4), LinkConfig::default(), &FrameRecorder::default());
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    echo(&server);
    for talker in talkers(&client, &server, 250, 3) {
        bed.run(talker).expect("a talk");
    }
    let all = bed.counters();
    assert_eq!((all.value("HostShardPassed"), all.value("HostShardDrops")), (0, 0), "each on its own shard only");
    assert_eq!((all.value("TcpExtTCPOFOQueue"), all.value("TcpRetransSegs")), (0, 0), "and in order");
    let opened = |host: &BedHost, name: &str| -> Vec<u64> {
        host.shards().iter().map(|shard| counters_of(shard).value(name)).collect()
    };
    assert_eq!(opened(&client, "TcpActiveOpens"), [250; 4], "whatever port a shard chooses, the answers come to it");
    let passive = opened(&server, "TcpPassiveOpens");
    assert_eq!(passive.iter().sum::<u64>(), 1000);
    // A binomial distribution has a standard deviation of 13.7 here.
    assert!(passive.iter().all(|opened| (200..=300).contains(opened)), "{passive:?}");
    for (queue, opened) in server.queue_counters().iter().zip(passive) {
        let packets = queue.value("rx_packets");
        assert!(packets >= 5 * opened, "{packets} packets of {opened} connections");
    }
}

#[test]
fn a_run_with_queues_repeats() {
    let run = || {
        let recorder = FrameRecorder::default();
        let loss = Impairments { loss: Share::new(0.01).expect("a share"), ..Impairments::default() };
        let link = LinkConfig { impairments: loss, ..LinkConfig::default() };
        let mut bed = bed(&queues(3), link, &recorder);
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        echo(&server);
        for talker in talkers(&client, &server, 10, 50) {
            bed.run(talker).expect("a talk");
        }
        let frames: Vec<_> = recorder.take().into_iter().map(|seen| (seen.at, seen.frame.data)).collect();
        (frames, bed.counters())
    };
    let (once, again) = (run(), run());
    assert!(once.1.value("TcpRetransSegs") > 0, "something was lost");
    assert!(once == again);
}

#[test]
fn a_table_that_changes_loses_nothing() {
    let mut bed = bed(&queues(4), LinkConfig::default(), &FrameRecorder::default());
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    echo(&server);
    let early = talkers(&client, &server, 10, 1500);
    let sleep = |time| bed.runtime().sleep(time);
    bed.run(sleep(Duration::from_micros(300)));
    // Each flow moves to the next queue, then all to one queue, then to the queue after its first one.
    let tables = [
        core::array::from_fn(|entry| (entry as u16 + 1) % 4),
        [2; 128],
        core::array::from_fn(|entry| (entry as u16 + 3) % 4),
    ];
    let mut late = Vec::new();
    for table in &tables {
        server.shards()[0].set_indirection(table).expect("a table");
        client.shards()[3].set_indirection(table).expect("a table");
        late.extend(talkers(&client, &server, 5, 100));
        bed.run(bed.runtime().sleep(Duration::from_micros(300)));
    }
    assert!(early.iter().any(|talker| !talker.is_finished()), "flows are alive while the table changes");
    for talker in early.into_iter().chain(late) {
        bed.run(talker).expect("a talk");
    }
    let counters = bed.counters();
    assert!(counters.value("HostShardPassed") > 1000, "{}", counters.value("HostShardPassed"));
    assert_eq!((counters.value("HostShardDrops"), counters.value("TcpEstabResets")), (0, 0));
    assert_eq!(counters.value("TcpOutRsts"), 0, "nobody took a flow of another shard for a stranger's");
    assert_eq!(server.shards().iter().map(|shard| counters_of(shard).value("TcpPassiveOpens")).sum::<u64>(), 100);
}

#[test]
fn a_table_names_queues_that_are_there() {
    let bed = bed(&queues(2), LinkConfig::default(), &FrameRecorder::default());
    let refused = bed.host(0).stack().set_indirection(&[2; 128]).expect_err("there is no queue 2");
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    let single = Testbed::builder(Seed(1)).host("one", NicConfig::default(), TcpConfig::default()).build().unwrap();
    let refused = single.host(0).stack().set_indirection(&[0; 128]).expect_err("there is one queue");
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
}

/// The data of several TLS streams, and the traffic of the server's NIC.
struct FetchedStreams {
    data: Vec<Vec<u8>>,
    streams: BTreeMap<u16, [Vec<u8>; 2]>,
    counters: CounterSet,
    decrypted: Vec<u64>,
    encrypted: Vec<u64>,
}

/// Fetches eight TLS streams from a server to a client, both with three queues.
fn fetch_eight(who: CryptoPlace, bytes: usize, table: Option<[u16; 128]>) -> FetchedStreams {
    let recorder = FrameRecorder::default();
    let mut bed = bed(&queues(3), LinkConfig::default(), &recorder);
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    for shard in server.shards() {
        let _runs_on = server.spawn("listener", serve_tls(server.clone(), shard.listen(PORT, 8).unwrap(), who, bytes));
    }
    // The seed gives both runs the same ports.
    let fetching: Vec<_> = (0..8_u16)
        .map(|number| {
            let (host, to) = (client.clone(), (IpAddr::from(server.address()), PORT).into());
            client.spawn(format!("client {number}"), async move {
                // Clients are spread over all shards, so that every queue of both NICs has flows.
                let shard = &host.shards()[usize::from(number) % host.shards().len()];
                let stream = shard.connect(None, to).await?;
                let port = stream.local_addr().port();
                let seed = Seed(u64::from(number)).derive("client");
                let config = Arc::new(client_config(Randomness::Seeded(seed), None));
                let mut stream = ktls_offload::connect(stream, config, server_name()).await?;
                offload(&mut stream, who).await?;
                stream.send_chunk(Bytes::from(vec![number as u8])).await?;
                let mut received = Vec::new();
                while let Some(chunk) = stream.next_chunk().await? {
                    received.extend_from_slice(&chunk);
                }
                stream.close().await?;
                io::Result::Ok((port, received))
            })
        })
        .collect();
    if let Some(table) = table {
        bed.run(bed.runtime().sleep(Duration::from_millis(1)));
        client.stack().set_indirection(&table).expect("a table");
        server.stack().set_indirection(&table).expect("a table");
        // A table that changes after the end would test nothing.
        assert!(fetching.iter().any(|fetching| !fetching.is_finished()), "flows are alive while the table changes");
    }
    let (ports, data): (Vec<_>, Vec<_>) = fetching.into_iter().map(|task| bed.run(task).expect("a fetch")).unzip();
    let seen = recorder.take();
    let of_port = |port: &u16| {
        let of_it: Vec<_> = seen.iter().filter(|seen| ports_of(&seen.frame.data).contains(port)).cloned().collect();
        (*port, rig::streams(&of_it))
    };
    FetchedStreams {
        data,
        // Reassembling looks at every byte, so large transfers skip it.
        streams: ports.iter().filter(|_| bytes < 1 << 20).map(of_port).collect(),
        counters: bed.counters(),
        decrypted: client.queue_counters().iter().map(|queue| queue.value("rx_tls_decrypted_packets")).collect(),
        encrypted: server.queue_counters().iter().map(|queue| queue.value("tx_tls_encrypted_packets")).collect(),
    }
}

fn ports_of(frame: &[u8]) -> [u16; 2] {
    [34, 36].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]))
}

async fn serve_tls(host: BedHost, mut listener: TcpListener, who: CryptoPlace, bytes: usize) -> io::Result<()> {
    loop {
        let stream = listener.accept().await?;
        let _runs_on = host.spawn("server", async move {
            let seed = Seed(u64::from(stream.peer_addr().port())).derive("server");
            let config = Arc::new(server_config(Randomness::Seeded(seed), None));
            let mut stream = ktls_offload::accept(stream, config).await?;
            offload(&mut stream, who).await?;
            let asked = stream.next_chunk().await?.expect("a number");
            stream.send_chunk(content(asked[0], bytes)).await?;
            stream.close().await?;
            while stream.next_chunk().await?.is_some() {}
            io::Result::Ok(())
        });
    }
}

async fn offload(stream: &mut KtlsStream<TcpStream>, who: CryptoPlace) -> io::Result<()> {
    if who == CryptoPlace::Nic {
        stream.offload(Offload::BOTH);
        stream.ready().await?;
    }
    Ok(())
}

fn content(number: u8, bytes: usize) -> Bytes {
    let mut data = marked(bytes).to_vec();
    data.iter_mut().step_by(1009).for_each(|byte| *byte = number);
    data.into()
}

#[test]
fn tls_is_offloaded_on_every_queue() {
    let bytes = 256 << 10;
    let (cpu, nic) = (fetch_eight(CryptoPlace::Cpu, bytes, None), fetch_eight(CryptoPlace::Nic, bytes, None));
    for (number, data) in nic.data.iter().enumerate() {
        assert!(*data == content(number as u8, bytes), "stream {number}");
    }
    assert!(cpu.data == nic.data);
    assert!(cpu.streams.len() == 8 && cpu.streams == nic.streams, "the wire is the same on device and CPU");
    assert!(nic.decrypted.iter().all(|packets| *packets > 180), "{:?}", nic.decrypted);
    assert!(nic.encrypted.iter().filter(|packets| **packets > 180).count() > 1, "{:?}", nic.encrypted);
    assert_eq!(cpu.decrypted, [0; 3]);
    assert_eq!(nic.counters.value("HostShardPassed"), 0);
}

#[test]
fn offloaded_flow_keeps_its_queue_when_the_table_changes() {
    let bytes = 3 << 20;
    let still = fetch_eight(CryptoPlace::Nic, bytes, None);
    let moved = fetch_eight(CryptoPlace::Nic, bytes, Some(core::array::from_fn(|entry| (entry as u16 + 1) % 3)));
    for (number, data) in moved.data.iter().enumerate() {
        assert!(*data == content(number as u8, bytes), "stream {number}");
    }
    assert_eq!(moved.decrypted, still.decrypted, "each queue's contexts do what they would have done");
    assert_eq!(moved.counters.value("rx_tls_lost"), still.counters.value("rx_tls_lost"));
    assert!(moved.counters.value("HostShardPassed") > 0, "what no context follows comes elsewhere");
    assert_eq!(moved.counters.value("HostShardDrops"), 0);
}

#[test]
fn socket_on_one_shard_receives_from_all_queues() {
    let mut bed = bed(&queues(4), LinkConfig::default(), &FrameRecorder::default());
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let inbox = server.shards()[3].bind_udp(Some(PORT)).expect("a free port");
    let mut listener = server.shards()[2].listen(PORT, 64).expect("a free port");
    let to = (IpAddr::from(server.address()), PORT).into();
    // Whole datagrams reach a queue by their ports, fragments by their addresses alone.
    let hearing = server.spawn("inbox", async move {
        let mut heard = Vec::new();
        while heard.len() < 40 {
            heard.push(inbox.recv_from().await.expect("a socket that is open").0.to_vec());
        }
        // Datagrams of different queues may overtake each other.
        heard.sort();
        heard
    });
    let saying = client.spawn("outbox", {
        let client = client.clone();
        async move {
            for number in 0..20_u8 {
                let outbox = client.shards()[usize::from(number) % 4].bind_udp(None).expect("a free port");
                outbox.send_to(Bytes::from(vec![number; 100]), to).await?;
                // The long datagram is fragmented: only its first fragment has ports.
                outbox.send_to(Bytes::from(vec![number; 5000]), to).await?;
            }
            io::Result::Ok(())
        }
    });
    bed.run(saying).expect("a host that is there");
    let heard = bed.run(hearing);
    let mut said: Vec<_> = (0..20_u8).flat_map(|number| [vec![number; 100], vec![number; 5000]]).collect();
    said.sort();
    assert!(heard == said);
    let (host, accepted) = (server.clone(), 12);
    let accepting = server.spawn("listener", async move {
        for _ in 0..accepted {
            let mut stream = listener.accept().await?;
            let _runs_on = host.spawn("echo", async move {
                let (mut reader, mut writer) = tokio::io::split(&mut stream);
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            });
        }
        io::Result::Ok(())
    });
    for talker in talkers(&client, &server, 3, 20) {
        bed.run(talker).expect("a talk");
    }
    bed.run(accepting).expect("twelve of them");
    let counters = bed.counters();
    // Otherwise every flow would have reached the right shard by chance.
    assert!(counters.value("HostShardPassed") > 0);
    assert_eq!((counters.value("HostShardDrops"), counters.value("UdpNoPorts")), (0, 0));
}

#[test]
fn unclaimed_packets_are_answered_once() {
    let mut bed = bed(&queues(4), LinkConfig::default(), &FrameRecorder::default());
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let to = (IpAddr::from(server.address()), PORT).into();
    for shard in client.shards() {
        let refused = bed.run(shard.connect(None, to)).expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let outbox = shard.bind_udp(None).expect("a free port");
        bed.run(outbox.send_to(Bytes::from_static(b"is anybody there?"), to)).expect("a host that is there");
        // The datagram must be answered before its socket closes.
        bed.run(bed.runtime().sleep(Duration::from_millis(1)));
    }
    let counters = bed.counters();
    assert_eq!(counters.value("TcpOutRsts"), 4);
    assert_eq!((counters.value("UdpNoPorts"), counters.value("IcmpOutDestUnreachs")), (4, 4));
    assert_eq!((counters.value("IcmpInDestUnreachs"), counters.value("TcpExtOutOfWindowIcmps")), (4, 4));
    assert_eq!(counters.value("HostShardPassed"), 2 * 3 * 4, "everybody was asked");
}

#[test]
fn neighbour_answers_reach_every_shard() {
    for six in [false, true] {
        let mut run = VirtualTime::new();
        let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
        let mut stations = Vec::new();
        // The testbed's builder fills the neighbour tables, so these hosts are built by hand.
        let hosts: Vec<Vec<Host>> = (1..=2)
            .map(|number| {
                let nic = NicConfig { mac: [2, 0, 0, 0, 0, number], ..queues(4) };
                let (device, drivers) = multi_queue_nic(nic);
                stations.push(Station::new("nic", Domain::Device(number), Arc::new(Mutex::new(device))));
                let drivers = drivers.into_iter().map(|driver| Box::new(driver) as Box<dyn NetDevice>).collect();
                let config = Config::new([10, 0, 0, number].into(), [2, 0, 0, 0, 0, number], Seed(number.into()))
                    .with_ipv6(Ipv6Config::new([0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into()));
                let shards = Host::shards(config, drivers, runtime.clone());
                for shard in &shards {
                    let _runs_on = runtime.spawn("stack", shard.serve());
                }
                shards
            })
            .collect();
        let (right, left) = (stations.pop().expect("two"), stations.pop().expect("two"));
        let link = |name| Link::new(&LinkConfig::default(), Seed(1).derive(name));
        let _cable = connect(&runtime, left, right, link("there"), link("back"));
        let _listeners: Vec<_> = hosts[0].iter().map(|shard| shard.listen(PORT, 8).expect("a free port")).collect();
        let address: IpAddr =
            if six { hosts[0][0].ipv6_address().expect("it has one").into() } else { hosts[0][0].address().into() };
        // All connect at once: each shard sends its own query, and the answers reach a single shard, which may not be
        // the asking one.
        let connecting: Vec<_> = hosts[1].iter().map(|shard| shard.connect(None, (address, PORT).into())).collect();
        for connecting in connecting {
            run.block_on(connecting).expect("a neighbour that answers");
        }
        let mut counters = CounterSet::default();
        hosts.iter().flatten().for_each(|shard| counters.add(&shard.counters()));
        let (asked, answered) = match six {
            true => ("Icmp6OutNeighborSolicits", "Icmp6OutNeighborAdvertisements"),
            false => ("HostArpOutRequests", "HostArpOutReplies"),
        };
        assert!(counters.value(asked) >= 4, "each of the client's shards asked");
        assert_eq!(counters.value(asked), counters.value(answered), "and was answered by one");
        // A connection waits for its neighbour instead of losing the SYN.
        assert_eq!(counters.value("TcpRetransSegs"), 0);
        assert!(run.now() - Instant::ZERO < Duration::from_millis(1));
    }
}

const PORT: u16 = 7;
const PIECE: usize = 700;
