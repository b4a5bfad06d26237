//! The rate limiter: rate and spacing of paced flows, and no delay for other flows.

use bytes::Bytes;
use core::num::NonZeroU64;
use core::time::Duration;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, nic};
use offload_api::{DropReason, FlowKey, NetDevice, NoRecords, TransmitResult, TxAsk, TxPacket};
use offload_base::{Instant, Seq};

/// A sender of one flow that always has data.
struct PacedSender {
    flow: FlowKey,
    rate: Option<NonZeroU64>,
    segments: usize,
    next: Seq,
}

/// A frame that was sent.
struct SentFrame {
    at: Instant,
    flow: u16,
    seq: Seq,
    bytes: usize,
}

impl PacedSender {
    fn new(number: u16, rate: Option<u64>, segments: usize) -> PacedSender {
        let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), ([10, 0, 0, 2], number).into());
        PacedSender { flow, rate: rate.and_then(NonZeroU64::new), segments, next: Seq(0) }
    }

    fn packet(&mut self) -> TxPacket {
        let payload = Bytes::from(vec![7; self.segments * MSS]);
        let ask = TxAsk { seq: self.next, checksum: true, mss: Some(MSS as u16), rate: self.rate, ..TxAsk::default() };
        let header = headers(self.flow, self.next).into();
        self.next += payload.len() as u32;
        TxPacket { header, fragments: [payload].into_iter().collect(), ask }
    }

    fn fill(&mut self, now: Instant, driver: &mut Driver) {
        let room = |driver: &Driver| match self.rate {
            Some(_) => driver.room_paced(&self.flow),
            None => driver.room(&self.flow),
        };
        let mut left = room(driver);
        while left > 0 {
            assert_eq!(driver.transmit(now, self.packet(), &NoRecords), TransmitResult::Posted);
            left = match self.rate {
                Some(_) => driver.room_paced(&self.flow),
                None => driver.room(&self.flow),
            };
        }
    }
}

/// Runs a NIC for `span`; its senders fill the ring whenever there is room.
fn run(device: &mut Device, driver: &mut Driver, senders: &mut [PacedSender], span: Duration) -> Vec<SentFrame> {
    let (mut now, mut left) = (Instant::ZERO, Vec::new());
    while now - Instant::ZERO < span {
        driver.poll_event();
        for sender in &mut *senders {
            sender.fill(now, driver);
        }
        driver.flush(now);
        device.process(now);
        while let Some(frame) = device.poll_frame(now) {
            let data = &frame.data;
            let flow = u16::from_be_bytes([data[36], data[37]]);
            let seq = Seq(u32::from_be_bytes([data[38], data[39], data[40], data[41]]));
            left.push(SentFrame { at: now, flow, seq, bytes: frame.len() });
        }
        now = device.next_event().expect("the senders always have data");
    }
    left
}

#[test]
fn eight_paced_flows_share_a_nic_with_one_unpaced_flow() {
    let gigabits = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0];
    let (mut device, mut driver) = nic(NicConfig::default());
    let mut senders: Vec<PacedSender> = (1..)
        .zip(gigabits)
        .map(|(number, gigabits)| PacedSender::new(number, Some((gigabits * 1e9 / 8.0) as u64), 8))
        .collect();
    senders.push(PacedSender::new(99, None, 45));
    let span = Duration::from_millis(50);
    let left = run(&mut device, &mut driver, &mut senders, span);

    let mut table =
        String::from("asked Gb/s  got Gb/s  frames  closest, of their distance  most within one distance\n");
    for sender in &senders {
        let frames: Vec<&SentFrame> = left.iter().filter(|frame| frame.flow == sender.flow.remote.port()).collect();
        // In order, and complete.
        for pair in frames.windows(2) {
            assert_eq!(pair[1].seq, pair[0].seq + MSS as u32);
        }
        let bytes: usize = frames.iter().map(|frame| frame.bytes).sum();
        let got = bytes as f64 * 8.0 / span.as_nanos() as f64;
        let (asked, closest, burst) = match sender.rate {
            None => ("the rest".into(), "-".into(), "-".into()),
            Some(rate) => {
                let distance = frames[0].bytes as f64 * 1e9 / rate.get() as f64;
                let gaps = frames.windows(2).map(|pair| (pair[1].at - pair[0].at).as_nanos() as f64 / distance);
                let closest = gaps.fold(f64::INFINITY, f64::min);
                let within = |first: usize| {
                    let rest = frames[first..].iter();
                    rest.take_while(|frame| ((frame.at - frames[first].at).as_nanos() as f64) < distance).count()
                };
                let burst = (0..frames.len()).map(within).max().unwrap();
                assert!(burst <= 2, "a delayed flow catches up by at most one frame");
                // A paced flow never exceeds its rate, except for its first frame.
                let asked = rate.get() as f64 * 8.0 / 1e9;
                let first = frames[0].bytes as f64 * 8.0 / span.as_nanos() as f64;
                assert!(got <= asked + first && got > asked * 0.99, "{got} of {asked}");
                (format!("{asked:.1}"), format!("{closest:.2}"), burst.to_string())
            }
        };
        table += &format!("{asked:>10}  {got:>8.3}  {:>6}  {closest:>26}  {burst:>24}\n", frames.len());
    }
    let counted = device.counters();
    assert_eq!(counted.tx_paced_packets, left.iter().filter(|frame| frame.flow != 99).count() as u64);
    insta::assert_snapshot!(table);
}

/// The rates exceed the line: the unpaced flow still gets half, and the paced flows share the rest.
#[test]
fn a_rate_is_no_claim() {
    let (mut device, mut driver) = nic(NicConfig { line_rate: Some(10_000_000_000), ..NicConfig::default() });
    let mut senders: Vec<PacedSender> = (1..5).map(|number| PacedSender::new(number, Some(2_000_000_000), 8)).collect();
    senders.push(PacedSender::new(99, None, 8));
    let left = run(&mut device, &mut driver, &mut senders, Duration::from_millis(5));
    let share = |flow: u16| left.iter().filter(|frame| frame.flow == flow).count() as f64 / left.len() as f64;
    assert!((0.49..0.51).contains(&share(99)), "{}", share(99));
    for flow in 1..5 {
        assert!((0.12..0.13).contains(&share(flow)), "{}", share(flow));
    }
}

#[test]
fn a_waiting_flow_blocks_no_other_and_holds_few_descriptors() {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    let (mut device, mut driver) = nic(config);
    let (mut slow, mut fast) = (PacedSender::new(1, Some(1_000_000), 10), PacedSender::new(2, None, 1));
    slow.fill(Instant::ZERO, &mut driver);
    assert_eq!(driver.room_paced(&slow.flow), 0);
    assert!(driver.room_paced(&fast.flow) > 0 && driver.room(&fast.flow) > 0);
    for _ in 0..3 {
        assert_eq!(driver.transmit(Instant::ZERO, fast.packet(), &NoRecords), TransmitResult::Posted);
    }
    // An unpaced packet of the slow flow stays after the flow's paced packets.
    slow.rate = None;
    slow.segments = 1;
    let last = slow.next;
    assert_eq!(driver.transmit(Instant::ZERO, slow.packet(), &NoRecords), TransmitResult::Posted);
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    let at_once: Vec<u8> =
        core::iter::from_fn(|| device.poll_frame(Instant::ZERO)).map(|frame| frame.data[37]).collect();
    assert_eq!(at_once.iter().filter(|flow| **flow == 1).count(), 1, "the first segment of the slow flow");
    assert_eq!(at_once.iter().filter(|flow| **flow == 2).count(), 3);
    let mut seqs = Vec::new();
    while let Some(at) = device.next_event() {
        device.process(at);
        while let Some(frame) = device.poll_frame(at) {
            seqs.push((at, u32::from_be_bytes(frame.data[38..42].try_into().unwrap())));
        }
    }
    // 19 more segments of 1502 bytes, at a microsecond per byte; the last packet follows directly.
    assert_eq!(seqs.len(), 20);
    assert_eq!(seqs.last(), Some(&(Instant::ZERO + Duration::from_micros(20 * 1502), last.0)));
    assert!(seqs.is_sorted());
    driver.poll_event();
    assert_eq!(driver.room_paced(&slow.flow), 2);
}

/// A flow has at most two packets in the device, or a millisecond's worth if that is more. All paced flows together
/// have three quarters of the ring.
#[test]
fn room_remains_for_waiting_flows_and_for_others() {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    const TWO: u32 = (2 * MSS) as u32;
    for (rate, bytes) in [(1_000, TWO), (u64::from(TWO) * 1000, TWO), (u64::from(TWO + 1) * 1000, TWO + MSS as u32)] {
        let (_device, mut driver) = nic(config.clone());
        let mut sender = PacedSender::new(1, Some(rate), 1);
        sender.fill(Instant::ZERO, &mut driver);
        assert_eq!(sender.next, Seq(bytes), "at {rate} bytes a second");
    }
    let (_device, mut driver) = nic(config.clone());
    let mut senders: Vec<PacedSender> = (0..1000).map(|number| PacedSender::new(number, Some(1000), 1)).collect();
    senders.iter_mut().for_each(|sender| sender.fill(Instant::ZERO, &mut driver));
    let packets: u32 = senders.iter().map(|sender| sender.next.0 / MSS as u32).sum();
    assert_eq!(packets as usize, config.send_ring / 4 * 3);
    assert!(driver.room(&PacedSender::new(1000, None, 1).flow) > 0);
}

#[test]
fn delayed_packets_complete_when_the_device_is_reset() {
    let (mut device, mut driver) = nic(NicConfig { delays: Delays::NONE, ..NicConfig::default() });
    let before = driver.room(&PacedSender::new(1, None, 1).flow);
    let mut senders: Vec<PacedSender> = (1..200).map(|number| PacedSender::new(number, Some(1_000_000), 40)).collect();
    for sender in &mut senders {
        sender.fill(Instant::ZERO, &mut driver);
    }
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    while device.poll_frame(Instant::ZERO).is_some() {}
    device.reset(Instant::ZERO);
    driver.poll_event();
    assert_eq!(driver.room(&senders[0].flow), before);
    assert_eq!(driver.room_paced(&senders[0].flow), 2);
    let at = Instant::ZERO + Duration::from_secs(1);
    device.process(at);
    assert!(device.poll_frame(at).is_none());
}

#[test]
fn a_nic_without_a_rate_limiter_says_so() {
    let (_, mut driver) = nic(NicConfig { pacing: false, ..NicConfig::default() });
    let mut sender = PacedSender::new(1, Some(1_000_000), 1);
    assert!(!driver.path(&sender.flow).pacing);
    let refused = driver.transmit(Instant::ZERO, sender.packet(), &NoRecords);
    assert_eq!(refused, TransmitResult::Dropped(DropReason::Unsupported));
}

/// Returns Ethernet, IPv4 and TCP headers; the device fills in lengths and checksums.
fn headers(flow: FlowKey, seq: Seq) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 0]);
    bytes.extend_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend_from_slice(&flow.local.port().to_be_bytes());
    bytes.extend_from_slice(&flow.remote.port().to_be_bytes());
    bytes.extend_from_slice(&seq.0.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

const MSS: usize = 1448;
