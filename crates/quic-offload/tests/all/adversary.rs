//! Everything at once, by chance: a wire that loses, overtakes, doubles and spoils; devices that are reset, small or absent; keys that
//! change; strangers' packets, and real ones that strangers send again, with other phase bits, fixed bits and numbers; reads that are
//! cancelled. Whatever happens, streams are equal, nothing plain is on the wire, and contexts are given back.
//!
//! `QUIC_SCHEDULES` says how many are tried; 16 without it.

use crate::rig::{PORT, World, nic, without_quic};
use bytes::Bytes;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_base::Seed;
use offload_wire::impairment::{Impairments, Reorder, Share};
use offload_wire::{LinkConfig, Recorder};
use proptest::prelude::*;
use quic_offload::{Config, Offload};

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
    /// There are two paths.
    second: bool,
    bytes: [u32; 2],
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let wire = (0u8..6, 0u8..6, 0u8..4, 0u8..4);
    let ends = (any::<[u8; 2]>(), any::<[u8; 2]>(), 0u8..12, 0u16..300);
    let rest = (prop::option::of(20_000u32..200_000), any::<[bool; 2]>(), [1u32..400_000, 0u32..200_000]);
    (any::<u64>(), wire, ends, rest).prop_map(
        |(
            seed,
            (loss, reorder, duplicate, corrupt),
            (nics, offloads, resets, forged),
            (update_every, [six, second], bytes),
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
                bytes,
            }
        },
    )
}

fn nic_of(kind: u8) -> NicConfig {
    match kind % 6 {
        0 => without_quic(),
        1 => NicConfig { quic_contexts: 1, ..nic() },
        2 => NicConfig { context_cache_bytes: 208, ..nic() },
        3 => NicConfig { udp_segmentation: false, ..nic() },
        4 => NicConfig { queues: 3, ..nic() },
        _ => nic(),
    }
}

fn run(schedule: &Schedule) {
    let share = |percent: u8| Share::new(f64::from(percent) / 100.0).unwrap();
    let reorder = Reorder { share: share(schedule.reorder), hold: Duration::from_micros(30) };
    let impairments = Impairments {
        loss: share(schedule.loss),
        duplicate: share(schedule.duplicate),
        corrupt: share(schedule.corrupt),
        reorder: Some(reorder),
        ..Impairments::default()
    };
    let link = LinkConfig { delay: Duration::from_micros(5), impairments, ..LinkConfig::default() };
    let mut world = World::new(schedule.seed, schedule.nics.map(nic_of), link);
    let offload = |kind: u8| [Offload::Both, Offload::Transmit, Offload::Receive, Offload::None][usize::from(kind % 4)];
    let [near, far] = schedule.offloads.map(offload);
    let paths = if schedule.second { 3 } else { 1 };
    let configs = [
        Config { offload: near, device_cids_a_path: 1, paths, ..world.config("near") },
        Config { offload: far, paths, ..world.config("far") },
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
    let bytes = schedule.bytes.map(|bytes| bytes as usize);
    let every = schedule.update_every.map_or(usize::MAX, |bytes| bytes as usize);
    let done = world.transfer_by(configs, schedule.six, bytes, every, schedule.second);
    drop((resets, forging));
    let left = world.near.device_contexts() + world.far.device_contexts();
    assert_eq!(left, 0, "contexts are given back: {done:?}");
}

/// The last packet with a short header that went to the server.
fn last_to_server(wire: &Recorder, payload_at: usize) -> Option<Vec<u8>> {
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
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    runner
        .run(&schedules(), |schedule| {
            run(&schedule);
            Ok(())
        })
        .unwrap();
}
