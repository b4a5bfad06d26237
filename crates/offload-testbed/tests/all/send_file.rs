//! Files over a lossy wire, on the CPU and on the NICs, unchanged or modified while being sent: sent bytes stay sent,
//! and no stream position is ever retransmitted with a different byte.

use crate::keyed;
use crate::rig;

use core::time::Duration;
use keyed::{accept, connect};
use ktls_offload::{FilePieces, InPlace, Offload, SendFileError, send_file};
use nic_sim::NicConfig;
use nic_sim::wire::{FrameRecorder, Impairments, LinkConfig};
use offload_api::{TlsSuite, TlsVersion};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_host_stack::TcpConfig;
use offload_testbed::Testbed;
use rig::{CryptoPlace, MARKER, marked, streams};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A modification of the file after half of it was read.
type Spoil = fn(&File);

struct SendOutcome {
    received: Vec<u8>,
    sent: Result<u64, SendFileError>,
    counters: CounterSet,
}

/// Sends a file of marked data in 16 KiB records over a wire that loses 2 % and duplicates 2 %, and modifies the file
/// half way. Checks the invariants of the wire.
fn sent_over_a_bad_wire(name: &str, who: CryptoPlace, spoil: Spoil) -> SendOutcome {
    let sample = SendFileSample::new(name);
    let recorder = FrameRecorder::default();
    let impairments =
        Impairments { loss: "0.02".parse().unwrap(), duplicate: "0.02".parse().unwrap(), ..Impairments::default() };
    let mut bed = Testbed::builder(Seed(7))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig { impairments, ..LinkConfig::default() })
        .recorded(&recorder)
        .build()
        .unwrap();
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let (sender, path) = (server.clone(), sample.0.clone());
    let serving = server.spawn("application", async move {
        let mut stream = accept(&sender, 7, (TlsVersion::Tls13, TlsSuite::Aes128Gcm)).await.unwrap();
        // The flow must stay on the device, which reads the file's pages again for retransmissions.
        stream.set_retransmit_limit(None);
        if who == CryptoPlace::Nic {
            stream.offload(Offload { tx: true, rx: false });
        }
        // Two halves, so that the change happens while the first half may still be retransmitted.
        let half = open(&path, 0..BYTES / 2);
        // Opened before the change: a reopened file would be a new version with valid metadata.
        let rest = open(&path, BYTES / 2..BYTES);
        let mut sent = 0;
        for (mut pieces, spoil) in [(half, Some(spoil)), (rest, None)] {
            sent += send_file(&mut stream, &mut pieces).await?;
            if let Some(spoil) = spoil {
                spoil(&File::options().write(true).open(&path).unwrap());
            }
        }
        stream.close().await.map_err(SendFileError::Stream)?;
        Ok(sent)
    });
    let fetching = client.clone().spawn("application", async move {
        let mut stream = connect(&client, &server, 7, (TlsVersion::Tls13, TlsSuite::Aes128Gcm)).await.unwrap();
        if who == CryptoPlace::Nic {
            stream.offload(Offload { tx: false, rx: true });
        }
        let mut received = Vec::new();
        let ended = loop {
            match stream.next_chunk().await {
                Ok(Some(chunk)) => received.extend_from_slice(&chunk),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.kind()),
            }
        };
        (received, ended)
    });
    let (received, ended) = bed.run(fetching);
    let sent = bed.run(serving);
    // An error at the server drops its stream, which must not look like the end of the file.
    assert_eq!(ended, if sent.is_ok() { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof) });
    let counters = bed.counters();
    let seen = recorder.take();
    let [out, _] = streams(&seen);
    assert!(out.len() > received.len(), "checked: a byte that was sent again was the same");
    assert!(counters.value("TcpRetransSegs") > 20, "a good wire shows nothing");
    let leaked =
        |seen: &nic_sim::wire::tap::RecordedFrame| memchr::memmem::find(&seen.frame.data, &MARKER[..12]).is_some();
    assert!(!seen.iter().any(leaked), "plaintext on the wire");
    SendOutcome { received, sent, counters }
}

#[test]
fn a_file_left_alone_arrives_whole() {
    let expected = marked(BYTES as usize);
    for who in [CryptoPlace::Cpu, CryptoPlace::Nic] {
        let outcome = sent_over_a_bad_wire("whole", who, |_| ());
        assert_eq!(outcome.sent.unwrap(), BYTES);
        assert!(outcome.received == expected, "{who:?}");
        let dumped = outcome.counters.value("tx_tls_dump_bytes");
        assert_eq!(dumped > 0, who == CryptoPlace::Nic, "{who:?}: the device read again from the middle of records");
    }
}

#[test]
fn overwritten_file_is_reported_and_sent_bytes_stay() {
    let overwrite: Spoil = |mut file| {
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(&vec![0xee; BYTES as usize]).unwrap();
    };
    let expected = marked(BYTES as usize);
    for who in [CryptoPlace::Cpu, CryptoPlace::Nic] {
        let outcome = sent_over_a_bad_wire("overwritten", who, overwrite);
        let error = outcome.sent.unwrap_err();
        assert!(matches!(error, SendFileError::Changed { at } if at == BYTES / 2), "{error}");
        assert!(outcome.received == expected[..BYTES as usize / 2], "{who:?}");
    }
}

#[test]
fn truncated_file_is_reported_and_sent_bytes_stay() {
    let expected = marked(BYTES as usize);
    for who in [CryptoPlace::Cpu, CryptoPlace::Nic] {
        let outcome = sent_over_a_bad_wire("cut", who, |file| file.set_len(BYTES / 2 + 5).unwrap());
        let error = outcome.sent.unwrap_err();
        assert!(
            matches!(error, SendFileError::Truncated { at, end } if (at, end) == (BYTES / 2 + 5, BYTES)),
            "{error}"
        );
        assert!(outcome.received == expected[..BYTES as usize / 2], "{who:?}");
    }
}

/// Opens both halves before the file is modified.
fn open(path: &Path, range: core::ops::Range<u64>) -> FilePieces {
    let file = File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    FilePieces::new(Arc::new(InPlace), file, &metadata, range).unwrap()
}

/// A file for one run, with an old modification time, so that any change is visible.
struct SendFileSample(PathBuf);

impl SendFileSample {
    fn new(name: &str) -> SendFileSample {
        let path = std::env::temp_dir().join(format!("nic-offload-send-{name}-{}", std::process::id()));
        std::fs::write(&path, marked(BYTES as usize)).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        SendFileSample(path)
    }
}

impl Drop for SendFileSample {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

const BYTES: u64 = 4 << 20;
