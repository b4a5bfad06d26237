//! Everything at once, by chance: a wire that loses, overtakes, doubles and spoils; devices that are reset, small or absent; keys that
//! change; strangers' packets, and real ones that strangers send again, with other phase bits, fixed bits and numbers; clients whose port
//! changes; paths that each end gives up; devices that disappear at any step; servers that forget all they knew; reads that are cancelled. Whatever happens, streams are equal, nothing plain is on the wire, and contexts are given back.
//!
//! `QUIC_SCHEDULES` says how many are tried; 16 without it.

use crate::rig::{self, PORT, Plan, World, nic, without_quic};
use bytes::Bytes;
use core::time::Duration;
use nic_sim::{NicConfig, QuicEngineConfig};
use offload_base::Seed;
use offload_wire::impairment::{Impairments, Reorder, Share};
use offload_wire::{FrameRecorder, LinkConfig};
use proptest::prelude::*;
use quic_offload::{Closed, Config, Endpoint, Offload, StreamError};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
struct Schedule {
    seed: u64,
    /// In percent.
    loss: u8,
    reorder: u8,
    duplicate: u8,
    corrupt: u8,
    nics: [u8; 2],
    offloads: [u8; 2],
    resets: u8,
    forged: u16,
    update_every: Option<u32>,
    six: bool,
    /// There are two paths, and the client, or the server, or both give up one, each another.
    second: bool,
    gives_up: [bool; 2],
    /// Times that the client's port changes, and how often, in microseconds.
    moves: (u8, u16),
    /// The device of the client, or of the server, disappears with this call of the socket.
    disappears: [Option<u16>; 2],
    /// The server forgets all that it knew, so many microseconds after it began.
    forgets: Option<u16>,
    bytes: [u32; 2],
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let wire = (0u8..6, 0u8..6, 0u8..4, 0u8..4);
    let ends = (any::<[u8; 2]>(), any::<[u8; 2]>(), 0u8..12, 0u16..300);
    let rest = (prop::option::of(20_000u32..200_000), any::<[bool; 4]>(), [1u32..400_000, 0u32..200_000]);
    let disappears = || prop::option::weighted(0.25, 0u16..4000);
    let more = ((0u8..6, 30u16..2000), prop::option::weighted(0.125, 0u16..3000), [disappears(), disappears()]);
    (any::<u64>(), wire, ends, rest, more).prop_map(
        |(
            seed,
            (loss, reorder, duplicate, corrupt),
            (nics, offloads, resets, forged),
            (update_every, [six, second, gives_up_near, gives_up_far], bytes),
            (moves, forgets, disappears),
        )| {
            Schedule {
                seed,
                loss,
                reorder,
                duplicate,
                corrupt,
                nics,
                offloads,
                resets,
                forged,
                update_every,
                six,
                second,
                gives_up: [gives_up_near, gives_up_far],
                // Half of the clients stay where they are.
                moves: (moves.0.saturating_sub(3), moves.1),
                disappears,
                forgets,
                bytes,
            }
        },
    )
}

fn nic_of(kind: u8) -> NicConfig {
    match kind % 6 {
        0 => without_quic(),
        1 => NicConfig { engines: QuicEngineConfig { contexts: 1 }.into(), ..nic() },
        2 => NicConfig { context_cache_bytes: 208, ..nic() },
        3 => NicConfig { udp_segmentation: false, ..nic() },
        4 => NicConfig { queues: 3, ..nic() },
        _ => nic(),
    }
}

/// Whether there was no path left, as may be where ends give up different ones, and what they tell each other is lost.
fn run(schedule: &Schedule) -> bool {
    let share = |percent: u8| Share::new(f64::from(percent) / 100.0).unwrap();
    // A server whose challenge to a new address is lost sends no other (noq-proto 1.4.0), and has the connection starve: see docs/quic.md.
    let lossless = if schedule.moves.0 > 0 { 0 } else { 1 };
    let reorder = Reorder { share: share(schedule.reorder), hold: Duration::from_micros(30) };
    let impairments = Impairments {
        loss: share(schedule.loss * lossless),
        duplicate: share(schedule.duplicate),
        corrupt: share(schedule.corrupt * lossless),
        reorder: Some(reorder),
        ..Impairments::default()
    };
    let link = LinkConfig { delay: Duration::from_micros(5), impairments, ..LinkConfig::default() };
    let mut world = World::new(schedule.seed, schedule.nics.map(nic_of), link);
    let offload = |kind: u8| [Offload::Both, Offload::Transmit, Offload::Receive, Offload::None][usize::from(kind % 4)];
    let [near, far] = schedule.offloads.map(offload);
    let paths = if schedule.second { 3 } else { 1 };
    // A client that does not know that its port changed, or that a stranger's copy of its packet came first, sends nothing, unless it is to.
    let keep_alive = (schedule.moves.0 > 0 || schedule.forged > 0).then_some(Duration::from_millis(100));
    let configs = [
        world
            .config("near")
            .with(|c| (c.offload, c.device_cids_a_path, c.paths, c.keep_alive) = (near, 1, paths, keep_alive)),
        world.config("far").with(|c| (c.offload, c.paths) = (far, paths)),
    ];
    let (hosts, count) = ([world.near.clone(), world.far.clone()], schedule.resets);
    let resets = world.near.spawn("resets", async move {
        for reset in 0..count {
            hosts[0].runtime().sleep(Duration::from_micros(97 * u64::from(reset + 1))).await;
            hosts[usize::from(reset % 2)].reset_device();
        }
    });
    let (host, to, seed, count) = (world.near.clone(), world.to(schedule.six), Seed(schedule.seed), schedule.forged);
    let (wire, payload_at) = (world.wire.clone(), if schedule.six { 62 } else { 42 });
    let forging = world.near.spawn("forger", async move {
        let socket = host.stack().bind_udp(Some(6000)).unwrap();
        let mut random = seed.stream("forger");
        let mut real = None;
        for at in 0..count {
            if at % 64 == 40 {
                real = last_to_server(&wire, payload_at);
            }
            let mut packet = vec![0; 21 + random.below(1400) as usize];
            random.fill(&mut packet);
            packet[0] &= if random.chance(0.8) { 0x7f } else { 0xff };
            // Or one that somebody saw on the wire, with another phase, number or fixed bit, or as it is.
            if let Some(real) = real.as_ref().filter(|_| random.chance(0.5)) {
                packet = Vec::clone(real);
                packet[0] ^= [0, 4, 0x44, 0x40, 3][random.below(5) as usize];
            }
            let _lost = socket.send_to(Bytes::from(packet), to).await;
            host.runtime().sleep(Duration::from_micros(3)).await;
        }
    });
    let Schedule { six, second, gives_up, moves, mut disappears, .. } = *schedule;
    if lossless == 0 {
        // A device that disappears loses the packets that it has not sent yet.
        disappears = [None; 2];
    }
    let every = schedule.update_every.map(|bytes| bytes as usize);
    let plan =
        Plan { six, bytes: schedule.bytes.map(|bytes| bytes as usize), every, second, gives_up, moves, disappears };
    let (done, lost) = match schedule.forgets {
        None => {
            let done = world.transfer_by(configs, plan);
            (format!("{done:?}"), done.lost)
        }
        Some(after) => (forget(&mut world, configs, six, after), false),
    };
    drop((resets, forging));
    let left = world.near.device_contexts() + world.far.device_contexts();
    assert_eq!(left, 0, "contexts are given back: {done}");
    lost
}

/// The server forgets all that it knew, and another one, with the same keys, takes its place: the client is told, or hears nothing, and
/// connects again.
fn forget(world: &mut World, configs: [Config; 2], six: bool, after: u16) -> String {
    let [near, far] = configs.map(|config| config.with(|c| c.idle = Duration::from_secs(2)));
    let (client, driver) = world.client(near);
    let (server, stop) = rig::stoppable(&world.far, PORT, far.clone(), world.server_tls());
    let (tls, to, host, again) = (world.client_tls(), world.to(six), world.far.clone(), world.server_tls());
    let second = Arc::new(Mutex::new(None));
    let (endpoint, waiting) = (second.clone(), world.far.clone());
    let serving = world.far.spawn("server", async move {
        let first = host.spawn("first", async move { serve(&server, None).await });
        host.runtime().sleep(Duration::from_micros(after.into())).await;
        stop.stop();
        first.await;
        host.runtime().sleep(Duration::from_micros(50)).await;
        assert_eq!(host.device_contexts(), 0, "a driver that is dropped gives its contexts back");
        let (server, driver) = rig::start(&host, PORT, far, Some(again));
        *endpoint.lock().unwrap() = Some(server.clone());
        let served = serve(&server, Some(SERVED)).await;
        driver.await.unwrap();
        served
    });
    let asking = world.near.spawn("client", async move {
        let mut ends = Vec::new();
        loop {
            let sent = async {
                let connection = rig::connect(&client, &tls, to).await?;
                let mut stream = connection.open_uni().await?;
                for at in (0..200_000).step_by(50_000) {
                    stream.send(rig::body(at, 50_000)).await?;
                }
                stream.finish()?;
                Ok::<_, StreamError>(connection.closed().await)
            };
            match sent.await {
                Ok(why) | Err(StreamError::Closed(why)) => ends.push(why),
                Err(error) => panic!("{error:?}"),
            }
            match ends.last() {
                Some(Closed::ByPeer { code, .. }) if *code == SERVED => break,
                Some(Closed::Reset | Closed::TimedOut) => {}
                other => panic!("{other:?}"),
            }
        }
        client.close(0, "");
        client.drained().await;
        driver.await.unwrap();
        let second = second.lock().unwrap().take().unwrap();
        second.close(0, "");
        ends
    });
    let (ends, served) = world.bed.run(async move {
        let (ends, served) = (asking.await, serving.await);
        // Contexts are given back.
        waiting.runtime().sleep(Duration::from_micros(100)).await;
        (ends, served)
    });
    assert!(served > 0);
    assert!(!world.wire.contains(rig::MARKER), "nothing leaves as it is");
    format!("{ends:?}")
}

/// Reads a stream of each connection, one after the other, and closes it if there is a code for that. How many were read to their end.
async fn serve(server: &Endpoint, close: Option<u64>) -> u64 {
    let mut served = 0;
    while let Some(connection) = server.accept().await {
        let Ok(mut stream) = connection.accept_uni().await else { continue };
        let mut at = 0;
        while let Ok(Some(data)) = stream.receive(1 << 14).await {
            assert!(data == rig::body(at, data.len()), "from {at} on");
            at += data.len() as u64;
        }
        if let (200_000, Some(code)) = (at, close) {
            served += 1;
            connection.close(code, "");
        }
        connection.closed().await;
    }
    served
}

/// The code with which a server says that it has everything.
const SERVED: u64 = 9;

/// The last packet with a short header that went to the server.
fn last_to_server(wire: &FrameRecorder, payload_at: usize) -> Option<Vec<u8>> {
    let to_server = |frame: &[u8]| {
        let port = frame.get(payload_at - 6..payload_at - 4);
        frame.len() > payload_at + 40 && port == Some(&PORT.to_be_bytes()) && frame[payload_at] < 0x80
    };
    let seen = wire.seen();
    let last = seen.iter().rev().find(|seen| to_server(&seen.frame.data))?;
    Some(last.frame.data[payload_at..].to_vec())
}

#[test]
fn whatever_happens_streams_are_equal_and_nothing_plain_leaves() {
    let cases = std::env::var("QUIC_SCHEDULES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(16);
    let lost = core::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    runner
        .run(&schedules(), |schedule| {
            lost.set(lost.get() + u32::from(run(&schedule)));
            Ok(())
        })
        .unwrap();
    assert!(lost.get() <= cases / 10_000, "{} of {cases} connections had no path left", lost.get());
}

/// Found among others: the second of two probes had no room for what the state machine writes without looking.
#[test]
fn probes_that_ask_for_acknowledgements_are_sent_one_by_one() {
    assert!(!run(&Schedule {
        seed: 16047324336330710090,
        loss: 4,
        reorder: 2,
        duplicate: 0,
        corrupt: 0,
        nics: [0, 0],
        offloads: [0, 0],
        resets: 1,
        forged: 111,
        update_every: Some(20_000),
        six: false,
        second: false,
        gives_up: [false; 2],
        moves: (0, 0),
        disappears: [None; 2],
        forgets: None,
        bytes: [100_001, 0],
    }));
}

/// Found among others: a client that moved while its second path was validated, and gave up the first, was never answered again.
#[test]
fn a_client_that_moves_when_its_second_path_is_there_goes_on_over_it_alone() {
    for (seed, [reorder, duplicate], nic, forged, bytes) in
        [(13978326830654105697, [3, 3], 34, 24, 8888), (11285453956409508927, [1, 0], 100, 20, 7011)]
    {
        assert!(!run(&Schedule {
            seed,
            loss: 0,
            reorder,
            duplicate,
            corrupt: 0,
            nics: [0, nic],
            offloads: [0, 0],
            resets: 0,
            forged,
            update_every: None,
            six: true,
            second: true,
            gives_up: [true, false],
            moves: (1, 30),
            disappears: [None; 2],
            forgets: None,
            bytes: [bytes, 0],
        }));
    }
}
