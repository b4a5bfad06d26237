//! Records of 1 byte to 16 KiB, both ways, of every version and suite, over a wire that loses and reorders: NICs and
//! hosts make the same bytes.

use crate::keyed;
use crate::rig;

use bytes::Bytes;
use core::time::Duration;
use keyed::{StreamSide, TlsCipher, accept, connect};
use ktls_offload::{KtlsStream, Offload, TlsCounters};
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use nic_sim::wire::{FrameRecorder, LinkConfig};
use nic_sim::{EngineConfigs, NicConfig, TransmitResync};
use offload_api::{TlsSuite, TlsVersion};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::{BedHost, Testbed};
use proptest::prelude::*;
use rig::{CryptoPlace, streams};
use std::io;

/// Two ends that send each other records, one side after the other.
#[derive(Clone, Debug)]
struct RecordExchange {
    cipher: TlsCipher,
    /// Content length of each record.
    records: Vec<usize>,
    loss: f64,
    reorder: f64,
    transmit_resync: TransmitResync,
    seed: u64,
}

/// The result of one run.
struct ExchangeResult {
    read: [Vec<u8>; 2],
    wire: [Vec<u8>; 2],
    tls: [TlsCounters; 2],
    counters: CounterSet,
}

impl RecordExchange {
    fn new(cipher: TlsCipher, records: Vec<usize>, seed: u64) -> RecordExchange {
        RecordExchange { cipher, records, loss: 0.01, reorder: 0.01, transmit_resync: TransmitResync::Dump, seed }
    }

    /// Returns the content that a side writes.
    fn content(&self, side: StreamSide) -> Bytes {
        let mut content = vec![0; self.records.iter().sum()];
        Seed(self.seed).stream(&format!("{side:?} writes")).fill(&mut content);
        content.into()
    }

    fn run(&self, who: CryptoPlace) -> ExchangeResult {
        let nic = NicConfig {
            engines: EngineConfigs::default().with_transmit_resync(self.transmit_resync),
            ..NicConfig::default()
        };
        let share = |share| Share::new(share).unwrap();
        let reorder = Reorder { share: share(self.reorder), hold: Duration::from_micros(30) };
        let impairments = Impairments { loss: share(self.loss), reorder: Some(reorder), ..Impairments::default() };
        let recorder = FrameRecorder::default();
        let mut bed = Testbed::builder(Seed(self.seed))
            .host("server", nic.clone(), TcpConfig::default())
            .host("client", nic, TcpConfig::default())
            .wire(0, 1, LinkConfig { impairments, ..LinkConfig::default() })
            .recorded(&recorder)
            .build()
            .unwrap();
        let [serving, fetching] = StreamSide::BOTH.map(|side| {
            let host = bed.host(side as usize).clone();
            host.clone().spawn("application", run_end(self.clone(), who, side, host, bed.host(0).clone()))
        });
        // A failure must show the exchange, because its parameters are random.
        let context = format!("{self:?}");
        let (server, server_tls) = bed.run_within(ENOUGH, serving).expect(&context);
        let (client, client_tls) = bed.run_within(ENOUGH, fetching).expect(&context);
        let wire = streams(&recorder.take());
        ExchangeResult { read: [server, client], wire, tls: [server_tls, client_tls], counters: bed.counters() }
    }

    /// Runs the exchange on CPUs and on NICs, and compares the results.
    fn check(&self) -> [ExchangeResult; 2] {
        let both = [CryptoPlace::Cpu, CryptoPlace::Nic].map(|who| self.run(who));
        for left in &both {
            for side in StreamSide::BOTH {
                assert!(left.read[side as usize] == self.content(side.peer()), "{self:?}");
            }
        }
        // Device and CPU use the same keys and nonces, so every byte must be equal.
        assert!(both[0].wire == both[1].wire, "the wire sees a difference: {self:?}");
        both
    }
}

async fn run_end(
    exchange: RecordExchange,
    who: CryptoPlace,
    side: StreamSide,
    host: BedHost,
    server: BedHost,
) -> io::Result<(Vec<u8>, TlsCounters)> {
    let mut stream = match side {
        StreamSide::Server => accept(&host, exchange.seed, exchange.cipher).await?,
        StreamSide::Client => connect(&host, &server, exchange.seed, exchange.cipher).await?,
    };
    // The policy would move lossy flows to software, and the device would not be tested.
    stream.set_retransmit_limit(None);
    if who == CryptoPlace::Nic {
        stream.offload(Offload::BOTH);
        stream.ready().await?;
    }
    let (mut read, all) = (Vec::new(), exchange.records.iter().sum());
    match side {
        StreamSide::Client => {
            // The server's word tells that its NIC is ready.
            read_some(&mut stream, &mut read, WORD.len()).await?;
            read.clear();
            write(&exchange, side, &mut stream).await?;
            read_some(&mut stream, &mut read, all).await?;
        }
        StreamSide::Server => {
            stream.send_chunk(WORD.into()).await?;
            read_some(&mut stream, &mut read, all).await?;
            write(&exchange, side, &mut stream).await?;
        }
    }
    stream.close().await?;
    // Each end reads up to the other's close_notify, so that no unread data causes a reset.
    while stream.next_chunk().await?.is_some() {}
    Ok((read, *stream.counters()))
}

/// Sends each record by itself.
async fn write(exchange: &RecordExchange, side: StreamSide, stream: &mut KtlsStream<TcpStream>) -> io::Result<()> {
    let mut content = exchange.content(side);
    for length in &exchange.records {
        stream.set_record_size(*length);
        stream.send_chunk(content.split_to(*length)).await?;
    }
    Ok(())
}

async fn read_some(stream: &mut KtlsStream<TcpStream>, read: &mut Vec<u8>, bytes: usize) -> io::Result<()> {
    while read.len() < bytes {
        let chunk = stream.next_chunk().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        read.extend_from_slice(&chunk);
    }
    Ok(())
}

/// Limit of virtual time for all waits: covers timeouts, but catches a wait without an end.
const ENOUGH: Duration = Duration::from_secs(3600);
const WORD: &str = "go";

fn ciphers() -> Vec<TlsCipher> {
    let suites = [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305];
    let versions = [TlsVersion::Tls12, TlsVersion::Tls13];
    versions.into_iter().flat_map(|version| suites.map(|suite| (version, suite))).collect()
}

#[test]
fn every_size_of_every_suite_both_ways() {
    // Sizes around the limits of blocks, tags, segments and records.
    let mut sizes: Vec<usize> = (1..=34).collect();
    for around in [64, 128, 256, 1024, 1448, 2896, 4096, 8192, 16_000] {
        sizes.extend(around - 17..around + 18);
    }
    sizes.extend(16_384 - 20..=16_384);
    for (cipher, seed) in ciphers().into_iter().zip(1..) {
        // A random order of every third size; the other sizes go to other suites.
        let mut sizes: Vec<usize> = sizes.iter().copied().skip(seed as usize % 3).step_by(3).collect();
        let mut order = Seed(seed).stream("order");
        for last in (1..sizes.len()).rev() {
            sizes.swap(last, order.below(last as u64 + 1) as usize);
        }
        let records = sizes.len() as u64;
        let [cpu, nic] = RecordExchange { loss: 0.0, reorder: 0.0, ..RecordExchange::new(cipher, sizes, seed) }.check();
        for (on_cpu, on_nic) in cpu.tls.iter().zip(&nic.tls) {
            assert_eq!((on_cpu.tx_records_device, on_cpu.rx_records_device), (0, 0));
            assert!(on_nic.tx_records_device > records, "{cipher:?}: all of them, and close_notify");
            assert!(on_nic.rx_records_device >= records, "{cipher:?}: {on_nic:?}");
        }
        assert_eq!(cpu.counters.value("rx_tls_decrypted_bytes"), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes_over_a_rough_wire(
        cipher in prop::sample::select(ciphers()),
        records in prop::collection::vec(prop_oneof![1usize..40, 1usize..3_000, 1usize..=16_384], 1..40),
        loss in 0.0..0.05f64,
        reorder in 0.0..0.05f64,
        next_record: bool,
        seed: u64,
    ) {
        let transmit_resync = if next_record { TransmitResync::NextRecord } else { TransmitResync::Dump };
        RecordExchange { loss, reorder, transmit_resync, ..RecordExchange::new(cipher, records, seed) }.check();
    }
}
