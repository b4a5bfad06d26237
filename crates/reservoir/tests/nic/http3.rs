//! Over HTTP/3, with packets sealed and opened by the CPUs and by the NICs.

use super::{Files, ROUND_TRIP, bed, content, shell, url};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use offload_api::QuicCipher;
use offload_base::RandomSource;
use offload_reservoir::copy::Copy;
use offload_reservoir::remote::{Dial, Dialed, QuicDialed};
use offload_reservoir::rooted::Rooted;
use offload_reservoir::tokens::Tokens;
use offload_reservoir::{Limits, Server};
use offload_testbed::identity::{Randomness, quic_client_config, quic_server_config, server_name};
use offload_testbed::wire::LinkConfig;
use offload_testbed::wire::impairment::{Impairments, Reorder, Share};
use offload_testbed::{BedHost, Seed, Testbed};
use quic_offload::http3::ALPN;
use quic_offload::{ClientTls, Config, Connection, Endpoint, Offload, ServerTls};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

#[test]
fn packets_are_protected_by_the_cpus_and_by_the_nics() {
    let share = |share| Share::new(share).unwrap();
    let reorder = Some(Reorder { share: share(0.01), hold: Duration::from_micros(50) });
    let impairments = Impairments { loss: share(0.01), reorder, ..Impairments::default() };
    for offload in [Offload::None, Offload::Both] {
        let mut bed = bed(LinkConfig { impairments, ..LinkConfig::default() });
        let files = Files::new();
        let dial = over(&bed, &files, offload, Server::open_to_all);
        files.there_and_back(&mut bed, dial);
        let counters = bed.counters();
        let (sealed, opened) = (counters.value("quic_tx_pkts"), counters.value("quic_rx_pkts"));
        let by_nic = offload == Offload::Both;
        assert!((sealed > 5000 && opened > 5000) == by_nic, "{:?}", counters.moved().collect::<Vec<_>>());
    }
}

/// Many requests are under way on one connection: blocks wait for no block before them.
#[test]
fn a_stream_does_not_wait_a_round_trip_for_each_block() {
    let mut bed = bed(LinkConfig { delay: ROUND_TRIP / 2, ..LinkConfig::default() });
    let files = Files::new();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    for round_trips in files.by_one_stream(&mut bed, dial) {
        assert!(round_trips < 30.0, "{round_trips} round trips");
    }
}

/// Four hundred small files go as packs, whose answers may be longer than what asks for them.
#[test]
fn many_small_files_go_together() {
    let mut bed = bed(LinkConfig::default());
    let files = Files::new();
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

/// The server refuses the first block of a file before it has come, with its reason.
#[test]
fn a_refusal_comes_before_the_body_is_sent() {
    let mut bed = bed(LinkConfig::default());
    let files = Files::new();
    let tokens = "[[token]]\nname = \"reader\"\nrights = [\"read\"]\nsha256 = \"".to_owned()
        + "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n"; // of "abc"
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

/// A copy is dropped at many instants; the next one, over another connection, makes it whole.
#[test]
fn a_copy_that_is_dropped_anywhere_is_made_whole_by_the_next() {
    for millis in [1, 2, 5, 9, 14, 20] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = Files::new();
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

/// A connection that has ended is not asked again: the next request makes another.
#[test]
fn a_connection_that_ended_is_made_anew() {
    let mut bed = bed(LinkConfig::default());
    let files = Files::new();
    let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
    let copy = Copy::new(shell(bed.host(1)), dial.clone());
    let up = bed.run(copy.run(&[files.place("/from/large")], &url("/one"))).unwrap();
    assert_eq!((up.copied, &up.failed[..]), (1, &[][..]));
    let ended = dial.last.lock().unwrap().take().unwrap();
    ended.close(7, "");
    let up = bed.run(copy.run(&[files.place("/from/large")], &url("/two"))).unwrap();
    assert_eq!((up.copied, &up.failed[..]), (1, &[][..]));
}

/// A server that is begun anew under a copy knows nothing of its upload, until the copy tells it; the journal has what had arrived.
#[test]
fn a_copy_goes_on_at_a_server_that_is_begun_anew() {
    for millis in [2, 4, 8, 16, 24, 32, 40] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = Files::new();
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

/// What is under way when a server is closed is answered, and its connections end then.
#[test]
fn a_server_that_is_closed_ends_what_is_under_way() {
    for (millis, rate) in [(10, None), (20, None), (30, None), (100, Some("40M"))] {
        let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
        let files = Files::new();
        std::fs::copy(files.path().join("from/large"), files.path().join("store/large")).unwrap();
        let dial = over(&bed, &files, Offload::Both, Server::open_to_all);
        let (client, host) = (bed.host(1).clone(), bed.host(0).clone());
        let closing = dial.clone();
        shell(&client).spawn(async move {
            host.runtime().sleep(Duration::from_millis(millis)).await;
            closing.server.lock().unwrap().close();
        });
        // What a slow client has not read is there though the server is closed.
        let rate = rate.map(|rate| rate.parse().unwrap());
        let copy = Copy::new(shell(&client), dial.clone()).streams(2).rate(rate).block(4 << 20).unwrap();
        let outcome = bed.run(copy.run(&[url("/large")], &files.place("/back"))).unwrap();
        assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]), "closed after {millis} ms");
        drop((copy, dial.last.lock().unwrap().take()));
    }
}

/// A copy that takes what comes at a rate is as fast as that, though windows are full most of the time.
#[test]
fn a_rate_is_kept() {
    let mut bed = bed(LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() });
    let files = Files::new();
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
    Server::new(Arc::new(Rooted::open(folder).unwrap()), shell(host), Limits::default())
}

/// Serves the folder `store` at the first host, and connects to it from the second.
fn over(bed: &Testbed, files: &Files, offload: Offload, set_up: impl FnOnce(Server) -> Server) -> Arc<ByQuic> {
    let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
    let server = Arc::new(Mutex::new(set_up(at(&host, &files.path().join("store")))));
    let random = |end| Some(RandomSource::from(Seed(4).derive(end)));
    let config = |end| Config { random: random(end), offload, ..offload_reservoir::quic::config(8 << 20) };
    let mut tls = quic_server_config(QuicCipher::Aes256Gcm, Randomness::Seeded(Seed(2)), None);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let socket = host.stack().bind_udp(Some(443)).unwrap();
    let tls = ServerTls::new(tls).unwrap();
    let (endpoint, driver) = Endpoint::new(socket, host.runtime(), config("server"), Some(tls)).unwrap();
    let _runs = host.spawn("quic", driver);
    let (of_server, serving) = (shell(&host), server.clone());
    shell(&host).spawn(async move {
        while let Some(connection) = endpoint.accept().await {
            let server = serving.lock().unwrap().clone();
            of_server.spawn(async move { server.serve_http3(connection).await });
        }
    });
    let mut tls = quic_client_config(QuicCipher::Aes256Gcm, Randomness::Seeded(Seed(3)), None);
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let socket = client.stack().bind_udp(None).unwrap();
    let (endpoint, driver) = Endpoint::new(socket, client.runtime(), config("client"), None).unwrap();
    let _runs = client.spawn("quic", driver);
    Arc::new(ByQuic { endpoint, tls: ClientTls::new(tls).unwrap(), host, server, last: Mutex::default() })
}

struct ByQuic {
    endpoint: Endpoint,
    tls: ClientTls,
    host: BedHost,
    /// Who serves those that come.
    server: Arc<Mutex<Server>>,
    last: Mutex<Option<Connection>>,
}

impl Dial for ByQuic {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> Dialed<'a> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn quic<'a>(&'a self, _: &'a str, port: u16) -> Option<QuicDialed<'a>> {
        let to = (self.host.address(), port).into();
        Some(Box::pin(async move {
            let connecting = self.endpoint.connect(&self.tls, to, &server_name().to_str());
            let connection = connecting.map_err(io::Error::other)?.await?;
            *self.last.lock().unwrap() = Some(connection.clone());
            Ok(connection)
        }))
    }
}
