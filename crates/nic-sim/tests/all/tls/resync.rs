//! Contexts that lost their position, step by step: requests, answers and hints on receive; DUMP and next-record resync
//! on transmit.

use super::*;

#[test]
fn an_answer_waits_for_a_place_on_the_control_ring() {
    let (mut device, mut driver) = nic(fast(NicConfig { control_ring: 4, ..NicConfig::default() }));
    let flow = sender().reversed();
    let handle = driver.tls().unwrap().add(&flow, Direction::Receive, Seq(0), 0, &key()).unwrap();
    for at in 5..10 {
        driver.tls().unwrap().answer_resync(handle, Seq(at), None);
    }
    assert_eq!(driver.context_counters(engines::TLS).retried, 1, "two answers found a place behind the first command");
    for _ in 0..4 {
        frames(&mut device);
        while driver.poll_event().is_some() {}
    }
    assert_eq!(
        device.engine_counters::<TlsEngineCounters>().rx_tls_resync_res_skip,
        3,
        "only the last waiting answer arrived, and no answer was useful"
    );
    assert_eq!(driver.context_counters(engines::TLS).skipped, 0);
}

/// The complete sequence: a gap over a header, the request, the answer, and offload again.
#[test]
fn a_receive_context_finds_its_place_again_with_help() {
    for resync in [ResyncMode::DriverRequest, ResyncMode::Asynchronous] {
        let mut rig = ResyncRig::new(resync);
        let mut verdicts = Vec::new();
        for number in 0..rig.frames.len() {
            if (1..=2).contains(&number) {
                continue; // 700..2100: the headers at 1021 and 2042
            }
            verdicts.push(rig.deliver(number));
            if resync == ResyncMode::Asynchronous && number == 4 {
                let (from, to) = (rig.stream.start + 2800, rig.stream.start + 3500);
                let started = DeviceEvent::ResyncStarted { flow: rig.flow, handle: rig.context, from, to };
                assert_eq!(rig.driver.poll_event(), Some(started), "the start is reported with the packet");
            }
            assert!(self::frames(&mut rig.device).is_empty());
            if let Some(event) = rig.driver.poll_event() {
                let DeviceEvent::ResyncRequested { handle, header, .. } = event else { panic!("{event:?}") };
                assert_eq!(handle, rig.context);
                let unit = rig.stream.units.iter().find(|unit| unit.start == header).expect("a real header");
                rig.tell(header, Some(unit.number));
            }
        }
        use TlsVerdict::{Decrypted, NotDecrypted, ResyncRequested};
        // Frame 0 is decrypted; 3 is searched in vain; 4 contains the header at 3063 and 5 the one at 4084; from 6 on
        // frames are decrypted.
        assert_eq!(verdicts[..4], [Decrypted, NotDecrypted, ResyncRequested, NotDecrypted]);
        assert!(verdicts[4..].iter().all(|verdict| *verdict == Decrypted), "{verdicts:?}");
        let (counted, driver) =
            (rig.device.engine_counters::<TlsEngineCounters>(), rig.driver.context_counters(engines::TLS));
        assert_eq!((counted.rx_tls_resync_req_pkt, counted.rx_tls_resync_res_ok, counted.rx_tls_found), (1, 1, 1));
        assert_eq!((driver.asked, driver.told), (1, 1));
    }
}

/// The request is obsolete when the driver asks for its header, so the recorded headers may be discarded.
#[test]
fn an_asynchronous_request_is_cancelled_with_the_devices_wait() {
    let mut rig = ResyncRig::new(ResyncMode::Asynchronous);
    rig.deliver(0);
    rig.deliver(3);
    assert_eq!(rig.deliver(4), TlsVerdict::ResyncRequested);
    assert!(matches!(rig.driver.poll_event(), Some(DeviceEvent::ResyncStarted { .. })));
    // Before the device sees the query, a gap over the next header makes it search again.
    rig.device.receive_frame(Instant::ZERO, rig.frames[6].clone());
    assert!(frames(&mut rig.device).is_empty());
    let cancelled = DeviceEvent::ResyncCancelled { flow: rig.flow, handle: rig.context };
    assert_eq!(rig.driver.poll_event(), Some(cancelled));
    assert_eq!(rig.driver.context_counters(engines::TLS).skipped, 1);
}

/// Without requests: a hint that is late, or for a context with a known position, is ignored and counted.
#[test]
fn a_hint_brings_a_receive_context_back_and_a_late_one_does_not() {
    use TlsVerdict::{Decrypted, NotDecrypted};
    let mut rig = ResyncRig::new(ResyncMode::CoreHint);
    assert_eq!(rig.deliver(0), Decrypted);
    rig.tell(rig.stream.units[2].start, Some(42));
    assert_eq!(
        rig.device.engine_counters::<TlsEngineCounters>().rx_tls_resync_res_skip,
        1,
        "the context knows its position"
    );
    assert_eq!([3, 4].map(|number| rig.deliver(number)), [NotDecrypted; 2]);
    rig.tell(rig.stream.units[3].start, Some(43));
    assert_eq!(
        rig.device.engine_counters::<TlsEngineCounters>().rx_tls_resync_res_skip,
        2,
        "3063 passed with the last packet"
    );
    assert_eq!(rig.deliver(5), NotDecrypted, "3500..4200");
    assert_eq!(rig.stream.units[5].start, rig.stream.start + 5105);
    rig.tell(rig.stream.units[5].start, Some(45));
    assert_eq!(rig.deliver(6), NotDecrypted, "4200..4900, before it");
    assert_eq!(rig.deliver(7), NotDecrypted, "4900..5600 contains it");
    assert_eq!(rig.deliver(8), Decrypted);
    assert_eq!(rig.deliver(9), Decrypted);
    let (counted, driver) =
        (rig.device.engine_counters::<TlsEngineCounters>(), rig.driver.context_counters(engines::TLS));
    assert_eq!((counted.rx_tls_resync_req_pkt, counted.rx_tls_resync_res_ok, counted.rx_tls_found), (0, 1, 1));
    assert_eq!((driver.asked, driver.skipped), (0, 0));
    assert_eq!(rig.driver.poll_event(), None);
}

/// A receive context, with packets of 700 bytes and records of 1021 bytes from number 40 on.
struct ResyncRig {
    stream: RecordStream,
    frames: Vec<Frame>,
    device: Device,
    driver: Driver,
    flow: FlowKey,
    context: Handle,
}

impl ResyncRig {
    fn new(resync: ResyncMode) -> ResyncRig {
        let stream = RecordStream::new(Seq(7_000), 40, &[1000; 8]);
        let frames = segments(&stream, 700);
        let (mut device, mut driver) = nic(fast(NicConfig {
            engines: TlsEngineConfig { resync, ..TlsEngineConfig::default() }.into(),
            ..NicConfig::default()
        }));
        let flow = sender().reversed();
        let context = driver.tls().unwrap().add(&flow, Direction::Receive, stream.start, 40, &key()).unwrap();
        device.process(Instant::ZERO);
        device.poll_frame(Instant::ZERO);
        assert!(matches!(driver.poll_event(), Some(DeviceEvent::Ready { .. })));
        ResyncRig { stream, frames, device, driver, flow, context }
    }

    /// Receives a frame. The driver's commands in response are not executed yet.
    fn deliver(&mut self, number: usize) -> TlsVerdict {
        self.device.receive_frame(Instant::ZERO, self.frames[number].clone());
        self.device.process(Instant::ZERO);
        self.driver.receive(Instant::ZERO).unwrap().meta.tls()
    }

    fn tell(&mut self, header: Seq, number: Option<u64>) {
        self.driver.tls().unwrap().answer_resync(self.context, header, number);
        self.device.process(Instant::ZERO);
        assert!(self.device.poll_frame(Instant::ZERO).is_none());
    }
}

/// A retransmitted segment at byte x of its record makes the device read x bytes again. For the last segment of a 16
/// KiB record that is more than ten times its own length.
#[test]
fn a_retransmission_reads_its_record_again_from_the_start() {
    const MSS: usize = 1448;
    let stream = RecordStream::new(Seq(0), 0, &[16_384, 16_384]);
    let record = stream.units[0].len as usize;
    let (mut device, mut driver) = nic(fast(NicConfig::default()));
    let context = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
    let mut send = |at: usize| {
        let before = (device.dma(), driver.context_counters(engines::TLS));
        assert_eq!(
            driver.transmit(Instant::ZERO, stream.packet(at, MSS, MSS as u16, context), &stream),
            TransmitResult::Posted
        );
        driver.flush(Instant::ZERO);
        let sent = frames(&mut device);
        assert_eq!(sent[0].data[HEADERS..], stream.wire[at..at + MSS]);
        let dma = device.dma();
        assert_eq!(dma.tx_payload - before.0.tx_payload, MSS as u64);
        let dumps = driver.context_counters(engines::TLS).dump_packets - before.1.dump_packets;
        dma.tx_resync - before.0.tx_resync - dumps * nic_sim::dma::DUMP_DESCRIPTOR
    };
    send(record);
    for at in [MSS, 2 * MSS, 8000, record - MSS] {
        let read_again = send(at) as usize;
        assert_eq!(read_again, at, "a segment at byte {at} of its record");
        // Returning to the second record costs the bytes before the position there.
        assert_eq!(send(record + at) as usize, at);
    }
    assert!(send(record - MSS) > 10 * MSS as u64, "for the last segment, ten times its own length");
}

/// The alternative, step by step: bytes before the context's position are sealed in software without disturbing the
/// context. A record interrupted in the middle is given up, and the device continues with the next record.
#[test]
fn next_record_sync_reads_every_byte_once() {
    let mut stream = RecordStream::new(Seq(0), 0, &[2000; 4]);
    let config = NicConfig {
        engines: EngineConfigs::default().with_transmit_resync(TransmitResync::NextRecord),
        ..NicConfig::default()
    };
    let (mut device, mut driver) = nic(fast(config));
    let context = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
    let mut send = |stream: &RecordStream, at: usize, bytes: usize| {
        let packet = stream.packet(at, bytes, 1448, context);
        let by_device = packet.ask.has_context();
        let sent = driver.transmit(Instant::ZERO, packet, stream);
        driver.flush(Instant::ZERO);
        let left: Vec<u8> = frames(&mut device).iter().flat_map(|frame| frame.data[HEADERS..].to_vec()).collect();
        assert!(stream.wire[at..].starts_with(&left));
        (sent, by_device, left.len())
    };
    assert_eq!(
        send(&stream, 0, 3000),
        (TransmitResult::Posted, true, 3000),
        "a record of 2021 bytes and part of the next"
    );
    // The first record's middle again: software seals the whole record.
    assert_eq!(send(&stream, 1000, 500), (TransmitResult::NeedsSoftware(stream.units[0]), true, 0));
    stream.seal(stream.units[0]);
    assert_eq!(send(&stream, 1000, 500), (TransmitResult::Posted, false, 500));
    assert_eq!(send(&stream, 3000, 500), (TransmitResult::Posted, true, 500), "the device kept its position");
    // The second record's start again. It is a record start, but before the context's position.
    assert_eq!(send(&stream, 2021, 500), (TransmitResult::NeedsSoftware(stream.units[1]), true, 0));
    stream.seal(stream.units[1]);
    assert_eq!(send(&stream, 2021, 2021), (TransmitResult::Posted, false, 2021));
    assert_eq!(
        send(&stream, 4042, 4042),
        (TransmitResult::Posted, true, 4042),
        "the device resumes at the third record"
    );
    let (counted, dma) = (driver.context_counters(engines::TLS), device.dma());
    assert_eq!((counted.ooo, counted.needs_software, counted.next_record), (2, 2, 1));
    assert_eq!((counted.dump_packets, dma.tx_resync), (0, 0));
    assert_eq!(device.counters().tx_drop_out_of_sync, 0);
}

/// A source that gives the same answer for every byte.
struct FixedAnswerSource(Lookup);

impl RecordSource for FixedAnswerSource {
    fn unit_at(&self, _: Layer, _: u64) -> Lookup {
        self.0
    }

    fn pieces(&self, _: Layer, _: u64, _: u64, _: &mut dyn FnMut(QueuedBytes)) {}
}

/// Plaintext never leaves unencrypted, for any answer of the transport.
#[test]
fn packets_that_fail_encryption_are_dropped_and_counted() {
    let stream = RecordStream::new(Seq(0), 0, &[2000; 2]);
    let (mut device, mut driver) = nic(fast(NicConfig::default()));
    let context = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
    let stranger = Handle { index: context.index, generation: context.generation + 1 };
    for (handle, reason) in [(context, DropReason::NoSyncData), (stranger, DropReason::DeviceGone)] {
        for lookup in [Lookup::Released, Lookup::BeforeStart] {
            let packet = stream.packet(500, 500, 1448, handle);
            assert_eq!(
                driver.transmit(Instant::ZERO, packet, &FixedAnswerSource(lookup)),
                TransmitResult::Dropped(reason)
            );
        }
    }
    driver.flush(Instant::ZERO);
    assert!(frames(&mut device).is_empty());
    let counted = driver.context_counters(engines::TLS);
    assert_eq!((counted.no_sync_data, counted.no_unit), (2, 2));
}

/// Packets, contexts and errors, as the device counts them.
#[test]
fn the_work_of_a_receive_context_is_counted() {
    let mut rig = ResyncRig::new(ResyncMode::DriverRequest);
    rig.stream.wire[1020] ^= 1;
    rig.frames = segments(&rig.stream, 700);
    assert_eq!(rig.deliver(0), TlsVerdict::Decrypted);
    assert_eq!(rig.deliver(1), TlsVerdict::Error, "the tag of the first record");
    let counted: TlsEngineCounters = rig.device.engine_counters();
    assert_eq!((counted.rx_tls_decrypted_packets, counted.rx_tls_decrypted_bytes), (1, 695));
    assert_eq!((counted.rx_tls_err, counted.rx_tls_lost), (1, 1));
    rig.driver.tls().unwrap().remove(rig.context);
    rig.driver.flush(Instant::ZERO);
    frames(&mut rig.device);
    assert!(matches!(rig.driver.poll_event(), Some(DeviceEvent::Removed { .. })));
    let driver = rig.driver.context_counters(engines::TLS);
    assert_eq!((driver.receive.created, driver.receive.removed), (1, 1));
}
