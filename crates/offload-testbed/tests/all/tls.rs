//! TLS over two emulated NICs in virtual time: the wire never shows plaintext, and the bytes arrive despite faults of
//! packets or devices.

use crate::rig;

use bytes::Bytes;
use core::time::Duration;
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::{Burst, Impairments, Reorder, Share};
use nic_sim::{EngineConfigs, NicConfig, TlsEngineConfig, TransmitResync};
use offload_base::Seed;
use offload_base::cost::{CpuMeter, Domain, WorkKind};
use offload_host_stack::TcpConfig;
use proptest::prelude::*;
use rig::stream::LongStream;
use rig::{CryptoPlace, MARKER, ServerEnding, Transfer, marked, streams};

fn share(share: f64) -> Share {
    Share::new(share).unwrap()
}

fn rough(loss: f64, reorder: f64) -> LinkConfig {
    let reorder = Reorder { share: share(reorder), hold: Duration::from_micros(30) };
    let impairments = Impairments { loss: share(loss), reorder: Some(reorder), ..Impairments::default() };
    LinkConfig { impairments, ..LinkConfig::default() }
}

fn random(seed: u64, bytes: usize) -> Bytes {
    let mut data = vec![0; bytes];
    Seed(seed).stream("data").fill(&mut data);
    data.into()
}

#[test]
fn the_same_seed_gives_the_same_wire() {
    let transfer =
        Transfer { link: rough(0.02, 0.02), ..Transfer::new(CryptoPlace::Nic, 7, vec![random(1, 2_000_000)]) };
    let (first, second) = (transfer.run(), transfer.run());
    assert_eq!(first.seen.len(), second.seen.len());
    assert!(first.seen == second.seen, "two runs of one seed differ on the wire");
    assert_eq!(first.counters, second.counters);
    assert_eq!(first.received, transfer.sent());
    let other = Transfer { seed: 8, ..transfer }.run();
    assert!(first.seen != other.seen, "another seed is another run");
}

#[test]
fn cpu_and_nic_make_the_same_records() {
    let writes = vec![random(1, 100_000), random(2, 1), random(3, 16_384), random(4, 40_000), random(5, 333)];
    for record_size in [100, 1400, 16_384] {
        let cpu = Transfer { record_size, ..Transfer::new(CryptoPlace::Cpu, 3, writes.clone()) };
        let nic = Transfer { who: CryptoPlace::Nic, link: rough(0.01, 0.0), ..cpu.clone() };
        let (by_cpu, by_nic) = (cpu.run(), nic.run());
        assert_eq!(by_cpu.received, cpu.sent());
        assert_eq!(by_nic.received, cpu.sent());
        let ([cpu_out, cpu_in], [nic_out, nic_in]) = (streams(&by_cpu.seen), streams(&by_nic.seen));
        assert!(cpu_out.len() > 150_000);
        assert!(cpu_out == nic_out, "what the server sends differs at records of {record_size} bytes");
        assert!(cpu_in == nic_in, "what the client sends differs at records of {record_size} bytes");
        assert!(by_nic.counters.value("tx_tls_encrypted_bytes") >= 156_000, "the NIC did it");
        assert_eq!(by_cpu.counters.value("tx_tls_encrypted_bytes"), 0);
    }
}

/// The two ways to continue after a retransmission: the peer sees the same bytes, but a different side pays.
#[test]
fn dumps_and_next_record_sync_make_the_same_wire() {
    let writes = vec![random(1, 300_000), random(2, 1), random(3, 500_000)];
    let mut afresh = 0;
    for record_size in [500, 4_000, 16_384] {
        for seed in 0..3 {
            // The CPU's run on a clean wire is the reference for both modes.
            let cpu = Transfer { record_size, ..Transfer::new(CryptoPlace::Cpu, seed, writes.clone()) };
            let by_cpu = cpu.run();
            let runs = [TransmitResync::Dump, TransmitResync::NextRecord].map(|transmit_resync| {
                let nic = NicConfig {
                    engines: EngineConfigs::default().with_transmit_resync(transmit_resync),
                    ..NicConfig::default()
                };
                let outcome = Transfer { who: CryptoPlace::Nic, link: rough(0.02, 0.01), nic, ..cpu.clone() }.run();
                assert!(outcome.received == cpu.sent(), "{transmit_resync:?}, seed {seed}");
                outcome
            });
            let expected = streams(&by_cpu.seen);
            for run in &runs {
                assert!(streams(&run.seen) == expected, "records of {record_size} bytes, seed {seed}");
            }
            // Each mode must have used its own way, or the comparison would be empty.
            let [dumps, next] = &runs;
            assert!(dumps.counters.value("tx_tls_dump_bytes") > 0);
            assert_eq!(next.counters.value("tx_tls_dump_bytes"), 0);
            afresh += next.counters.value("tx_tls_next_record");
            let (sealed, by_device) = (next.counters.value("tx_tls_needs_software"), 800_000 / record_size as u64);
            assert!(
                (1..by_device / 2).contains(&sealed),
                "{sealed} of {by_device} records: most are still the device's"
            );
        }
    }
    assert!(afresh > 0, "records that were under way when part of them was sent again");
}

#[test]
fn on_a_clean_wire_the_hosts_do_no_crypto() {
    let meter = CpuMeter::new();
    // The server does not read after its close_notify, so the client's last words are not part of the transfer.
    let writes = vec![random(1, 1_000_000); 8];
    let transfer =
        Transfer { meter: Some(meter), end: ServerEnding::Forget, ..Transfer::new(CryptoPlace::Nic, 1, writes) };
    let outcome = transfer.run();
    assert_eq!(outcome.received, transfer.sent());
    for host in [0, 1] {
        assert_eq!(outcome.report.cpu(Domain::Host(host), WorkKind::Crypto), Duration::ZERO, "host {host}");
        assert!(outcome.report.cpu(Domain::Host(host), WorkKind::Stack) > Duration::ZERO, "host {host} was metered");
    }
    let meter = CpuMeter::new();
    let outcome = Transfer { who: CryptoPlace::Cpu, meter: Some(meter), ..transfer }.run();
    for host in [0, 1] {
        assert!(
            outcome.report.cpu(Domain::Host(host), WorkKind::Crypto) > Duration::ZERO,
            "in software host {host} does"
        );
    }
}

#[test]
fn ipv6_carries_the_same_records_as_ipv4() {
    let writes = vec![random(1, 400_000), random(2, 7), random(3, 90_000)];
    for who in [CryptoPlace::Cpu, CryptoPlace::Nic] {
        let four = Transfer { link: rough(0.01, 0.01), ..Transfer::new(who, 3, writes.clone()) };
        let six = Transfer { ipv6: true, ..four.clone() };
        let [by_four, by_six] = [four.run(), six.run()];
        assert!(by_four.received == four.sent() && by_six.received == six.sent(), "{who:?}");
        let ether_type = |frame: &[u8]| [frame[12], frame[13]];
        assert!(by_six.seen.len() > 300 && by_six.seen.iter().all(|seen| ether_type(&seen.frame.data) == [0x86, 0xdd]));
        for outcome in [by_four, by_six] {
            let counted = |name| outcome.counters.value(name);
            let (sealed, opened) = (counted("tx_tls_encrypted_bytes"), counted("rx_tls_decrypted_bytes"));
            let expected = if who == CryptoPlace::Nic { (true, true, true) } else { (false, false, false) };
            assert_eq!((sealed >= 490_007, opened > 100_000, counted("tx_tls_dump_bytes") > 0), expected, "{who:?}");
        }
    }
}

#[test]
fn plaintext_never_leaves_despite_loss_and_resets() {
    let ms = |times: &[u64]| times.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>();
    for seed in 0..5 {
        let transfer = Transfer {
            link: rough(0.02, 0.02),
            resets: ms(&[1, 4, 5, 12, 30]),
            client_resets: ms(&[2, 4, 15]),
            ..Transfer::new(CryptoPlace::Nic, seed, vec![marked(256 * 1024); 60])
        };
        let outcome = transfer.run();
        assert!(outcome.received == transfer.sent(), "seed {seed}");
        for seen in &outcome.seen {
            // Any twelve consecutive bytes of the marker count as a leak, because ciphertext does not contain them by
            // chance.
            let leaked = shows_the_marker(&seen.frame.data);
            assert!(!leaked, "seed {seed}: plaintext at {:?}", seen.at);
        }
        // The device sealed much of the stream, was reset, lost its contexts and got new ones.
        let counted = |name| outcome.counters.value(name);
        let facts = (counted("resets"), counted("tx_tls_encrypted_packets"), counted("tx_tls_dump_packets"));
        assert!(facts.0 >= 6 && facts.1 > 1_000 && facts.2 > 100, "seed {seed}: {facts:?}");
        assert!(counted("tx_tls_needs_software") > 0, "seed {seed}: the transport had records sealed");
        assert!(counted("tx_tls_ctx") >= 5, "seed {seed}: the device was given keys again");
    }
}

/// Returns whether twelve consecutive bytes are from the repeated marker.
fn shows_the_marker(bytes: &[u8]) -> bool {
    let repeated = MARKER.repeat(2);
    let mut parts = (0..MARKER.len()).map(|at| &repeated[at..at + 12]);
    parts.any(|part| memchr::memmem::find(bytes, part).is_some())
}

#[test]
fn a_stream_lives_on_after_its_application() {
    let us = Duration::from_micros;
    let mut by_device = 0;
    for end in [ServerEnding::Drop, ServerEnding::Forget] {
        for seed in 0..6 {
            let transfer = Transfer {
                end,
                link: rough(0.03, 0.01),
                resets: vec![us(300), us(1_500)],
                ..Transfer::new(CryptoPlace::Nic, seed, vec![marked(1_000_000); 4])
            };
            let outcome = transfer.run();
            assert!(outcome.received == transfer.sent(), "{end:?}, seed {seed}");
            assert_eq!(outcome.counters.value("resets"), 2);
            // After a reset nobody asks for offload again, because the application is gone.
            by_device += outcome.counters.value("tx_tls_encrypted_packets");
        }
    }
    assert!(by_device > 1_000, "{by_device} packets before the first resets");
}

#[test]
fn a_nic_without_room_leaves_the_flow_to_software() {
    let nic = NicConfig {
        engines: TlsEngineConfig { contexts: 1, ..TlsEngineConfig::default() }.into(),
        ..NicConfig::default()
    };
    let transfer = Transfer { nic, ..Transfer::new(CryptoPlace::Nic, 1, vec![random(1, 200_000)]) };
    let outcome = transfer.run();
    assert_eq!(outcome.received, transfer.sent());
    let refused = outcome.client_tls.offload_refused + outcome.server_tls.unwrap().offload_refused;
    // Each NIC has one context, so one of the two directions is refused at each end.
    assert_eq!(refused, 2, "one direction of each end");
    let without = NicConfig {
        engines: TlsEngineConfig { contexts: 0, ..TlsEngineConfig::default() }.into(),
        ..NicConfig::default()
    };
    let transfer = Transfer { nic: without, ..transfer };
    assert_eq!(transfer.run().received, transfer.sent());
}

#[test]
fn nic_without_offloads_suffices() {
    let nic = NicConfig { checksum_offload: false, tso_max_bytes: 0, ..NicConfig::default() };
    let transfer = Transfer { nic, ..Transfer::new(CryptoPlace::Cpu, 1, vec![random(1, 300_000)]) };
    let outcome = transfer.run();
    assert_eq!(outcome.received, transfer.sent());
    assert_eq!(outcome.counters.value("tx_tso_packets"), 0);
}

/// With `NIC_OFFLOAD_LONG=1` and `--nocapture`, in release, each stream is one gibibyte, and the test prints a table.
#[test]
fn a_long_stream_never_stalls() {
    let long = std::env::var_os("NIC_OFFLOAD_LONG").is_some_and(|long| long == "1");
    let bytes = if long { 1 << 30 } else { 16 << 20 };
    if !long {
        eprintln!("skipped: streams of 1 GiB; 16 MiB instead. NIC_OFFLOAD_LONG=1 asks for the long ones");
    }
    println!("wire            stream   virtual s  Gbit/s  longest gap ms  timeouts  retransmitted  host s");
    // The last column is the number of consecutive timeouts that chance may cause. With 5 % loss there are hundreds of
    // timeouts, and each retransmission or its acknowledgment is lost with a chance of one in ten.
    for (wire, loss, reorder, most_in_a_row) in [
        ("clean", 0.0, 0.0, 0),
        ("1 % loss", 0.01, 0.0, 4),
        ("5 % loss", 0.05, 0.0, 7),
        ("5 % reordering", 0.0, 0.05, 0),
    ] {
        for (stream, tls) in [("tcp", None), ("tls-nic", Some(CryptoPlace::Nic))] {
            let begun = std::time::Instant::now();
            let course = LongStream { tls, seed: 1, bytes, link: rough(loss, reorder) }.run().expect(wire);
            let timeouts = course.counters.value("TcpExtTCPTimeouts");
            println!(
                "{wire:15} {stream:8} {:9.3} {:7.3} {:15.3} {timeouts:9} {:14} {:7.1}",
                course.took.as_secs_f64(),
                bytes as f64 * 8.0 / course.took.as_secs_f64() / 1e9,
                course.longest_gap.as_secs_f64() * 1e3,
                course.counters.value("TcpRetransSegs"),
                begun.elapsed().as_secs_f64(),
            );
            // RFC 6298 (5.5): each consecutive timeout doubles the time to the next. Round trips are microseconds, so
            // the first timeout is the minimum.
            let in_a_row = u32::try_from(timeouts).unwrap_or(u32::MAX).min(most_in_a_row);
            // RFC 8985 (7): if an acknowledgment is lost with no data after it, a probe asks for another one, and the
            // answer to the probe may be delayed.
            let probed = if loss > 0.0 { TcpConfig::default().delayed_ack } else { Duration::ZERO };
            let explained =
                TcpConfig::default().min_rto * (2u32.pow(in_a_row) - 1) + probed + Duration::from_millis(20);
            assert!(course.longest_gap <= explained, "{wire}, {stream}: {:?} without data", course.longest_gap);
            assert!(course.took < Duration::from_secs(600), "{wire}, {stream}: {:?}", course.took);
            if let Some(CryptoPlace::Nic) = tls {
                assert!(course.counters.value("tx_tls_encrypted_bytes") >= bytes, "{wire}: the NIC sealed it all");
            }
        }
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Any record and write sizes, MTU, loss, order, duplication, corruption and buffers: the stream arrives unchanged,
    /// on CPU and on NIC.
    #[test]
    fn the_stream_arrives(
        nic in any::<bool>(),
        seed: u64,
        record_size in prop_oneof![1usize..200, 200usize..16_384, Just(16_384)],
        writes in prop::collection::vec(prop_oneof![1usize..20, 20usize..20_000], 1..12),
        mtu in 576u16..9000,
        loss in 0.0..0.06f64,
        reorder in 0.0..0.1f64,
        duplicate in 0.0..0.05f64,
        corrupt in 0.0..0.03f64,
        burst in 0.0..0.02f64,
        receive_buffer in 40_000usize..400_000,
        resets in prop::collection::vec(0u64..2_000, 0..3),
        client_resets in prop::collection::vec(0u64..2_000, 0..2),
        end in prop_oneof![Just(ServerEnding::Close), Just(ServerEnding::Drop), Just(ServerEnding::Forget)],
        tso in prop_oneof![Just(0), Just(65_536), Just(256 << 10)],
        next_record in any::<bool>(),
        wait in prop_oneof![Just(0u64), 1u64..50],
    ) {
        let mut transfer = Transfer::new(if nic { CryptoPlace::Nic } else { CryptoPlace::Cpu }, seed, Vec::new());
        transfer.writes = writes.iter().zip(0..).map(|(bytes, number)| random(number, *bytes)).collect();
        // Small records are many, so the transfer is kept short.
        let most = record_size * 400;
        let mut left = most;
        // Whole writes are removed, so that the rest keeps its sizes.
        transfer.writes.retain(|write| { left = left.saturating_sub(write.len()); left > 0 });
        transfer.record_size = record_size;
        transfer.nic.mtu = mtu;
        let transmit_resync = if next_record { TransmitResync::NextRecord } else { TransmitResync::Dump };
        transfer.nic.engines = transfer.nic.engines.with_transmit_resync(transmit_resync);
        transfer.nic.tso_max_bytes = tso;
        // Super-segments beyond 64 KiB are tested in both directions, so the receiver joins as many bytes.
        if tso > 65_536 {
            transfer.nic.lro_max_bytes = tso;
            transfer.nic.lro_wait = Duration::from_micros(wait);
        }
        transfer.tcp.receive_buffer = receive_buffer;
        // A burst may lose every repetition of a single segment, so the retry limits are high.
        transfer.tcp.syn_retries = 100;
        transfer.tcp.syn_ack_retries = 100;
        transfer.tcp.retries = 100;
        transfer.tcp.orphan_retries = 100;
        transfer.link.impairments = Impairments {
            loss: share(loss),
            duplicate: share(duplicate),
            corrupt: share(corrupt),
            burst_loss: Some(Burst { share: share(burst), mean_length: 3.0 }),
            reorder: Some(Reorder { share: share(reorder), hold: Duration::from_micros(40) }),
            ..Impairments::default()
        };
        transfer.resets = resets.into_iter().map(Duration::from_micros).collect();
        transfer.client_resets = client_resets.into_iter().map(Duration::from_micros).collect();
        transfer.end = end;
        let outcome = transfer.run();
        prop_assert!(outcome.received == transfer.sent());
    }
}
