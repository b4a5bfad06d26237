//! Tenants over tunnels: their data arrives, and nobody on the wire can read it.

use bytes::Bytes;
use core::time::Duration;
use nic_sim::switch::TunnelKind;
use nic_sim::wire::{FrameRecorder, Impairments, LinkConfig, Reorder, Share};
use offload_api::{EspSuite, SegmentStream, TxTag};
use offload_base::Seed;
use offload_testbed::overlay::Overlay;
use offload_testbed::{BedHost, Testbed};
use tokio::io::AsyncReadExt;

/// Sends `bytes` of a repeated word between virtual machines. Returns whether the bytes arrived unchanged.
async fn transfer(from: BedHost, to: BedHost, port: u16, bytes: usize) -> bool {
    let mut listener = to.stack().listen(port, 1).expect("a free port");
    let address = (to.address(), port).into();
    let sent: Bytes = WORD.iter().copied().cycle().take(bytes).collect();
    let sending = {
        let sent = sent.clone();
        from.clone().spawn("sender", async move {
            let mut stream = from.stack().connect(None, address).await?;
            stream.send(sent, TxTag::PLAIN);
            stream.finish();
            // The stream ends only after the other side has received all data.
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await
        })
    };
    let receiving = to.spawn("receiver", async move {
        let mut stream = listener.accept().await?;
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        std::io::Result::Ok(received)
    });
    let received = receiving.await.expect("no reset");
    sending.await.expect("no reset");
    received == sent
}

fn shows(frame: &[u8]) -> bool {
    frame.windows(WORD.len()).any(|window| window == WORD)
}

fn run(overlay: &Overlay, link: LinkConfig, bytes: usize) -> (Testbed, FrameRecorder) {
    let recorder = FrameRecorder::default();
    let builder = overlay.hosts(Testbed::builder(Seed(1))).wire(overlay.left(), overlay.right(), link);
    let mut bed = builder.recorded(&recorder).build().expect("virtual time needs no threads");
    overlay.install(&mut bed).expect("both NICs take everything");
    for number in 0..overlay.vms {
        let (left, right) = (bed.host(overlay.left_vm(number)).clone(), bed.host(overlay.right_vm(number)).clone());
        // Tenants send in alternating directions, so that both NICs encapsulate and decapsulate.
        let (from, to) = if number % 2 == 0 { (left, right) } else { (right, left) };
        assert!(bed.run_within(Duration::from_secs(60), transfer(from, to, 7, bytes)), "tenant {number}");
    }
    (bed, recorder)
}

#[test]
fn every_tunnel_carries_tenants_and_esp_hides_them() {
    for tunnel in [TunnelKind::Vxlan, TunnelKind::Gretap, TunnelKind::Geneve] {
        for ipv6 in [false, true] {
            for suite in [None, Some(EspSuite::Aes128Gcm), Some(EspSuite::Aes256Gcm)] {
                let overlay = Overlay { tunnel: Some(tunnel), ipv6, suite, sas: 2, ..Overlay::new(2) };
                let (bed, recorder) = run(&overlay, LinkConfig::default(), 100_000);
                let case = format!("{tunnel:?} {ipv6} {suite:?}");
                let counters = bed.counters();
                let frames: Vec<_> = recorder.seen().into_iter().map(|seen| seen.frame.data).collect();
                assert!(frames.len() > 140 && frames.iter().all(|frame| frame.len() <= 1514), "{case}");
                assert_eq!(frames.iter().any(|frame| shows(frame)), suite.is_none(), "{case}");
                let longest = frames.iter().map(|frame| frame.len()).max();
                assert!(longest >= Some(1514 - 3), "no room is left unused: {longest:?} {case}");
                let protected = counters.value("eswitch_ipsec_tx_pkts");
                assert_eq!(protected, if suite.is_some() { frames.len() as u64 } else { 0 }, "{case}");
                assert_eq!(counters.value("eswitch_encap_packets"), frames.len() as u64, "{case}");
                assert_eq!(counters.value("eswitch_decap_packets"), frames.len() as u64, "{case}");
                assert_eq!(counters.value("eswitch_rx_steer_missed_packets"), 0, "no hypervisor sees any: {case}");
            }
        }
    }
}

#[test]
fn a_bad_wire_loses_no_byte() {
    let share = Share::new(0.01).expect("a share");
    let reorder = Some(Reorder { share, hold: Duration::from_micros(30) });
    let impairments = Impairments { loss: share, duplicate: share, reorder, ..Impairments::default() };
    let link = LinkConfig { impairments, ..LinkConfig::default() };
    let (bed, _) = run(&Overlay::new(2), link, 1_000_000);
    let counters = bed.counters();
    let doubled = counters.value("wire_duplicated");
    assert!(counters.value("wire_lost") > 0 && counters.value("wire_reordered") > 0 && doubled > 0);
    assert_eq!((counters.value("eswitch_ipsec_rx_drop"), counters.value("XfrmInStateSeqError")), (doubled, doubled));
}

#[test]
fn the_same_seed_makes_the_same_frames() {
    let frames = || {
        let (_bed, recorder) = run(&Overlay { sas: 3, ..Overlay::new(3) }, LinkConfig::default(), 50_000);
        recorder.seen().into_iter().map(|seen| (seen.at, seen.frame)).collect::<Vec<_>>()
    };
    assert!(frames() == frames());
}

const WORD: &[u8] = b"a word that nobody else would say by chance ";
