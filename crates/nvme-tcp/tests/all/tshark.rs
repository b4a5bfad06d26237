//! Connections between our host and our controller, checked by tshark: several requests to transfer at a time and data
//! in many PDUs, for which there is no other peer. Every PDU must be valid and every digest correct, made by host,
//! controller or NIC.

use crate::bed;

use bed::NvmeNetwork;
use nvme_tcp::exercise::Exercise;
use nvme_tcp::host::Offload;
use nvme_tcp::target::TransportConfig;
use offload_base::Seed;
use offload_testbed::Capture;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::Command;

#[test]
fn tshark_accepts_every_pdu_and_digest() {
    if !have_tshark() {
        return;
    }
    for (seed, offload) in [(81, Offload::None), (82, Offload::PlaceAndCheck)] {
        let file = NvmeCaptureFile::new(&format!("nvme-{seed}"));
        let resends = exercise(seed, offload, &file);
        assert_eq!(resends, 0, "tshark cannot reorder retransmitted segments");
        let pdus = read(&file);
        let of = |kind: &str| pdus.iter().filter(|pdu| pdu.kind == kind).count();
        assert!(of("6") > 50 && of("7") > 200 && of("9") > 50, "H2CData, C2HData, R2T: {}", pdus.len());
        assert!(max_requests_at_a_time(&pdus) > 1, "several requests to transfer at a time");
        let digests = pdus.iter().filter(|pdu| pdu.data_digest == "1").count();
        assert!(digests >= of("6") + of("7"), "each with data has a digest: {digests}");
        for pdu in &pdus {
            assert!(!pdu.malformed, "{pdu:?}");
            for status in [&pdu.header_digest, &pdu.data_digest] {
                assert!(status.is_empty() || status == "1", "a digest is wrong: {pdu:?}");
            }
        }
    }
}

/// Shows that the test above can fail.
#[test]
fn tshark_detects_a_wrong_digest() {
    if !have_tshark() {
        return;
    }
    let file = NvmeCaptureFile::new("nvme-spoilt");
    exercise(83, Offload::None, &file);
    let mut bytes = std::fs::read(&file.0).unwrap();
    // The middle of the capture is data.
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file.0, bytes).unwrap();
    let wrong = |pdu: &DissectedPdu| [&pdu.header_digest, &pdu.data_digest].iter().any(|status| **status == "0");
    assert!(read(&file).iter().any(wrong));
}

/// Writes and reads in small PDUs with a capture. Returns the number of retransmitted segments.
fn exercise(seed: u64, offload: Offload, file: &NvmeCaptureFile) -> u64 {
    let transport = TransportConfig {
        in_capsule: 512,
        max_data: 8_192,
        request_bytes: 16_384,
        requests: 4,
        data_bytes: 10_000,
        ..TransportConfig::default()
    };
    let output = BufWriter::new(std::fs::File::create(&file.0).unwrap());
    let capture = Capture::new(output).unwrap();
    let mut bed = NvmeNetwork::captured(seed, transport, &capture);
    let mut config = bed.host_config();
    (config.header_digest, config.data_digest, config.requests, config.offload) = (true, true, 4, offload);
    let host = bed.connect(config);
    bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        let exercise = Exercise { bytes: 3 << 20, blocks: 2_048, command_bytes: 96 << 10, ..Exercise::new(Seed(seed)) };
        exercise.run(&disk, |_| ()).await.unwrap();
        host.close().await;
    });
    capture.finish().unwrap();
    bed.counters().value("RetransSegs")
}

/// A PDU as decoded by tshark.
#[derive(Debug)]
struct DissectedPdu {
    kind: String,
    header_digest: String,
    data_digest: String,
    command: String,
    last: bool,
    malformed: bool,
}

fn read(file: &NvmeCaptureFile) -> Vec<DissectedPdu> {
    let output = Command::new("tshark")
        .args(["-r", file.0.to_str().unwrap(), "-d", "tcp.port==4420,nvme-tcp", "-T", "pdml"])
        .args(["-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE", "-Y", "nvme-tcp"])
        .output()
        .expect("tshark starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // PDML, because the field output of tshark mixes the PDUs of a packet.
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("_ws.malformed"), "tshark finds a PDU malformed");
    // A `proto` element for each PDU of a packet, with fields in order.
    text.split("<proto name=\"nvme-tcp\"")
        .skip(1)
        .map(|part| {
            let part = part.split("</packet>").next().unwrap_or(part);
            let shown = |name: &str| {
                let from = part.split(&format!("<field name=\"{name}\"")).nth(1)?;
                Some(from.split("show=\"").nth(1)?.split('"').next()?.to_owned())
            };
            DissectedPdu {
                kind: shown("nvme-tcp.type").unwrap_or_default(),
                header_digest: shown("nvme-tcp.hdgst.status").unwrap_or_default(),
                data_digest: shown("nvme-tcp.ddgst.status").unwrap_or_default(),
                command: shown("nvme-tcp.cmd.cid").unwrap_or_default(),
                last: shown("nvme-tcp.flags.pdu.data_last").is_some_and(|flag| flag == "1"),
                malformed: part.contains("_ws.malformed"),
            }
        })
        .collect()
}

/// Returns the maximum number of outstanding requests of a command.
fn max_requests_at_a_time(pdus: &[DissectedPdu]) -> i32 {
    let mut outstanding = std::collections::BTreeMap::<&str, i32>::new();
    let mut most = 0;
    for pdu in pdus {
        let count = outstanding.entry(&pdu.command).or_default();
        match pdu.kind.as_str() {
            "9" => *count += 1,
            "6" if pdu.last => *count -= 1,
            _ => {}
        }
        most = most.max(*count);
    }
    most
}

fn have_tshark() -> bool {
    match Command::new("tshark").arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let _ =
                writeln!(std::io::stderr(), "skipped: tshark is not installed, so no other program checked the PDUs");
            false
        }
        output => output.expect("tshark starts").status.success(),
    }
}

/// A file that is removed on drop.
struct NvmeCaptureFile(PathBuf);

impl NvmeCaptureFile {
    fn new(name: &str) -> NvmeCaptureFile {
        NvmeCaptureFile(std::env::temp_dir().join(format!("{name}-{}.pcapng", std::process::id())))
    }
}

impl Drop for NvmeCaptureFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
