//! All faults at once, at random: a wire that loses, reorders, duplicates, corrupts, overlaps and shreds segments;
//! sequence numbers that pass 2^31 and 2^32; NICs that are reset and have little room; ends that change keys once or
//! many times at once, ask for offload repeatedly, cancel pending writes and reads, drop their stream or one half, or
//! stop polling it. In every run:
//!
//! - each end reads the other end's data, to the byte and to the end, or gets a TLS error where the wire changed bytes
//!   so that TCP's checksum could not tell;
//! - the counters of changed keys add up;
//! - the wire never shows plaintext, and never sends one stream position with two different bytes;
//! - in the end no device and no driver has a context, no stack has a connection, and the written buffers belong to
//!   their writer alone again.
//!
//! `PROPTEST_CASES` sets the number of schedules.

use crate::keyed::{StreamSide, TlsCipher, accept, connect};
use bytes::Bytes;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use ktls_offload::{KtlsStream, Offload, TlsCounters};
use nic_sim::wire::impairment::{Burst, Impairments, Reorder, Share};
use nic_sim::wire::tap::RecordedFrame;
use nic_sim::wire::{Crossing, FrameRecorder, Impairment, LinkConfig, TapDirection};
use nic_sim::{EngineConfigs, NicConfig, TlsEngineConfig, TransmitResync};
use offload_api::{Direction as Half, FlowKey, ResyncMode, TlsKey, TlsSuite, TlsVersion, TypedContexts};
use offload_base::counters::Counters;
use offload_base::{Rng, Seed, Seq};
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::{BedHost, Testbed};
use proptest::prelude::*;
use smoltcp::wire::{EthernetFrame, IpAddress, Ipv4Packet, TcpPacket, TcpSeqNumber};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

/// One schedule of faults and actions.
#[derive(Clone, Debug)]
struct FaultSchedule {
    seed: u64,
    cipher: TlsCipher,
    mtu: u16,
    tso: bool,
    contexts: u32,
    cached: usize,
    pooled: usize,
    resync: ResyncMode,
    transmit_resync: TransmitResync,
    impairments: Impairments,
    overlap: f64,
    /// Share of segments in which two words change places. TCP's checksum does not detect this.
    swap: f64,
    /// Share of segments that arrive in several parts, down to one byte.
    shred: f64,
    /// The sequence number of both SYNs.
    initial_sequence: Option<u32>,
    /// Reset times of each side's NIC, in microseconds from the start.
    resets: [Vec<u64>; 2],
    plans: [EndPlan; 2],
}

/// The actions of one end.
#[derive(Clone, Debug)]
struct EndPlan {
    record_size: usize,
    limit: Option<f64>,
    steps: Vec<EndStep>,
    end: EndAction,
}

#[derive(Clone, Debug)]
enum EndStep {
    Write(usize),
    /// Writes, and gives up after this many wake-ups.
    AbandonWrite {
        bytes: usize,
        wakes: usize,
    },
    Rekey {
        both: bool,
    },
    /// Changes keys this many times without data in between.
    Flood {
        times: usize,
        both: bool,
    },
    Offload(Offload),
    /// Neither reads nor writes for this many microseconds.
    Sleep(u64),
    /// Reads available data, up to this many chunks.
    Read(usize),
    /// Polls whether the device has the receive direction.
    Ready,
}

/// The final action of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndAction {
    /// Closes, and reads until the other end has closed.
    Close,
    /// Drops the stream.
    Drop,
    /// Closes the stream, and never polls it again.
    Forget,
    /// Begins to read, drops the reading half, writes more and closes.
    DropReader,
    /// Closes, drops the writing half, and reads until the other end has closed.
    DropWriter,
}

/// The result of one end.
#[derive(Default)]
struct EndResult {
    written: Vec<EndWrite>,
    /// Whether all writes succeeded.
    all_written: bool,
    read: Vec<u8>,
    /// Result of reading to the end. `None` if the end did not read on.
    read_to_end: Option<io::Result<()>>,
    forgotten: Option<Box<dyn Send>>,
    /// Counters of a stream that was closed.
    counters: Option<TlsCounters>,
}

/// One write of an end.
struct EndWrite {
    data: Bytes,
    /// Whether the write was given up, so that perhaps only its first part was sent. All its bytes are equal, and
    /// differ from the bytes of neighbouring abandoned writes.
    abandoned: bool,
}

impl FaultSchedule {
    /// Runs the schedule.
    ///
    /// # Errors
    /// A description of the first violated property.
    fn play(&self) -> Result<(), TestCaseError> {
        let nic = NicConfig {
            mtu: self.mtu,
            tso_max_bytes: if self.tso { 65_536 } else { 0 },
            // 208 bytes is the size of a TLS context, so the cache holds `cached` contexts.
            context_cache_bytes: self.cached * 208,
            engines: EngineConfigs::from(TlsEngineConfig {
                contexts: self.contexts,
                context_pool: self.pooled,
                resync: self.resync,
                ..TlsEngineConfig::default()
            })
            .with_transmit_resync(self.transmit_resync),
            ..NicConfig::default()
        };
        let recorder = FrameRecorder::default();
        let tcp = TcpConfig { initial_sequence: self.initial_sequence, ..patient() };
        let mut bed = Testbed::builder(Seed(self.seed))
            .host("server", nic.clone(), tcp.clone())
            .host("client", nic, tcp)
            .wire(0, 1, LinkConfig { impairments: self.impairments, ..LinkConfig::default() })
            .recorded(&recorder)
            .build()?;
        // Each direction has its own seed: equal faults in both directions would hide bugs.
        for (number, link) in [&bed.cable(0).left_to_right, &bed.cable(0).right_to_left].into_iter().enumerate() {
            let seed = Seed(self.seed).derive(&format!("direction {number}"));
            let mut link = link.lock().unwrap();
            // The order matters: a segment is swapped and shredded after it was overlapped, as on a real path.
            link.impair(Box::new(Overlap::new(self.overlap, self.mtu, seed.stream("overlap"))));
            link.impair(Box::new(Swap::new(self.swap, seed.stream("swap"))));
            link.impair(Box::new(Shred::new(self.shred, seed.stream("shred"))));
        }
        let hosts = StreamSide::BOTH.map(|side| bed.host(side as usize).clone());
        for (host, resets) in hosts.iter().zip(&self.resets) {
            for at in resets {
                let (host, at) = (host.clone(), Duration::from_micros(*at));
                let _runs_on = host.clone().spawn("reset", async move {
                    host.runtime().sleep(at).await;
                    host.reset_device();
                });
            }
        }
        let [serving, fetching] = StreamSide::BOTH.map(|side| {
            let host = hosts[side as usize].clone();
            host.clone().spawn("application", run_end(self.clone(), side, host, hosts[0].clone()))
        });
        // A hang is a fault too: both ends must come to an end within the limit.
        let mut ends = [bed.run_within(ENOUGH, serving)?, bed.run_within(ENOUGH, fetching)?];
        for end in &mut ends {
            // Forgotten streams live until both ends are done, so that a stack must serve streams that nobody polls.
            end.forgotten = None;
        }
        // Contexts and buffers are counted only after the stacks have closed all connections.
        bed.run_within(ENOUGH, wait_until_idle(hosts.clone()))?;
        let swapped = bed.counters().value("wire_swapped") > 0;
        for side in StreamSide::BOTH {
            self.check_read(side, &ends[side as usize], &ends[side.peer() as usize], swapped)?;
            check_rekeys(&ends[side as usize])?;
        }
        check_wire(&recorder.take(), swapped)?;
        for (host, end) in hosts.iter().zip(&ends) {
            prop_assert_eq!(host.device_contexts(), 0, "contexts are left on a device");
            prop_assert_eq!(free_places(host, self.contexts), self.contexts, "contexts are left in a driver");
            // A queue that still holds a clone of the data would leak memory on every connection.
            let free = end.written.iter().all(|written| written.data.is_unique());
            prop_assert!(free, "somebody still holds what was written");
        }
        Ok(())
    }

    fn check_read(
        &self,
        side: StreamSide,
        reader: &EndResult,
        writer: &EndResult,
        swapped: bool,
    ) -> Result<(), TestCaseError> {
        let last = follow(&reader.read, &writer.written);
        prop_assert!(last.is_some(), "{side:?} read what was not written");
        // TLS detects the changed bytes and ends the stream, so the end may be early on either side.
        if swapped {
            return Ok(());
        }
        // A dropped end answers data with a reset, so the other end may not finish writing.
        let peer_drops = self.plans[side as usize].end == EndAction::Drop;
        prop_assert!(writer.all_written || peer_drops, "{:?} could not write", side.peer());
        // A dropped stream sends no close_notify, which the reader must be able to tell from a close.
        let writer_drops = self.plans[side.peer() as usize].end == EndAction::Drop;
        match &reader.read_to_end {
            None => {}
            // All data arrives, but without close_notify nothing marks the end.
            Some(Err(error)) if writer_drops && error.kind() == io::ErrorKind::UnexpectedEof => {
                prop_assert!(last == Some(true), "{side:?} read less than was written");
            }
            Some(Ok(())) if writer_drops => prop_assert!(false, "{side:?} takes a drop for a close"),
            Some(Ok(())) => prop_assert!(last == Some(true), "{side:?} read less than was written"),
            Some(Err(error)) => prop_assert!(false, "{side:?} could not read on: {error}"),
        }
        Ok(())
    }
}

async fn run_end(schedule: FaultSchedule, side: StreamSide, host: BedHost, server: BedHost) -> io::Result<EndResult> {
    let (seed, cipher) = (schedule.seed, schedule.cipher);
    let plan = schedule.plans[side as usize].clone();
    let mut stream = match side {
        StreamSide::Server => accept(&host, seed, cipher).await?,
        StreamSide::Client => connect(&host, &server, seed, cipher).await?,
    };
    stream.set_record_size(plan.record_size);
    stream.set_retransmit_limit(plan.limit);
    let mut content = Seed(seed).stream(&format!("{side:?} writes"));
    let mut ended = EndResult::default();
    // A failed step is no fault by itself; `check_read` decides with the other end's plan.
    ended.all_written = take_steps(&plan, &host, &mut stream, &mut content, &mut ended).await.is_ok();
    match plan.end {
        EndAction::Drop => {}
        EndAction::Forget => {
            // The other end shows whether the close succeeded.
            let _ = stream.close().await;
            ended.counters = Some(*stream.counters());
            ended.forgotten = Some(Box::new(stream));
        }
        EndAction::DropReader => {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let mut some = [0; 100];
            let mut some = ReadBuf::new(&mut some);
            // The pending read may be woken later, after its reader is gone.
            poll_fn(|cx| Poll::Ready(Pin::new(&mut reader).poll_read(cx, &mut some).map(|_| ()))).await.is_ready();
            ended.read.extend_from_slice(some.filled());
            drop(reader);
            let data = nibbles(&mut content, 3_000);
            ended.all_written &= writer.write_all(&data).await.is_ok();
            ended.written.push(EndWrite { data, abandoned: false });
            let _ = writer.shutdown().await;
            ended.forgotten = Some(Box::new(writer));
        }
        EndAction::DropWriter => {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let _ = writer.shutdown().await;
            drop(writer);
            ended.read_to_end = Some(reader.read_to_end(&mut ended.read).await.map(|_| ()));
        }
        EndAction::Close => {
            let _ = stream.close().await;
            ended.read_to_end = Some(read_to_end(&mut stream, &mut ended.read).await);
            ended.counters = Some(*stream.counters());
        }
    }
    Ok(ended)
}

async fn take_steps(
    plan: &EndPlan,
    host: &BedHost,
    stream: &mut KtlsStream<TcpStream>,
    content: &mut Rng,
    ended: &mut EndResult,
) -> io::Result<()> {
    for step in &plan.steps {
        match step {
            EndStep::Write(bytes) => {
                write(stream, content, ended, *bytes).await?;
            }
            EndStep::AbandonWrite { bytes, wakes } => {
                // Four fill bytes alternate, so that neighbouring abandoned writes differ.
                let begun = ended.written.iter().filter(|written| written.data.first() >= Some(&ABANDONED)).count();
                // Each kind is told apart from random data by its value.
                let kind = ABANDONED + (begun % 4) as u8;
                let data = Bytes::from(vec![kind; *bytes]);
                ended.written.push(EndWrite { data: data.clone(), abandoned: true });
                if let Some(sent) = give_up_after(*wakes, stream.send_chunk(data)).await {
                    // The write was not given up, so all of it must arrive.
                    ended.written.last_mut().expect("it was just put there").abandoned = false;
                    sent?;
                }
            }
            EndStep::Rekey { both } => update_keys(stream, *both)?,
            EndStep::Flood { times, both } => {
                // An end tolerates only a limited number of key updates without data in between.
                write(stream, content, ended, 1).await?;
                (0..*times).try_for_each(|_| update_keys(stream, *both))?;
                write(stream, content, ended, 1).await?;
            }
            EndStep::Offload(ask) => {
                stream.offload(*ask);
            }
            EndStep::Sleep(micros) => host.runtime().sleep(Duration::from_micros(*micros)).await,
            EndStep::Read(chunks) => {
                for _ in 0..*chunks {
                    let chunk = poll_fn(|cx| match stream.poll_chunk(cx) {
                        Poll::Ready(chunk) => Poll::Ready(chunk),
                        Poll::Pending => Poll::Ready(Ok(None)),
                    });
                    let Some(chunk) = chunk.await? else { break };
                    ended.read.extend_from_slice(&chunk);
                }
            }
            EndStep::Ready => {
                // The result does not matter: this polls only for available events.
                let _ = poll_fn(|cx| Poll::Ready(stream.poll_ready(cx))).await;
            }
        }
    }
    Ok(())
}

async fn write(
    stream: &mut KtlsStream<TcpStream>,
    content: &mut Rng,
    ended: &mut EndResult,
    bytes: usize,
) -> io::Result<()> {
    let data = nibbles(content, bytes);
    ended.written.push(EndWrite { data: data.clone(), abandoned: false });
    stream.send_chunk(data).await
}

fn update_keys(stream: &mut KtlsStream<TcpStream>, both: bool) -> io::Result<()> {
    match stream.update_keys(both) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()), // TLS 1.2 has no key update
        updated => updated,
    }
}

/// Polls `future` for at most `wakes` wake-ups, then drops it.
async fn give_up_after<T>(wakes: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut wakes) = (pin!(future), wakes);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if wakes == 0 => Poll::Ready(None),
        Poll::Pending => {
            wakes -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Compares the read bytes with the writes. Returns whether all were read, or `None` if the bytes differ.
fn follow(read: &[u8], written: &[EndWrite]) -> Option<bool> {
    let mut rest = read;
    for EndWrite { data, abandoned } in written {
        let taken = match abandoned {
            // Any prefix of an abandoned write may have been sent.
            true => rest.iter().take(data.len()).take_while(|byte| **byte == data[0]).count(),
            false => data.len().min(rest.len()),
        };
        let (part, behind) = rest.split_at(taken);
        if part != &data[..taken] {
            return None;
        }
        if !abandoned && taken < data.len() {
            return Some(false);
        }
        rest = behind;
    }
    rest.is_empty().then_some(true)
}

async fn read_to_end(stream: &mut KtlsStream<TcpStream>, read: &mut Vec<u8>) -> io::Result<()> {
    while let Some(chunk) = stream.next_chunk().await? {
        read.extend_from_slice(&chunk);
    }
    Ok(())
}

/// Checks that each changed key was taken by the device, stayed in software, or was the last of a direction that ended.
fn check_rekeys(ended: &EndResult) -> Result<(), TestCaseError> {
    let Some(counters) = ended.counters else { return Ok(()) };
    let settled = counters.tx_rekey_device + counters.tx_rekey_sw + counters.tx_rekey_aborted;
    prop_assert_eq!(settled, counters.tx_rekey_ok);
    prop_assert!(counters.tx_rekey_aborted <= 1);
    // Reading has ended, so no key change is pending.
    if ended.read_to_end.is_some() {
        let settled = counters.rx_rekey_device + counters.rx_rekey_sw + counters.rx_rekey_aborted;
        prop_assert_eq!(settled, counters.rx_rekey_ok);
        prop_assert!(counters.rx_rekey_aborted <= 1);
    }
    Ok(())
}

/// Waits until the stacks have no connections, and then until the contexts have been removed.
async fn wait_until_idle(hosts: [BedHost; 2]) -> Result<(), TestCaseError> {
    for host in hosts {
        let mut rounds = 0;
        while host.stack().connections() > 0 {
            rounds += 1;
            prop_assert!(rounds < 10_000, "a connection never ends");
            host.runtime().sleep(Duration::from_millis(500)).await;
        }
        host.runtime().sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Returns how many contexts, of at most `contexts`, the driver can still create.
fn free_places(host: &BedHost, contexts: u32) -> u32 {
    let flow = FlowKey::tcp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[1; 16], [2; 12]).unwrap();
    host.stack().with_device(|driver| {
        let mut tls = driver.tls().expect("the NIC does TLS");
        (0..contexts).filter(|_| tls.add(&flow, Half::Transmit, Seq(0), 0, &key).is_ok()).count() as u32
    })
}

/// Searches the wire for plaintext, which consists of nibbles, and for bytes sent twice with different values, which
/// would mean a reused nonce. Inbound segments with a wrong checksum were corrupted on the way and are skipped.
fn check_wire(seen: &[RecordedFrame], swapped: bool) -> Result<(), TestCaseError> {
    for direction in [TapDirection::Outbound, TapDirection::Inbound] {
        let mut first = None;
        let mut stream: Vec<Option<u8>> = Vec::new();
        for seen in seen.iter().filter(|seen| seen.direction == direction) {
            let Some(segment) = TcpSegmentView::parse(&seen.frame.data) else { continue };
            let payload = &seen.frame.data[segment.payload..segment.end];
            // All plaintext bytes are below 0x10; sixteen such bytes in a row do not occur in ciphertext by chance.
            let longest = payload.split(|byte| *byte > 0x0f).map(<[u8]>::len).max().unwrap_or(0);
            prop_assert!(longest < 16, "{longest} bytes of plaintext at {:?}", seen.at);
            // Positions count from the byte after the SYN.
            if segment.syn && segment.intact {
                first = Some(segment.seq + 1);
            }
            // A swapped segment passes its checksum, so inbound streams cannot be compared once a swap occurred.
            let (Some(first), true) = (first, segment.intact && !(swapped && direction == TapDirection::Inbound))
            else {
                continue;
            };
            let at = segment.seq.distance_from(first) as usize;
            if at > 1 << 24 {
                continue; // the position of a SYN, or of a window probe
            }
            if stream.len() < at + payload.len() {
                stream.resize(at + payload.len(), None);
            }
            for (kept, byte) in stream[at..].iter_mut().zip(payload) {
                prop_assert!(
                    kept.is_none_or(|kept| kept == *byte),
                    "a byte was sent again as another, at {:?}",
                    seen.at
                );
                *kept = Some(*byte);
            }
        }
    }
    Ok(())
}

/// Offsets of a TCP segment in a frame.
struct TcpSegmentView {
    seq: Seq,
    syn: bool,
    fin: bool,
    payload: usize,
    end: usize,
    /// Whether the checksums are right.
    intact: bool,
}

impl TcpSegmentView {
    fn parse(frame: &[u8]) -> Option<TcpSegmentView> {
        let ip = Ipv4Packet::new_checked(EthernetFrame::new_checked(frame).ok()?.payload()).ok()?;
        let (source, destination) = (IpAddress::from(ip.src_addr()), ip.dst_addr().into());
        let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
        let end = ETHERNET + usize::from(ip.total_len());
        Some(TcpSegmentView {
            seq: Seq(tcp.seq_number().0 as u32),
            syn: tcp.syn(),
            fin: tcp.fin(),
            payload: end - tcp.payload().len(),
            end,
            intact: ip.verify_checksum() && tcp.verify_checksum(&source, &destination),
        })
    }

    /// Builds a segment with `length` bytes of the payload, from offset `at` of the frame.
    fn part(&self, frame: &[u8], at: usize, length: usize) -> Vec<u8> {
        let mut part = frame[..self.payload].to_vec();
        part.extend_from_slice(&frame[at..at + length]);
        let total = (part.len() - ETHERNET) as u16;
        let mut ip = Ipv4Packet::new_unchecked(&mut part[ETHERNET..]);
        ip.set_total_len(total);
        ip.fill_checksum();
        let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
        let mut tcp = TcpPacket::new_unchecked(ip.payload_mut());
        tcp.set_seq_number(TcpSeqNumber((self.seq + (at - self.payload) as u32).0 as i32));
        tcp.fill_checksum(&source, &destination);
        part
    }
}

offload_base::counters! {
    /// Counters of this test's impairments.
    struct Spoilt {
        /// Extra segments that overlap with the previous one.
        pub overlapped: "wire_overlapped",
        /// Segments changed so that the checksum still matches.
        pub swapped: "wire_swapped",
        /// Segments cut into several.
        pub shredded: "wire_shredded",
    }
}

/// An impairment that sends an extra segment beginning inside the previous one, as a peer does that resegments its
/// stream.
#[derive(Debug)]
struct Overlap {
    share: f64,
    mtu: usize,
    rng: Rng,
    /// The previous segment's payload and its end.
    last: Option<(Seq, Vec<u8>)>,
    counters: Spoilt,
}

impl Overlap {
    fn new(share: f64, mtu: u16, rng: Rng) -> Overlap {
        Overlap { share, mtu: mtu.into(), rng, last: None, counters: Spoilt::default() }
    }

    /// Builds the segment with a part of the previous one in front, truncated to the MTU.
    fn overlapping(&mut self, frame: &[u8], segment: &TcpSegmentView) -> Option<Vec<u8>> {
        let (end, before) = self.last.as_ref().filter(|(end, before)| *end == segment.seq && !before.is_empty())?;
        // At least one byte of the previous segment is repeated, or there would be no overlap.
        let back = 1 + self.rng.below(before.len() as u64) as usize;
        let mut cut = frame[..segment.payload].to_vec();
        cut.extend_from_slice(&before[before.len() - back..]);
        cut.extend_from_slice(&frame[segment.payload..segment.end]);
        cut.truncate(ETHERNET + self.mtu);
        let seq = *end - back as u32;
        let length = (cut.len() - ETHERNET) as u16;
        let mut ip = Ipv4Packet::new_unchecked(&mut cut[ETHERNET..]);
        ip.set_total_len(length);
        ip.fill_checksum();
        let (source, destination) = (ip.src_addr().into(), ip.dst_addr().into());
        let mut tcp = TcpPacket::new_unchecked(ip.payload_mut());
        tcp.set_seq_number(TcpSeqNumber(seq.0 as i32));
        tcp.fill_checksum(&source, &destination);
        Some(cut)
    }
}

impl Impairment for Overlap {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        let frame = crossing.frame.data.clone();
        // SYN and FIN occupy sequence numbers without payload, so these segments pass unchanged.
        let plain = TcpSegmentView::parse(&frame).filter(|segment| segment.intact && !segment.syn && !segment.fin);
        if let Some(segment) = plain.filter(|segment| segment.payload < segment.end) {
            if self.rng.chance(self.share)
                && let Some(cut) = self.overlapping(&frame, &segment)
            {
                self.counters.overlapped += 1;
                let again = Crossing { frame: cut.into(), arrives: crossing.arrives };
                // Receivers must handle both orders of overlapping segments.
                if self.rng.chance(0.5) {
                    onward(again);
                    onward(crossing);
                } else {
                    onward(crossing);
                    onward(again);
                }
            } else {
                onward(crossing);
            }
            let payload = frame[segment.payload..segment.end].to_vec();
            self.last = Some((segment.seq + payload.len() as u32, payload));
        } else {
            onward(crossing);
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// An impairment that swaps two words of a segment's payload. The sum of RFC 1071 does not detect this.
#[derive(Debug)]
struct Swap {
    share: f64,
    rng: Rng,
    counters: Spoilt,
}

impl Swap {
    fn new(share: f64, rng: Rng) -> Swap {
        Swap { share, rng, counters: Spoilt::default() }
    }
}

impl Impairment for Swap {
    fn pass(&mut self, mut crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        let segment = TcpSegmentView::parse(&crossing.frame.data).filter(|segment| segment.intact);
        if let Some(segment) = segment.filter(|segment| segment.end - segment.payload >= 4)
            && self.rng.chance(self.share)
        {
            let mut frame = crossing.frame.data.to_vec();
            let words = (segment.end - segment.payload) as u64 / 2;
            let mut word = || segment.payload + 2 * self.rng.below(words) as usize;
            let (one, other) = (word(), word());
            // Equal words would count as a swap without changing a byte.
            if frame[one..one + 2] != frame[other..other + 2] {
                frame.swap(one, other);
                frame.swap(one + 1, other + 1);
                self.counters.swapped += 1;
                crossing.frame = frame.into();
            }
        }
        onward(crossing);
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// An impairment that cuts segments into several, some of one byte, as a peer or a middlebox may do.
#[derive(Debug)]
struct Shred {
    share: f64,
    rng: Rng,
    counters: Spoilt,
}

impl Shred {
    fn new(share: f64, rng: Rng) -> Shred {
        Shred { share, rng, counters: Spoilt::default() }
    }
}

impl Impairment for Shred {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        let frame = &crossing.frame.data;
        let segment = TcpSegmentView::parse(frame).filter(|segment| segment.intact && !segment.syn && !segment.fin);
        let Some(segment) = segment.filter(|segment| segment.end - segment.payload > 1) else {
            return onward(crossing);
        };
        if !self.rng.chance(self.share) {
            return onward(crossing);
        }
        self.counters.shredded += 1;
        let mut at = segment.payload;
        for left in (0..SHREDS).rev() {
            let rest = segment.end - at;
            // Half of the parts are tiny, because headers of records split at every byte then.
            let most = if self.rng.chance(0.5) { 4 } else { rest };
            let length = if left == 0 { rest } else { 1 + self.rng.below(rest.min(most) as u64) as usize };
            let shred = segment.part(frame, at, length);
            onward(Crossing { frame: shred.into(), arrives: crossing.arrives });
            at += length;
            if at == segment.end {
                break;
            }
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// Returns a TCP configuration that never gives up and closes quickly.
fn patient() -> TcpConfig {
    TcpConfig {
        syn_retries: 100,
        syn_ack_retries: 100,
        retries: 100,
        orphan_retries: 100,
        max_rto: Duration::from_secs(1),
        time_wait: Duration::from_millis(10),
        fin_timeout: Duration::from_secs(5),
        ..TcpConfig::default()
    }
}

/// Returns data of bytes below [`ABANDONED`]. A long run of bytes without upper half cannot be ciphertext.
fn nibbles(rng: &mut Rng, bytes: usize) -> Bytes {
    let mut data = vec![0; bytes];
    rng.fill(&mut data);
    data.iter_mut().for_each(|byte| *byte %= ABANDONED);
    data.into()
}

fn share(share: f64) -> Share {
    Share::new(share).expect("a share")
}

fn steps() -> impl Strategy<Value = Vec<EndStep>> {
    let ask = (any::<bool>(), any::<bool>()).prop_map(|(tx, rx)| EndStep::Offload(Offload { tx, rx }));
    let step = prop_oneof![
        4 => prop_oneof![1usize..40, 40usize..4_000, 4_000usize..40_000].prop_map(EndStep::Write),
        1 => (prop_oneof![1usize..4_000, 4_000usize..40_000], 0usize..4)
            .prop_map(|(bytes, wakes)| EndStep::AbandonWrite { bytes, wakes }),
        1 => any::<bool>().prop_map(|both| EndStep::Rekey { both }),
        1 => (2usize..13, any::<bool>()).prop_map(|(times, both)| EndStep::Flood { times, both }),
        2 => Just(EndStep::Offload(Offload::BOTH)),
        1 => ask,
        2 => prop_oneof![1u64..30, 30u64..1_000, Just(250_000)].prop_map(EndStep::Sleep),
        2 => (1usize..30).prop_map(EndStep::Read),
        1 => Just(EndStep::Ready),
    ];
    prop::collection::vec(step, 1..14)
}

fn plan() -> impl Strategy<Value = EndPlan> {
    let record_size = prop_oneof![100usize..1_000, 1_000usize..16_384, Just(16_384)];
    let limit = prop_oneof![Just(None), Just(Some(0.02)), Just(Some(0.0))];
    let halves = prop::sample::select(vec![EndAction::DropReader, EndAction::DropWriter]);
    let end =
        prop_oneof![3 => Just(EndAction::Close), 1 => Just(EndAction::Drop), 1 => Just(EndAction::Forget), 1 => halves];
    (record_size, limit, steps(), end).prop_map(|(record_size, limit, steps, end)| EndPlan {
        record_size,
        limit,
        steps,
        end,
    })
}

fn impairments() -> impl Strategy<Value = Impairments> {
    (0.0..0.08f64, 0.0..0.1f64, 0.0..0.05f64, 0.0..0.03f64, 0.0..0.02f64).prop_map(
        |(loss, reorder, duplicate, corrupt, burst)| Impairments {
            loss: share(loss),
            duplicate: share(duplicate),
            corrupt: share(corrupt),
            burst_loss: Some(Burst { share: share(burst), mean_length: 3.0 }),
            reorder: Some(Reorder { share: share(reorder), hold: Duration::from_micros(25) }),
            ..Impairments::default()
        },
    )
}

fn schedule() -> impl Strategy<Value = FaultSchedule> {
    let version = prop::sample::select(vec![TlsVersion::Tls12, TlsVersion::Tls13]);
    let suite = prop::sample::select(vec![TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305]);
    let cipher = (version, suite);
    // Early resets hit the handshake and the installation of contexts, late ones the transfer.
    let resets = || prop::collection::vec(prop_oneof![0u64..300, 300u64..300_000], 0..3);
    let resync = prop::sample::select(vec![ResyncMode::DriverRequest, ResyncMode::CoreHint, ResyncMode::Asynchronous]);
    let transmit_resync = prop::sample::select(vec![TransmitResync::Dump, TransmitResync::NextRecord]);
    // Few contexts and tiny caches, so that contexts are refused, evicted and fetched all the time.
    let nic = (576u16..3_000, any::<bool>(), 1u32..8, 0usize..3, 0usize..4, resync, transmit_resync);
    let swap = prop_oneof![3 => Just(0.0), 1 => 0.0..0.05f64];
    let shred = prop_oneof![2 => Just(0.0), 1 => 0.0..0.2f64];
    // Streams cross 2^31 or 2^32, where comparisons of sequence numbers go wrong first.
    let edge = (prop::sample::select(vec![1u32 << 31, 0]), 0u32..400_000);
    let initial_sequence = prop_oneof![Just(None), edge.prop_map(|(edge, before)| Some(edge.wrapping_sub(before)))];
    let wire = (impairments(), 0.0..0.1f64, swap, shred, initial_sequence);
    (any::<u64>(), cipher, nic, wire, [resets(), resets()], [plan(), plan()]).prop_map(
        |(seed, cipher, nic, wire, resets, plans)| {
            let (impairments, overlap, swap, shred, initial_sequence) = wire;
            let (mtu, tso, contexts, cached, pooled, resync, transmit_resync) = nic;
            FaultSchedule {
                seed,
                cipher,
                mtu,
                tso,
                contexts,
                cached,
                pooled,
                resync,
                transmit_resync,
                impairments,
                overlap,
                swap,
                shred,
                initial_sequence,
                resets,
                plans,
            }
        },
    )
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(10_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn streams_survive_all_faults_at_once(schedule in schedule()) {
        schedule.play()?;
    }
}

/// Limit of virtual time for all waits: covers timeouts, but catches a wait without an end.
const ENOUGH: Duration = Duration::from_secs(3600);
const ETHERNET: usize = 14;
/// Maximum number of parts of a segment.
const SHREDS: usize = 12;
/// Fill bytes of abandoned writes, from this value up to 15.
const ABANDONED: u8 = 12;
