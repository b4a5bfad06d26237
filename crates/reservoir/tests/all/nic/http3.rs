//! Copies over HTTP/3. The CPUs or the NICs encrypt and decrypt the packets.

use super::{CopyFiles, ROUND_TRIP, bed, bed_of, content, shell, url};
use bytes::Buf;
use core::num::NonZeroU64;
use core::pin::pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Poll;
use core::time::Duration;
use hyper::Request;
use offload_api::QuicCipher;
use offload_base::RandomSource;
use offload_reservoir::copy::{Copy, CopyLocation};
use offload_reservoir::dial::{Dial, DialFuture, QuicDialFuture};
use offload_reservoir::remote::ThirdParty;
use offload_reservoir::rooted::Rooted;
use offload_reservoir::tokens::Tokens;
use offload_reservoir::{Server, ServerLimits};
use offload_testbed::identity::{Randomness, quic_client_config, quic_server_config, server_name};
use offload_testbed::wire::impairment::{Impairments, Reorder, Share};
use offload_testbed::wire::{LinkConfig, Overflow};
use offload_testbed::{BedHost, NicConfig, Seed, Testbed};
use quic_offload::http3::{ALPN, H3Connection};
use quic_offload::{ClientTls, Config, Connection, Endpoint, Offload, ResetKey, ServerTls, StreamError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

#[test]
fn packets_are_protected_by_the_cpus_and_by_the_nics() {
    let share = |share| Share::new(share).unwrap();
    let reorder = Some(Reorder { share: share(0.01), hold: Duration::from_micros(50) });
    let impairments = Impairments { loss: share(0.01), reorder, ..Impairments::default() };
    for offload in [Offload::None, Offload::Both] {
        let mut bed = bed(LinkConfig { impairments, ..LinkConfig::default() });
        let files = CopyFiles::new();
        let dial = over(&bed, &files, offload, Server::open_to_all);
        files.there_and_back(&mut bed, dial);
        let counters = bed.counters();
        let (sealed, opened) = (counters.value("quic_tx_pkts"), counters.value("quic_rx_pkts"));
        let by_nic = offload == Offload::Both;
        assert!((sealed > 5000 && opened > 5000) == by_nic, "{:?}", counters.moved().collect::<Vec<_>>());
    }
}

/// Long packets have long datagrams. A stream may have any number of datagrams that wait for an earlier one.
#[test]
fn long_packets_are_used() {
    let share = |share| Share::new(share).unwrap();
    let impairments = Impairments { loss: share(0.02), ..Impairments::default() };
    for offload in [Offload::None, Offload::Both] {
        let nic = NicConfig { mtu: 9000, ..NicConfig::default() };
        let mut bed = bed_of(nic, LinkConfig { impairments, delay: ROUND_TRIP / 2, ..LinkConfig::default() });
        let files = CopyFiles::new();
        let dial = over_config(&|end| config(9000, offload, end), &bed, &files, Server::open_to_all);
        let copy = Copy::new(shell(bed.host(1)), dial.clone()).streams(1).block(4 << 20).unwrap();
        let longest = Arc::new(AtomicUsize::new(0));
        let (timers, watched, longest_seen) = (bed.host(1).runtime(), dial.clone(), longest.clone());
        shell(bed.host(1)).spawn(async move {
            loop {
                timers.sleep(ROUND_TRIP).await;
                let connection = watched.last.lock().unwrap().clone();
                let path = connection.and_then(|connection| connection.path_statistics(0));
                longest_seen.fetch_max(path.map_or(0, |path| path.udp_payload.into()), Ordering::Relaxed);
            }
        });
        // After a lost packet, the stream holds seconds' worth of bytes.
        std::fs::write(files.path().join("from/large"), content("large", 30 << 20)).unwrap();
        let up = bed.run(copy.run(&[files.place("/from/large")], &url("/large"))).unwrap();
        assert_eq!((up.copied, &up.failed[..]), (1, &[][..]));
        assert!(std::fs::read(files.path().join("store/large")).unwrap() == content("large", 30 << 20));
        let longest = longest.load(Ordering::Relaxed);
        assert!(longest > 8000, "{longest}");
        assert_eq!(dial.dialed.load(Ordering::Relaxed), 1, "the connection broke");
    }
}

/// A paced start loses no packets in a queue that is far shorter than the bytes in flight. An unpaced start does.
#[test]
fn paced_start_loses_no_packets() {
    let pace = NonZeroU64::new(11_000_000);
    for (offload, pacing_rate) in [(Offload::None, pace), (Offload::Both, pace), (Offload::Both, None)] {
        let wire = LinkConfig {
            rate: Some(100_000_000),
            delay: ROUND_TRIP / 2,
            queue_limit: 32 << 10,
            overflow: Overflow::Drop,
            ..LinkConfig::default()
        };
        let mut bed = bed(wire);
        let files = CopyFiles::new();
        std::fs::write(files.path().join("from/large"), content("large", 10 << 20)).unwrap();
        let of = |end: &str| config(1500, offload, end).with(|c| c.pacing_rate = pacing_rate);
        let dial = over_config(&of, &bed, &files, Server::open_to_all);
        let copy = Copy::new(shell(bed.host(1)), dial);
        let up = bed.run(copy.run(&[files.place("/from/large")], &url("/large"))).unwrap();
        assert_eq!((up.copied, &up.failed[..]), (1, &[][..]));
        let lost = bed.counters().value("wire_queue_drops");
        assert_eq!(lost == 0, pacing_rate.is_some(), "{offload:?}, {pacing_rate:?}: {lost} packets");
    }
}

/// One connection has many requests at the same time: blocks do not wait for earlier blocks.
#[test]
fn a_stream_does_not_wait_a_round_trip_for_each_block() {
    let mut bed = bed(LinkConfig { delay: ROUND_TRIP / 2, ..LinkConfig::default() });
    let files = CopyFiles::new();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    for round_trips in files.by_one_stream(&mut bed, dial) {
        assert!(round_trips < 30.0, "{round_trips} round trips");
    }
}

/// Four hundred small files go as packs. Answers to such requests may be longer than the requests.
#[test]
fn many_small_files_go_together() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    let name = |number: u32| format!("file {number}");
    for number in 0..400 {
        std::fs::write(files.path().join("from").join(name(number)), content("s", number as usize)).unwrap();
    }
    let copy = Copy::new(shell(bed.host(1)), over(&bed, &files, Offload::Both, Server::open_to_all));
    let up = bed.run(copy.run(&[files.place("/from")], &url("/"))).unwrap();
    let down = bed.run(copy.run(&[url("/from/")], &files.place("/back"))).unwrap();
    assert_eq!((up.copied, &up.failed[..]), (403, &[][..]));
    assert_eq!((down.copied, &down.failed[..]), (403, &[][..]));
    for number in 0..400 {
        assert_eq!(std::fs::read(files.path().join("back").join(name(number))).unwrap().len(), number as usize);
    }
}

/// The server refuses the first block of a file before the block arrives, and gives its reason.
#[test]
fn a_refusal_comes_before_the_body_is_sent() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    let tokens = "[[token]]\nname = \"reader\"\nrights = [\"read\"]\nsha256 = \"".to_owned()
        + "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n"; // SHA-256 of "abc"
    let dial = over(&bed, &files, Offload::Both, |server| {
        server.set_tokens(Tokens::read(&tokens).unwrap());
        server
    });
    let copy = Copy::new(shell(bed.host(1)), dial);
    let outcome = bed.run(copy.run(&[files.place("/from")], &url("/")));
    let failed = match outcome {
        Ok(outcome) => format!("{:?}", outcome.failed),
        Err(error) => error.to_string(),
    };
    assert!(failed.contains("a bearer token is needed"), "{failed}");
}

/// A copy is dropped at several instants. The next copy uses another connection and completes the files.
#[test]
fn a_copy_that_is_dropped_anywhere_is_made_whole_by_the_next() {
    for millis in [1, 2, 5, 9, 14, 20] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = CopyFiles::new();
        let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
        let client = bed.host(1).clone();
        let copy = || Copy::new(shell(&client), dial.clone()).streams(3).resume(true).block(1 << 18).unwrap();
        let ended = bed.run(async {
            let copy = copy();
            let (sources, to) = ([files.place("/from")], url("/"));
            let mut going = pin!(copy.run(&sources, &to));
            let mut rung = pin!(client.runtime().sleep(Duration::from_millis(millis)));
            core::future::poll_fn(|cx| match (going.as_mut().poll(cx), rung.as_mut().poll(cx)) {
                (Poll::Ready(_), _) => Poll::Ready(true),
                (_, Poll::Ready(())) => Poll::Ready(false),
                _ => Poll::Pending,
            })
            .await
        });
        let outcome = bed.run(copy().run(&[files.place("/from")], &url("/"))).unwrap();
        assert_eq!((outcome.failed.len(), millis == 1 && ended), (0, false), "{:?}", outcome.failed);
        let large = |folder: &str| std::fs::read(files.path().join(folder).join("large")).unwrap();
        assert!(large("from") == large("store/from"), "dropped after {millis} ms");
    }
}

/// The next request after the end of a connection makes a new connection.
#[test]
fn a_connection_that_ended_is_made_anew() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    let copy = Copy::new(shell(bed.host(1)), dial.clone());
    let up = bed.run(copy.run(&[files.place("/from/large")], &url("/one"))).unwrap();
    assert_eq!((up.copied, &up.failed[..]), (1, &[][..]));
    let ended = dial.last.lock().unwrap().take().unwrap();
    // The copy still holds this connection for its next request.
    ended.close(7, "");
    let up = bed.run(copy.run(&[files.place("/from/large")], &url("/two"))).unwrap();
    assert_eq!((up.copied, &up.failed[..]), (1, &[][..]));
}

/// A file that shrinks during the copy fails its own requests again and again. The connection also serves other files,
/// and stays.
#[test]
fn a_request_that_fails_ends_its_stream_alone() {
    for offload in [Offload::None, Offload::Both] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = CopyFiles::new();
        let dial = over(&bed, &files, offload, Server::open_to_all);
        let client = bed.host(1).clone();
        let large = std::fs::File::options().write(true).open(files.path().join("from/large")).unwrap();
        let timers = client.runtime();
        shell(&client).spawn(async move {
            timers.sleep(Duration::from_millis(5)).await;
            large.set_len(1 << 20).unwrap();
        });
        let copy = Copy::new(shell(&client), dial.clone()).streams(3).block(1 << 18).unwrap();
        let outcome = bed.run(copy.run(&[files.place("/from")], &url("/"))).unwrap();
        assert_eq!(outcome.failed.len(), 1, "{:?}", outcome.failed);
        assert_eq!(dial.dialed.load(Ordering::Relaxed), 1, "connections: {:?}", outcome.failed);
    }
}

/// A restarted server does not know the upload until the copy sends it. The journal has the blocks that had arrived.
#[test]
fn a_copy_goes_on_at_a_server_that_is_begun_anew() {
    for millis in [2, 4, 8, 16, 24, 32, 40] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = CopyFiles::new();
        let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
        let (client, host) = (bed.host(1).clone(), bed.host(0).clone());
        let store = files.path().join("store");
        let anew = dial.clone();
        shell(&client).spawn(async move {
            host.runtime().sleep(Duration::from_millis(millis)).await;
            *anew.server.lock().unwrap() = at(&host, &store).open_to_all();
            if let Some(connection) = anew.last.lock().unwrap().take() {
                connection.close(7, "");
            }
        });
        let copy = Copy::new(shell(&client), dial).streams(3).block(1 << 18).unwrap();
        let outcome = bed.run(copy.run(&[files.place("/from/large")], &url("/large"))).unwrap();
        assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]), "begun anew after {millis} ms");
        let large = |name: &str| std::fs::read(files.path().join(name)).unwrap();
        assert!(large("from/large") == large("store/large"), "begun anew after {millis} ms");
    }
}

/// A killed server does not say goodbye. The restarted server does not know the connection, and sends a reset that the
/// client trusts.
#[test]
fn a_client_learns_at_once_that_a_server_was_begun_anew() {
    for offload in [Offload::None, Offload::Both] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = CopyFiles::new();
        let dial = over(&bed, &files, offload, Server::open_to_all);
        let (client, host) = (bed.host(1).clone(), bed.host(0).clone());
        let (store, killed, server) = (files.path().join("store"), dial.killed.clone(), dial.server.clone());
        shell(&client).spawn(async move {
            host.runtime().sleep(Duration::from_millis(8)).await;
            killed.notify_one();
            *server.lock().unwrap() = at(&host, &store).open_to_all();
            host.runtime().sleep(Duration::from_millis(100)).await;
            // The switch stays unused, so this server stays alive.
            let _kill_switch = listen(&host, config(1500, offload, "another server"), server);
        });
        let copy = Copy::new(shell(&client), dial.clone()).streams(3).block(1 << 18).unwrap();
        let began = bed.now();
        let outcome = bed.run(copy.run(&[files.place("/from/large")], &url("/large"))).unwrap();
        assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]));
        assert_eq!(dial.dialed.load(Ordering::Relaxed), 2);
        let took = bed.now() - began;
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}

/// Streams without a request head do not occupy slots of other clients, and end after a while.
#[test]
fn requests_without_heads_hold_no_place() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    let dial = over(&bed, &files, Offload::Both, |server| server);
    let limits = ServerLimits { connections: 2, ..ServerLimits::default() };
    let folder = Arc::new(Rooted::open(&files.path().join("from")).unwrap());
    *dial.server.lock().unwrap() = Server::new(folder, shell(bed.host(0)), limits).open_to_all();
    let (began, client) = (bed.now(), bed.host(1).clone());
    let (slow, timers) = (dial.clone(), client.runtime());
    let slow = client.spawn("slow", async move {
        let connection = slow.quic("", 443).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..40 {
            let (mut to, from) = connection.open_bi().await.unwrap();
            // The first byte of a HEADERS frame.
            to.send(bytes::Bytes::from_static(&[1])).await.unwrap();
            streams.push((to, from));
        }
        for (_, from) in &mut streams {
            assert!(from.receive(1).await.is_err(), "there is no answer to nothing");
        }
        timers.now()
    });
    let copy = Copy::new(shell(bed.host(1)), dial);
    let timers = bed.host(1).runtime();
    let outcome = bed.run(async {
        timers.sleep(Duration::from_millis(100)).await;
        copy.run(&[url("/small")], &files.place("/back")).await.unwrap()
    });
    assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]));
    assert!(bed.now() - began < Duration::from_secs(1), "{:?}", bed.now() - began);
    let ended = bed.run(slow) - began;
    assert!((10..12).contains(&ended.as_secs()), "{ended:?}");
}

/// HTTP/3 requests take the slots of TCP connections that have no token or no current request.
#[test]
fn requests_take_slots_of_idle_connections() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    let dial = over(&bed, &files, Offload::Both, |server| server);
    let limits = ServerLimits { connections: 2, ..ServerLimits::default() };
    let folder = Arc::new(Rooted::open(&files.path().join("from")).unwrap());
    let server = Server::new(folder, shell(bed.host(0)), limits).open_to_all();
    *dial.server.lock().unwrap() = server.clone();
    let slots = [1, 2].map(|last| server.enter([192, 0, 2, last].into()).unwrap());
    // One of the connections stays busy for a second.
    slots[0].set_busy();
    slots[1].set_busy();
    let (timers, copy) = (bed.host(1).runtime(), Copy::new(shell(bed.host(1)), dial));
    let began = bed.now();
    let outcome = bed.run(async {
        let copied = async { copy.run(&[url("/small")], &files.place("/back")).await.unwrap() };
        let freed = async {
            timers.sleep(Duration::from_secs(1)).await;
            slots[1].set_idle();
        };
        tokio::join!(copied, freed).0
    });
    assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]));
    assert_eq!((slots[0].is_revoked(), slots[1].is_revoked()), (false, true));
    assert!((1..2).contains(&(bed.now() - began).as_secs()));
}

/// A frame that is too long for a head ends its request before the server stores the frame.
#[test]
fn a_head_is_bounded() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    let client = bed.host(1).clone();
    let refused = bed.run(client.spawn("long", async move {
        let connection = dial.quic("", 443).await.unwrap();
        let (mut to, mut from) = connection.open_bi().await.unwrap();
        // A HEADERS frame of 512 KiB.
        to.send(bytes::Bytes::from_static(&[1, 0x80, 0x08, 0, 0])).await.unwrap();
        let sent = to.acknowledged().await;
        (sent, from.receive(1).await)
    }));
    assert_eq!(refused.0, Err(StreamError::Stopped(0x107)));
    assert!(refused.1.is_err());
}

/// The server reads only as many waiting heads as it has memory for. QUIC's windows keep the other heads at the client.
#[test]
fn heads_that_wait_are_bounded() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    let dial = over(&bed, &files, Offload::Both, |server| server);
    // There is no slot for any request.
    let limits = ServerLimits { connections: 0, ..ServerLimits::default() };
    let folder = Arc::new(Rooted::open(&files.path().join("from")).unwrap());
    *dial.server.lock().unwrap() = Server::new(folder, shell(bed.host(0)), limits).open_to_all();
    // GET, https, localhost, /, and a cookie of 200,000 bytes (RFC 9204 4.5 and appendix A).
    let fields = [&[0, 0, 0xd1, 0xd7, 0x50, 9][..], b"localhost", &[0xc1, 0x55, 0x7f, 0xc1, 0x99, 0x0c]].concat();
    let length = (fields.len() + 200_000) as u32 | 0x8000_0000;
    let head = [&[1][..], &length.to_be_bytes(), &fields, &vec![b'x'; 200_000]].concat();
    let (client, taken) = (bed.host(1).clone(), Arc::new(AtomicUsize::new(0)));
    let (spawner, counted) = (shell(&client), taken.clone());
    shell(&client).spawn(async move {
        let connection = dial.quic("", 443).await.unwrap();
        loop {
            let (mut to, mut from) = connection.open_bi().await.unwrap();
            let (head, counted) = (head.clone(), counted.clone());
            spawner.spawn(async move {
                to.send(head.into()).await.unwrap();
                to.finish().unwrap();
                to.acknowledged().await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                // The answer never comes, so the stream stays open.
                let _ = from.receive(1).await;
            });
        }
    });
    let timers = bed.host(1).runtime();
    bed.run(async { timers.sleep(Duration::from_secs(5)).await });
    // QUIC lets 256 streams be open, and 8 MiB of their bytes wait to be read.
    let taken = taken.load(Ordering::Relaxed);
    assert!((96..=96 + 42).contains(&taken), "{taken} heads");
}

/// After a minute without progress, the client retries over another connection: there may be another server by then.
#[test]
fn a_server_that_is_late_is_asked_over_a_new_connection() {
    let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
    let files = CopyFiles::new();
    // At a kilobit per second, a block of 256 KiB takes half an hour.
    let tokens = "[[token]]\nname = \"slow\"\nrights = [\"read\", \"write\"]\nrate = \"1k\"\nsha256 = \"".to_owned()
        + "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n"; // SHA-256 of "abc"
    let keep_alive = Some(Duration::from_secs(4));
    let of = |end: &str| config(1500, Offload::Both, end).with(|c| c.keep_alive = keep_alive);
    let dial = over_config(&of, &bed, &files, |server| {
        server.set_tokens(Tokens::read(&tokens).unwrap());
        server
    });
    let copy = Copy::new(shell(bed.host(1)), dial.clone()).streams(1).block(1 << 18).unwrap().retries(1);
    let to = CopyLocation::parse("https://server.nic-offload.test/large", Some("abc")).unwrap();
    let outcome = bed.run(copy.run(&[files.place("/from/large")], &to)).unwrap();
    assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
    assert_eq!(dial.dialed.load(Ordering::Relaxed), 2);
}

/// A COPY request over HTTP/3. The server gets the file over HTTP/3 from another server, here from itself.
#[test]
fn a_server_copies_from_another_by_http3() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    std::fs::copy(files.path().join("from/large"), files.path().join("store/large")).unwrap();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    let server = at(bed.host(0), &files.path().join("store")).open_to_all();
    *dial.server.lock().unwrap() = server.with_third_party(dial.clone(), 1);
    let client = bed.host(1).clone();
    let asking = dial.clone();
    let told = bed.run(client.spawn("client", async move {
        let connection = asking.quic("", 443).await.unwrap();
        let (mut driver, mut requests) = h3::client::new(H3Connection(connection)).await.unwrap();
        let uri = "https://server.nic-offload.test/copied";
        let request =
            Request::builder().method("COPY").uri(uri).header("source", "https://server.nic-offload.test/large");
        let copied = async {
            let mut stream = requests.send_request(request.body(()).unwrap()).await.unwrap();
            stream.finish().await.unwrap();
            let status = stream.recv_response().await.unwrap().status();
            let mut told = Vec::new();
            while let Some(mut data) = stream.recv_data().await.unwrap() {
                told.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
            (status.as_u16(), String::from_utf8(told).unwrap())
        };
        tokio::select! {
            told = copied => told,
            ended = driver.wait_idle() => panic!("{ended}"),
        }
    }));
    assert_eq!(told, (202, "success: Created\n".to_owned()));
    let large = |name: &str| std::fs::read(files.path().join(name)).unwrap();
    assert!(large("from/large") == large("store/copied"));
    assert_eq!(dial.dialed.load(Ordering::Relaxed), 2, "the server asked by another way");
}

/// A malformed request is a stream error (RFC 9114 4.1.2). The connection continues.
#[test]
fn malformed_requests_are_reset() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    std::fs::write(files.path().join("store/f"), "0123456789").unwrap();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str, Result<u16, u64>);
    const MALFORMED: Result<u16, u64> = Err(0x10e);
    let cases: [Case; 22] = [
        ("GET", &[], "", Ok(200)),
        ("GET", &[("te", "trailers")], "", Ok(200)),
        ("GET", &[("te", "gzip")], "", MALFORMED),
        ("GET", &[("te", "trailers, gzip")], "", MALFORMED),
        ("GET", &[("connection", "close")], "", MALFORMED),
        ("GET", &[("keep-alive", "timeout=5")], "", MALFORMED),
        ("GET", &[("proxy-connection", "close")], "", MALFORMED),
        ("GET", &[("upgrade", "h2c")], "", MALFORMED),
        ("GET", &[("host", "server.nic-offload.test"), ("host", "server.nic-offload.test")], "", MALFORMED),
        ("GET", &[("content-length", "4")], "", MALFORMED),
        ("GET", &[("content-length", "0")], "text", MALFORMED),
        ("GET", &[("content-length", "4")], "text", Ok(200)),
        ("HEAD", &[("content-length", "4")], "", MALFORMED),
        ("GET", &[("content-length", "100000000")], "", Ok(413)),
        ("PUT", &[("transfer-encoding", "chunked")], "text", MALFORMED),
        ("PUT", &[("content-length", "5"), ("content-length", "4")], "text", MALFORMED),
        ("PUT", &[("content-length", "+4")], "text", MALFORMED),
        ("PUT", &[("content-length", "3")], "text", MALFORMED),
        ("PUT", &[("content-length", "5")], "text", MALFORMED),
        ("PUT", &[("content-length", "4"), ("if-match", "\"stale\"")], "text", Ok(412)),
        ("PUT", &[("content-length", "4"), ("x-trailer", "connection")], "text", MALFORMED),
        ("PUT", &[("content-length", "4")], "text", Ok(201)),
    ];
    let asking = dial.clone();
    let client = bed.host(1).clone();
    bed.run(client.spawn("client", async move {
        let connection = asking.quic("", 443).await.unwrap();
        let (mut driver, mut requests) = h3::client::new(H3Connection(connection)).await.unwrap();
        let asked = async {
            for (at, (method, fields, body, expected)) in cases.into_iter().enumerate() {
                let path = if method == "PUT" { "new" } else { "f" };
                let uri = format!("https://server.nic-offload.test/{path}");
                let mut request = Request::builder().method(method).uri(uri);
                let mut trailers = None;
                for (name, value) in fields {
                    match *name {
                        "x-trailer" => trailers = Some(*value),
                        _ => request = request.header(*name, *value),
                    }
                }
                let answered = async {
                    let mut stream = requests.send_request(request.body(()).unwrap()).await?;
                    // The server may have reset the stream by now: its reset code is checked below.
                    if !body.is_empty() {
                        let _ = stream.send_data(body.as_bytes().into()).await;
                    }
                    if let Some(name) = trailers {
                        let fields = [(name.parse().unwrap(), "x".parse().unwrap())].into_iter().collect();
                        let _ = stream.send_trailers(fields).await;
                    }
                    let _ = stream.finish().await;
                    let head = stream.recv_response().await?;
                    while stream.recv_data().await?.is_some() {}
                    Ok::<_, h3::error::StreamError>(head)
                };
                let answer = match answered.await {
                    Ok(head) => Ok(head.status().as_u16()),
                    Err(h3::error::StreamError::RemoteTerminate { code, .. }) => Err(code.value()),
                    Err(error) => panic!("{at}: {error}"),
                };
                assert_eq!(answer, expected, "{at}: {method} {fields:?}");
            }
        };
        tokio::select! {
            () = asked => {}
            ended = driver.wait_idle() => panic!("{ended}"),
        }
    }));
    assert_eq!(std::fs::read(files.path().join("store/new")).unwrap(), b"text");
    // The malformed requests leave no files.
    assert_eq!(std::fs::read_dir(files.path().join("store")).unwrap().count(), 2);
}

/// Over HTTP/3, an answer has the same length as over HTTP/1.1 or no length (RFC 9110 8.6).
#[test]
fn answers_without_content_tell_no_wrong_length() {
    let mut bed = bed(LinkConfig::default());
    let files = CopyFiles::new();
    std::fs::write(files.path().join("store/f"), "0123456789").unwrap();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    let client = bed.host(1).clone();
    let lengths = bed.run(client.spawn("client", async move {
        let connection = dial.quic("", 443).await.unwrap();
        let (mut driver, mut requests) = h3::client::new(H3Connection(connection)).await.unwrap();
        let asked = async {
            let mut lengths = Vec::new();
            for (method, path, name, value) in [
                ("HEAD", "f", "range", "bytes=0-1"),
                ("GET", "f", "range", "bytes=0-1"),
                ("GET", "f", "if-none-match", "*"),
                ("PUT", "f", "content-length", "0"),
                ("HEAD", "", "x", "x"),
            ] {
                let uri = format!("https://server.nic-offload.test/{path}");
                let request = Request::builder().method(method).uri(uri).header(name, value).body(()).unwrap();
                let mut stream = requests.send_request(request).await.unwrap();
                stream.finish().await.unwrap();
                let head = stream.recv_response().await.unwrap();
                while stream.recv_data().await.unwrap().is_some() {}
                let length = head.headers().get("content-length").map(|length| length.to_str().unwrap().to_owned());
                lengths.push((head.status().as_u16(), length));
            }
            lengths
        };
        tokio::select! {
            lengths = asked => lengths,
            ended = driver.wait_idle() => panic!("{ended}"),
        }
    }));
    let length = |text: &str| Some(text.to_owned());
    assert_eq!(lengths, [(200, length("10")), (206, length("2")), (304, None), (204, None), (200, None)]);
}

/// One of the two servers makes the copy. This client passes on the progress and the refusal of that server.
#[test]
fn a_copy_has_servers_copy_between_them() {
    for way in [ThirdParty::Pull, ThirdParty::Push] {
        let mut bed = bed(LinkConfig::default());
        let files = CopyFiles::new();
        std::fs::copy(files.path().join("from/large"), files.path().join("store/large")).unwrap();
        let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
        let copy = || Copy::new(shell(bed.host(1)), dial.clone()).third_party(Some(way));
        let (asking, refused) = (copy(), copy());
        let refused = bed.run(refused.run(&[url("/large")], &url("/copied"))).unwrap();
        assert!(refused.failed.len() == 1 && refused.failed[0].1.contains("--tpc-allow"), "{way:?}: {refused:?}");
        let server = at(bed.host(0), &files.path().join("store")).open_to_all();
        *dial.server.lock().unwrap() = server.with_third_party(dial.clone(), 1);
        let copied = bed.run(asking.run(&[url("/large")], &url("/copied"))).unwrap();
        assert_eq!((copied.copied, &copied.failed[..]), (1, &[][..]), "{way:?}");
        let large = |name: &str| std::fs::read(files.path().join(name)).unwrap();
        assert!(large("from/large") == large("store/copied"));
    }
}

/// A closed server still answers the current requests, and then ends its connections.
#[test]
fn closed_server_completes_current_requests() {
    for (millis, rate) in [(10, None), (20, None), (30, None), (100, Some("40M"))] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = CopyFiles::new();
        std::fs::copy(files.path().join("from/large"), files.path().join("store/large")).unwrap();
        let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
        let (client, host) = (bed.host(1).clone(), bed.host(0).clone());
        let closing = dial.clone();
        shell(&client).spawn(async move {
            host.runtime().sleep(Duration::from_millis(millis)).await;
            closing.server.lock().unwrap().close();
        });
        // A slow client can still read its bytes from a closed server.
        let rate = rate.map(|rate| rate.parse().unwrap());
        let copy = Copy::new(shell(&client), dial.clone()).streams(2).rate(rate).block(4 << 20).unwrap();
        let outcome = bed.run(copy.run(&[url("/large")], &files.place("/back"))).unwrap();
        assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]), "closed after {millis} ms");
        drop((copy, dial.last.lock().unwrap().take()));
    }
}

/// A copy with a receive rate runs at that rate, though its windows are full most of the time.
#[test]
fn a_rate_is_kept() {
    let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
    let files = CopyFiles::new();
    let content = content("file", 40 << 20);
    std::fs::write(files.path().join("store/file"), &content).unwrap();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    let copy = Copy::new(shell(bed.host(1)), dial).streams(2).rate(Some("400M".parse().unwrap()));
    let copy = copy.block(32 << 20).unwrap();
    let began = bed.now();
    let outcome = bed.run(copy.run(&[url("/file")], &files.place("/back"))).unwrap();
    assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]));
    let rate = content.len() as f64 * 8.0 / (bed.now() - began).as_secs_f64();
    assert!((0.9..1.1).contains(&(rate / 4e8)), "{rate} bits per second");
}

fn at(host: &BedHost, folder: &Path) -> Server {
    Server::new(Arc::new(Rooted::open(folder).unwrap()), shell(host), ServerLimits::default())
}

/// Serves the folder `store` at the first host, and makes a dialer for the second host.
fn over(
    bed: &Testbed,
    files: &CopyFiles,
    offload: Offload,
    set_up: impl FnOnce(Server) -> Server,
) -> Arc<QuicTestDialer> {
    over_config(&|end| config(1500, offload, end), bed, files, set_up)
}

fn over_config(
    config: &dyn Fn(&str) -> Config,
    bed: &Testbed,
    files: &CopyFiles,
    set_up: impl FnOnce(Server) -> Server,
) -> Arc<QuicTestDialer> {
    let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
    let server = Arc::new(Mutex::new(set_up(at(&host, &files.path().join("store")))));
    let killed = listen(&host, config("server"), server.clone());
    let mut tls = quic_client_config(QuicCipher::Aes256Gcm, Randomness::Seeded(Seed(3)), None);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let socket = client.stack().bind_udp(None).unwrap();
    let (endpoint, driver) = Endpoint::new(socket, client.runtime(), config("client"), None).unwrap();
    let _quic_task = client.spawn("quic", driver);
    let (tls, last, dialed) = (ClientTls::new(tls).unwrap(), Mutex::default(), AtomicUsize::new(0));
    Arc::new(QuicTestDialer { endpoint, tls, host, server, killed, last, dialed })
}

/// Accepts clients at port 443 of a host for the current server, until the returned switch is used.
fn listen(host: &BedHost, config: Config, server: Arc<Mutex<Server>>) -> Arc<Notify> {
    let mut tls = quic_server_config(QuicCipher::Aes256Gcm, Randomness::Seeded(Seed(2)), None);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let socket = host.stack().bind_udp(Some(443)).unwrap();
    let tls = ServerTls::new(tls).unwrap();
    // Both servers of a test have the same reset key, so a client trusts resets from the second server.
    let reset_key = Some(ResetKey::derive(b"private key", b"server"));
    let config = config.with(|c| c.reset_key = reset_key);
    let (endpoint, driver) = Endpoint::new(socket, host.runtime(), config, Some(tls)).unwrap();
    let killed = Arc::new(Notify::new());
    let (killing, shell) = (killed.clone(), shell(host));
    let _quic_task = host.spawn("quic", async move {
        tokio::select! {
            _ = driver => {}
            () = killing.notified() => {}
        }
    });
    shell.clone().spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            let server = server.lock().unwrap().clone();
            shell.spawn(async move { server.serve_http3(connection).await });
        }
    });
    killed
}

fn config(mtu: u16, offload: Offload, end: &str) -> Config {
    let random = Some(RandomSource::from(Seed(4).derive(end)));
    offload_reservoir::quic::config(8 << 20).with(|c| (c.random, c.offload) = (random, offload)).for_mtu(mtu)
}

struct QuicTestDialer {
    endpoint: Endpoint,
    tls: ClientTls,
    host: BedHost,
    /// The server for the next connections.
    server: Arc<Mutex<Server>>,
    killed: Arc<Notify>,
    last: Mutex<Option<Connection>>,
    dialed: AtomicUsize,
}

impl Dial for QuicTestDialer {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> DialFuture<'a> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn speaks_quic(&self, _: &str, _: u16) -> bool {
        true
    }

    fn quic<'a>(&'a self, _: &'a str, port: u16) -> QuicDialFuture<'a> {
        let to = (self.host.address(), port).into();
        Box::pin(async move {
            let connecting = self.endpoint.connect(&self.tls, to, &server_name().to_str());
            let connection = connecting.map_err(io::Error::other)?.await?;
            *self.last.lock().unwrap() = Some(connection.clone());
            self.dialed.fetch_add(1, Ordering::Relaxed);
            Ok(connection)
        })
    }
}
