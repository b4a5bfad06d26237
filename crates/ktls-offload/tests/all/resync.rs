//! The three resynchronization modes, step by step: the times at which the device is told a position, and the
//! positions.

use crate::rig;

use ktls_offload::{KtlsStream, Offload};
use offload_api::{DeviceEvent, EventLog, Handle, ResyncMode, RxMeta, TlsSuite, Verdict};
use offload_base::Seq;
use rig::device::FLOW;
use rig::{MockTransport, MockWire, counted, data, record, streams};
use tokio::io::AsyncReadExt;

/// A receiver on a device that decrypts nothing, with its peer. Every record has 52 bytes on the wire.
struct ResyncSetup {
    wire: MockWire,
    near: KtlsStream<MockTransport>,
    far: KtlsStream<MockTransport>,
    context: Handle,
    start: Seq,
    sent: u32,
}

const RECORD: u32 = 52;

impl ResyncSetup {
    async fn new(mode: ResyncMode) -> ResyncSetup {
        let wire = MockWire::new(3).with_devices(1.0, 3);
        wire.lock()[1].device.as_mut().unwrap().resync = mode;
        let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
        far.offload(Offload { tx: false, rx: true });
        let context = far.ready().await.unwrap().handle().unwrap();
        let start = near.offload(Offload { tx: true, rx: false });
        assert!(start.tx.handle().is_some());
        let start = wire.first(0);
        ResyncSetup { wire, near, far, context, start, sent: 0 }
    }

    /// Returns the position of record `number`.
    fn at(&self, number: u32) -> Seq {
        self.start + number * RECORD
    }

    async fn send(&mut self, records: u32) {
        for _ in 0..records {
            self.near.send_chunk(vec![7; 30].into()).await.unwrap();
        }
        self.sent += records;
    }

    /// Sends `records` records and reads each at once.
    async fn exchange(&mut self, records: u32) {
        for _ in 0..records {
            self.send(1).await;
            self.read(1).await;
        }
        // Polls once more without data, which is when hints are given.
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(self.far.poll_chunk(&mut cx).is_pending());
    }

    async fn read(&mut self, records: u32) {
        for _ in 0..records {
            assert_eq!(self.far.next_chunk().await.unwrap().unwrap(), vec![7; 30]);
        }
    }

    fn event(&self, event: DeviceEvent) {
        self.wire.lock()[1].device.as_mut().unwrap().push_event(event);
    }

    fn started(&self, from: Seq, to: Seq) {
        self.event(DeviceEvent::ResyncStarted { flow: FLOW, handle: self.context, from, to });
    }

    fn asks(&self, header: Seq) {
        self.event(DeviceEvent::ResyncRequested { flow: FLOW, handle: self.context, header });
    }

    /// Returns the answers to the device since the last call.
    fn told(&self) -> Vec<(Seq, Option<u64>)> {
        let told = std::mem::take(&mut self.wire.lock()[1].device.as_mut().unwrap().told);
        assert!(told.iter().all(|(handle, ..)| *handle == self.context));
        told.into_iter().map(|(_, header, number)| (header, number)).collect()
    }
}

#[tokio::test]
async fn a_request_is_answered_early_late_and_with_no() {
    let mut setup = ResyncSetup::new(ResyncMode::DriverRequest).await;
    setup.exchange(3).await;
    setup.asks(setup.at(3));
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(3), Some(3))], "about a record that had not arrived");
    setup.asks(setup.at(1));
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(1), Some(1))], "about a record read earlier");
    setup.asks(setup.at(2) + 1);
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(2) + 1, None)], "no record begins there");
    setup.exchange(70).await;
    setup.asks(setup.at(1));
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(1), None)], "forgotten; the device may ask about a later one");
    assert_eq!(setup.far.counters().rx_device_resync, 2);
}

#[test]
fn resync_events_carry_the_span_of_their_stream() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ((), lines) = EventLog::collect(|| {
        runtime.block_on(async {
            let mut setup = ResyncSetup::new(ResyncMode::DriverRequest).await;
            setup.exchange(1).await;
            setup.asks(setup.at(1));
            setup.exchange(1).await;
        });
    });
    let event = lines.iter().find(|line| line.contains("device told where a record begins")).expect("an answer");
    assert!(event.contains("role=") && event.contains("record=1"), "{event}");
}

#[tokio::test]
async fn hints_follow_the_3rd_5th_and_9th_encrypted_record() {
    let mut setup = ResyncSetup::new(ResyncMode::CoreHint).await;
    // The device decrypts nothing, so every record counts.
    let mut hinted = Vec::new();
    for record in 1..=150 {
        setup.exchange(1).await;
        for (header, number) in setup.told() {
            assert_eq!((header, number), (setup.at(record), Some(u64::from(record))), "the next to come");
            hinted.push(record);
        }
    }
    assert_eq!(hinted, [3, 5, 9, 17, 33, 65, 129]);
    setup.wire.lock()[1].device.as_mut().unwrap().miss = 0.0;
    setup.exchange(1).await;
    assert_eq!(setup.far.counters().rx_records_device, 1);
    setup.wire.lock()[1].device.as_mut().unwrap().miss = 1.0;
    setup.exchange(2).await;
    assert_eq!(setup.told(), []);
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(154), Some(154))], "the count restarts");
}

#[tokio::test]
async fn hint_waits_for_a_drained_socket_and_names_the_next_record() {
    let mut setup = ResyncSetup::new(ResyncMode::CoreHint).await;
    setup.send(10).await;
    setup.read(9).await;
    assert_eq!(setup.told(), [], "the device is past everything up to the tenth");
    setup.wire.lock()[0].hold = true;
    setup.send(1).await;
    setup.wire.pump(0, 20);
    setup.read(1).await;
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(setup.far.poll_chunk(&mut cx).is_pending());
    assert_eq!(setup.told(), [(setup.at(11), Some(11))], "the eleventh has begun, its end is known");
}

#[tokio::test]
async fn a_hint_waits_for_a_header_that_is_here_in_part() {
    let mut setup = ResyncSetup::new(ResyncMode::CoreHint).await;
    setup.send(3).await;
    setup.wire.lock()[0].hold = true;
    setup.send(1).await;
    setup.wire.pump(0, 3);
    setup.read(3).await;
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(setup.far.poll_chunk(&mut cx).is_pending());
    assert_eq!(setup.told(), []);
    setup.wire.pump(0, 10);
    assert!(setup.far.poll_chunk(&mut cx).is_pending());
    assert_eq!(setup.told(), [(setup.at(4), Some(4))]);
}

#[tokio::test]
async fn an_asynchronous_question_is_answered_long_after() {
    let mut setup = ResyncSetup::new(ResyncMode::Asynchronous).await;
    setup.exchange(5).await;
    // The packet at which the device lost its position held the headers of records 5, 6 and 7.
    setup.started(setup.at(4) + 30, setup.at(7) + 5);
    setup.exchange(200).await;
    setup.asks(setup.at(6));
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(6), Some(6))], "older than the records remembered otherwise");
    setup.asks(setup.at(6));
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(6), None)], "the log is done with one answer");
}

#[tokio::test]
async fn headers_read_before_the_announcement_count() {
    let mut setup = ResyncSetup::new(ResyncMode::Asynchronous).await;
    setup.exchange(8).await;
    setup.started(setup.at(4) + 30, setup.at(7) + 5);
    setup.exchange(100).await;
    setup.asks(setup.at(7));
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(7), Some(7))]);
}

#[tokio::test]
async fn asynchronous_request_off_a_header_is_denied() {
    let mut setup = ResyncSetup::new(ResyncMode::Asynchronous).await;
    setup.started(setup.at(2), setup.at(4));
    setup.exchange(6).await;
    setup.asks(setup.at(3) + 1);
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(3) + 1, None)]);
    setup.started(setup.at(7), setup.at(9));
    setup.exchange(3).await;
    setup.event(DeviceEvent::ResyncCancelled { flow: FLOW, handle: setup.context });
    setup.exchange(100).await;
    assert_eq!(setup.told(), []);
    setup.asks(setup.at(8));
    setup.exchange(1).await;
    assert_eq!(setup.told(), [(setup.at(8), None)], "cancelled, and too old to be remembered otherwise");
    // A question about data that have not arrived is answered on arrival.
    setup.started(setup.at(setup.sent), setup.at(setup.sent) + 2000);
    let next = setup.sent + 1;
    setup.asks(setup.at(next));
    setup.exchange(2).await;
    assert_eq!(setup.told(), [(setup.at(next), Some(next.into()))]);
}

/// Uses Linux' limit of 65,535 records.
#[tokio::test]
async fn an_asynchronous_question_that_never_comes_is_given_up() {
    let mut setup = ResyncSetup::new(ResyncMode::Asynchronous).await;
    let key = counted(TlsSuite::Aes128Gcm, 1);
    let sealed = |number: u64| record(&key, number, 23, b"x", 0);
    let length = sealed(0).len() as u32;
    setup.started(setup.start, setup.start + length);
    for number in 0..65_600 {
        assert_eq!(setup.far.counters().rx_resync_given_up, u64::from(number > 65_535), "after {number} records");
        setup.wire.inject(1, &sealed(number), RxMeta::default());
        assert_eq!(setup.far.next_chunk().await.unwrap().unwrap(), "x");
    }
    setup.asks(setup.start);
    setup.wire.inject(1, &sealed(65_600), RxMeta::default());
    setup.far.next_chunk().await.unwrap();
    assert_eq!(setup.told(), [(setup.start, None)], "the log is discarded");
}

/// Software decrypts only the remaining bytes of a partly decrypted record.
#[tokio::test]
async fn software_decrypts_only_the_rest_of_a_partial_record() {
    for decrypted in [1, 16, 400, 999, 1000] {
        let setup = ResyncSetup::new(ResyncMode::DriverRequest).await;
        let (wire, mut far) = (setup.wire, setup.far);
        let content = data(5, 1000);
        let sealed = record(&counted(TlsSuite::Aes128Gcm, 1), 0, 23, &content, 0);
        let meta = RxMeta::default().marked(setup.context, Verdict::Done);
        wire.inject(1, &[&sealed[..5], &content[..decrypted]].concat(), meta);
        wire.inject(1, &sealed[5 + decrypted..], RxMeta::default());
        let mut got = vec![0; 1000];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == content);
        let counters = far.counters();
        assert_eq!(counters.rx_records_partial, 1);
        // The content type after the plaintext is decrypted in software too.
        assert_eq!(counters.rx_partial_sw_bytes, 1001 - decrypted as u64);
    }
}
