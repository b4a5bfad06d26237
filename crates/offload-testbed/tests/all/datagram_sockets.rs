//! A protocol over `DatagramSocket` with packets sealed and opened by an engine from outside the NIC crates; the same
//! over NICs without the engine, and over the kernel's sockets.
//!
//! "Hush" puts an identifier and a number in front of a datagram's body, masks the body under a key and the number, and
//! ends with a four-byte tag. Hush is no cipher, but has the form of QUIC packets: each packet can be opened on its
//! own.

use bytes::{Bytes, BytesMut};
use core::convert::Infallible;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use core::task::Poll;
use core::time::Duration;
use nic_sim::NicConfig;
use nic_sim::engine::{
    Context, Engine, FrameLookup, Headers, ImageReader, ImageWriter, NoCounters, OpenedFrame, PacketEngine,
};
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use nic_sim::wire::{FrameRecorder, LinkConfig};
use offload_api::{
    ContextNews, ContextRefusal, Datagram, DatagramSocket, Direction, EcnCodepoint, Handle, Key, KeyBytes, NewContext,
    PacketAsk, PacketMark, SendRefusal, SocketEvent, TxDatagram, TxPacket,
};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_host_stack::{TcpConfig, UdpSocket};
use offload_testbed::{BedHost, Testbed};
use smoltcp::wire::{IpAddress, Ipv4Packet, Ipv6Packet, UdpPacket};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

// ---- the format, for engine and software

const ID: u8 = 0xd7;
const HEADER: usize = 5;
const TAG: usize = 4;
const KEY: u64 = 0x0123_4567_89ab_cdef;
/// Port of the protocol.
const PORT: u16 = 4433;

fn masked(key: u64, number: u32, bytes: &mut [u8]) {
    for (byte, at) in bytes.iter_mut().zip(0u64..) {
        *byte ^= ((key ^ u64::from(number) << 20 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    }
}

fn tag(key: u64, plain: &[u8]) -> [u8; TAG] {
    let sum = plain.iter().fold(key as u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    sum.to_be_bytes()
}

fn number_of(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[1..HEADER].try_into().unwrap())
}

/// Seals a payload of header, body and room for the tag.
fn seal(key: u64, payload: &mut [u8]) {
    let (number, end) = (number_of(payload), payload.len() - TAG);
    let tag = tag(key, &payload[..end]);
    masked(key, number, &mut payload[HEADER..end]);
    payload[end..].copy_from_slice(&tag);
}

/// Removes the mask. Returns whether the tag is right.
fn open(key: u64, payload: &mut [u8]) -> bool {
    if payload.len() < HEADER + TAG || payload[0] != ID {
        return false;
    }
    let (number, end) = (number_of(payload), payload.len() - TAG);
    masked(key, number, &mut payload[HEADER..end]);
    tag(key, &payload[..end]) == payload[end..]
}

// ---- the engine

#[derive(Debug)]
struct Hush;

impl Engine for Hush {
    const NAME: &'static str = "hush";
    type Spec = u64;
    type Command = Infallible;
    type Change = Infallible;
    type State = u64;
    type Objects = u64;
    type Counters = NoCounters;

    fn create(&mut self, _: Direction, key: u64) -> Option<(u64, u64)> {
        Some((0, key))
    }

    fn save(state: &u64, image: &mut ImageWriter<'_>) {
        image.put_u64(*state);
    }

    fn load(image: &mut ImageReader<'_>) -> Option<u64> {
        image.take_u64()
    }

    fn command(_: Context<'_, Hush>, command: Infallible) {
        match command {}
    }
}

/// Returns the payload offset of a frame of this protocol.
fn payload_at(frame: &[u8]) -> Option<usize> {
    let at = match frame.get(12..14)? {
        [8, 0] if frame.get(23) == Some(&17) && frame.get(14) == Some(&0x45) => 42,
        [0x86, 0xdd] if frame.get(20) == Some(&17) => 62,
        _ => return None,
    };
    let port = u16::from_be_bytes([*frame.get(at - 6)?, *frame.get(at - 5)?]);
    (port == PORT && frame.len() >= at + HEADER + TAG).then_some(at)
}

fn fill_checksum(frame: &mut [u8]) {
    let (four, ip) = (frame[12] == 8, &frame[14..]);
    let addresses = match four {
        true => Ipv4Packet::new_unchecked(ip).src_addr().into_pair(Ipv4Packet::new_unchecked(ip).dst_addr()),
        false => Ipv6Packet::new_unchecked(ip).src_addr().into_pair(Ipv6Packet::new_unchecked(ip).dst_addr()),
    };
    UdpPacket::new_unchecked(&mut frame[if four { 34 } else { 54 }..]).fill_checksum(&addresses[0], &addresses[1]);
}

trait IntoPair: Into<IpAddress> + Sized {
    fn into_pair(self, other: Self) -> [IpAddress; 2] {
        [self.into(), other.into()]
    }
}
impl<A: Into<IpAddress>> IntoPair for A {}

impl PacketEngine for Hush {
    type Facts = usize;
    /// The number of the next segment.
    type Encapsulation = u64;

    fn look(&self, frame: &[u8], _: &Headers) -> FrameLookup<usize> {
        match payload_at(frame) {
            Some(at) if frame[at] == ID => FrameLookup::Key(KeyBytes::from_parts(&[&[ID]]), at),
            _ => FrameLookup::Nothing,
        }
    }

    fn open(&mut self, context: Context<'_, Hush>, frame: &[u8], at: &usize, _: &mut NoCounters) -> OpenedFrame {
        let mut inner = BytesMut::from(frame);
        let number = number_of(&frame[*at..]);
        if !open(*context.held, &mut inner[*at..]) {
            return OpenedFrame::Untouched(PacketMark::Failed { context: context.handle });
        }
        fill_checksum(&mut inner);
        *context.state += 1;
        let mark = PacketMark::Opened { context: context.handle, number: number.into(), packets: 1, code: 3 };
        OpenedFrame::Another { inner, mark, vouched: false }
    }

    fn begin(&mut self, _: Context<'_, Hush>, ask: PacketAsk, _: &mut TxPacket, _: &mut NoCounters) -> Option<u64> {
        assert_eq!(ask.args, 77, "what was asked comes here");
        Some(ask.number)
    }

    fn wrap(
        &mut self,
        context: Context<'_, Hush>,
        next: &mut u64,
        plain: &[u8],
        longest: usize,
        _: &mut NoCounters,
    ) -> Option<BytesMut> {
        let at = payload_at(plain).expect("nothing else asks for it");
        // The device cuts a burst into datagrams, and each needs its own number as a nonce.
        assert_eq!(u64::from(number_of(&plain[at..])), *next, "each segment has the next number");
        assert!(plain.len() <= longest);
        (*next, *context.state) = (*next + 1, *context.state + 1);
        let mut frame = BytesMut::from(plain);
        seal(*context.held, &mut frame[at..]);
        fill_checksum(&mut frame);
        Some(frame)
    }
}

// ---- the protocol, over any socket

/// Creates a context of the engine, if the device has the engine.
fn context(socket: &mut dyn DatagramSocket, direction: Direction) -> Option<Handle> {
    let mut made = None;
    socket.control(&mut |contexts| {
        let Some(engine) = contexts.engine(Hush::NAME).map(|engine| engine.number) else { return };
        let keys = match direction {
            Direction::Receive => vec![Key::Engine(engine, KeyBytes::from_parts(&[&[ID]]))],
            Direction::Transmit => Vec::new(),
        };
        let new = NewContext { engine, direction, flow: None, keys, spec: Box::new(KEY) };
        made = contexts.create(new).map_err(|(refused, _)| assert_eq!(refused, ContextRefusal::Busy)).ok();
    });
    made
}

async fn next_event(socket: &mut dyn DatagramSocket) -> Option<SocketEvent> {
    poll_fn(|cx| match socket.poll_device_event(cx) {
        Poll::Ready(event) => Poll::Ready(Some(event)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Returns the body of a datagram, which is recognizable on the wire.
fn body(number: u32, bytes: usize) -> Vec<u8> {
    let mut body = format!("PLAINTEXT {number} ").into_bytes();
    body.resize(bytes, number as u8);
    body
}

/// Returns datagrams numbered from `first`, ready to be sealed, of `each` bytes but for the last one.
fn burst(to: SocketAddr, first: u32, count: u32, each: usize) -> TxDatagram {
    let mut pieces: Vec<Bytes> = Vec::new();
    for number in first..first + count {
        let short = if number + 1 == first + count { (number % 3) as usize * 50 } else { 0 };
        let header = [&[ID][..], &number.to_be_bytes()].concat();
        let body = body(number, each - HEADER - TAG - short);
        pieces.extend([header.into(), body.into(), Bytes::from_static(&[0; TAG])]);
    }
    let segment = (count > 1).then(|| NonZeroU16::new(each as u16).unwrap());
    let ecn = EcnCodepoint::Capable0;
    TxDatagram { pieces: pieces.into(), segment, ecn, dont_fragment: true, ..TxDatagram::new(to, Bytes::new()) }
}

/// Seals a burst in software.
fn sealed(plain: &TxDatagram) -> TxDatagram {
    let mut data = plain.pieces.concat();
    let each = plain.segment.map_or(data.len(), |bytes| bytes.get().into());
    data.chunks_mut(each).for_each(|payload| seal(KEY, payload));
    TxDatagram { pieces: [data.into()].into_iter().collect(), ask: None, ..plain.clone() }
}

/// Counts of a sender's bursts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    by_device: u32,
    by_software: u32,
    resets: u32,
    /// Asks for bursts that were dropped after they were accepted.
    told: Vec<PacketAsk>,
}

struct Sender {
    context: Option<Handle>,
    sent: Sent,
}

impl Sender {
    fn new(socket: &mut dyn DatagramSocket) -> Sender {
        Sender { context: context(socket, Direction::Transmit), sent: Sent::default() }
    }

    async fn hear(&mut self, socket: &mut dyn DatagramSocket) {
        while let Some(event) = next_event(socket).await {
            match event {
                SocketEvent::Reset => {
                    self.sent.resets += 1;
                    self.context = context(socket, Direction::Transmit);
                }
                SocketEvent::NotSent(ask) => self.sent.told.push(ask),
                _ => {}
            }
        }
    }

    /// Sends by the device if it accepts the ask, otherwise by software.
    async fn send(&mut self, socket: &mut dyn DatagramSocket, plain: TxDatagram) {
        let number = number_of(&plain.pieces[0]).into();
        let ask = self.context.map(|context| PacketAsk { context, number, args: 77 });
        let first = if ask.is_some() { TxDatagram { ask, ..plain.clone() } } else { sealed(&plain) };
        let mut batch = VecDeque::from([first]);
        match poll_fn(|cx| socket.poll_send(cx, &mut batch)).await {
            Ok(1) if ask.is_some() => self.sent.by_device += 1,
            Ok(1) => self.sent.by_software += 1,
            Err(SendRefusal::Ask) => {
                batch[0] = sealed(&plain);
                poll_fn(|cx| socket.poll_send(cx, &mut batch)).await.unwrap();
                self.sent.by_software += 1;
            }
            other => panic!("{other:?}"),
        }
        assert!(batch.is_empty());
    }
}

/// A received and verified datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VerifiedDatagram {
    number: u32,
    bytes: usize,
    ecn: EcnCodepoint,
    /// Number of datagrams that the device joined with this datagram. `None` if software opened it.
    by_device: Option<u16>,
}

/// Splits a received datagram, and opens each part that the device did not open.
fn take(datagram: Datagram, context: Option<Handle>) -> Vec<VerifiedDatagram> {
    let mark = match datagram.meta.marks.packet() {
        PacketMark::Opened { context: of, number, packets, code: 3 } => {
            assert_eq!(Some(of), context);
            Some((number as u32, packets))
        }
        PacketMark::None | PacketMark::Failed { .. } => None,
        other => panic!("{other:?}"),
    };
    let (mut heard, ecn) = (Vec::new(), datagram.ecn);
    for (mut single, at) in datagram.split().zip(0..) {
        // A corrupted datagram is dropped, as QUIC does.
        if mark.is_none() && !open(KEY, &mut single.data) {
            continue;
        }
        let number = number_of(&single.data);
        // Joined datagrams have consecutive numbers, so one number describes all of them.
        assert!(mark.is_none_or(|(first, _)| first + at == number), "numbers count on");
        let content = &single.data[HEADER..single.data.len() - TAG];
        assert!(content == body(number, content.len()), "number {number}");
        heard.push(VerifiedDatagram {
            number,
            bytes: single.data.len(),
            ecn,
            by_device: mark.map(|(_, packets)| packets),
        });
    }
    assert!(mark.is_none_or(|(_, packets)| usize::from(packets) == heard.len()));
    heard
}

/// Receives until the task is dropped.
async fn receive(mut socket: UdpSocket, all: Arc<Mutex<Vec<VerifiedDatagram>>>) {
    let mut opener = context(&mut socket, Direction::Receive);
    let mut batch = Vec::new();
    loop {
        // A datagram opened before a reset names the context of that time.
        poll_fn(|cx| socket.poll_receive(cx, &mut batch, 16)).await.unwrap();
        let here = socket.local_addrs();
        for datagram in batch.drain(..) {
            assert!(here.contains(&datagram.to));
            all.lock().unwrap().extend(take(datagram, opener));
        }
        while let Some(event) = next_event(&mut socket).await {
            match event {
                SocketEvent::Reset => opener = context(&mut socket, Direction::Receive),
                SocketEvent::Context(news) => assert_eq!(news, ContextNews::Ready(opener.unwrap())),
                other => panic!("{other:?}"),
            }
        }
    }
}

// ---- together

struct HushBed {
    bed: Testbed,
    near: BedHost,
    far: BedHost,
    wire: FrameRecorder,
}

/// Builds two hosts, each with the engine or without.
fn world(has_engine: [bool; 2], nics: [NicConfig; 2], link: LinkConfig) -> HushBed {
    let wire = FrameRecorder::default();
    let mut builder = Testbed::builder(Seed(7));
    for ((name, has_engine), nic) in ["near", "far"].into_iter().zip(has_engine).zip(nics) {
        builder = builder.host(name, nic, TcpConfig::default());
        if has_engine {
            builder = builder.engines(|engines| engines.add_packet(Hush, 8));
        }
    }
    let bed = builder.wire(0, 1, link).recorded(&wire).build().unwrap();
    let (near, far) = (bed.host(0).clone(), bed.host(1).clone());
    HushBed { bed, near, far, wire }
}

impl HushBed {
    fn to(&self, six: bool) -> SocketAddr {
        let address: IpAddr = if six { self.far.ipv6_address().into() } else { self.far.address().into() };
        (address, PORT).into()
    }

    /// Sends bursts of (count, bytes). Resets the NICs before burst `reset_before`. Returns the sender's counts and the
    /// received datagrams.
    fn run(
        &mut self,
        six: bool,
        bursts: &[(u32, usize)],
        reset_before: Option<usize>,
    ) -> (Sent, Vec<VerifiedDatagram>) {
        let all = Arc::new(Mutex::new(Vec::new()));
        let inbox = self.far.stack().bind_udp(Some(PORT)).unwrap();
        let receiving = self.far.spawn("receiver", receive(inbox, all.clone()));
        let (near, far, to, bursts) = (self.near.clone(), self.far.clone(), self.to(six), bursts.to_vec());
        let sending = self.near.spawn("sender", async move {
            let mut outbox = near.stack().bind_udp(Some(5000)).unwrap();
            let mut sender = Sender::new(&mut outbox);
            // The receive context is in place after this time.
            near.runtime().sleep(Duration::from_micros(100)).await;
            let mut number = 0;
            for (at, (count, each)) in bursts.into_iter().enumerate() {
                if reset_before == Some(at) {
                    // Both devices lose their contexts at once, the worst case for packets on the wire.
                    near.reset_device();
                    far.reset_device();
                }
                sender.send(&mut outbox, burst(to, number, count, each)).await;
                number += count;
                near.runtime().sleep(Duration::from_micros(5)).await;
                sender.hear(&mut outbox).await;
            }
            // The last packets and events need time to arrive.
            near.runtime().sleep(Duration::from_millis(5)).await;
            sender.hear(&mut outbox).await;
            sender.sent
        });
        let sent = self.bed.run(sending);
        // The receiver never ends by itself.
        drop(receiving);
        assert!(!self.wire.contains(b"PLAINTEXT"), "nothing leaves as it is");
        let heard = all.lock().unwrap().clone();
        (sent, heard)
    }

    fn counters(&self) -> CounterSet {
        self.bed.counters()
    }
}

/// Bursts of all kinds, some at the limits of the path.
const BURSTS: [(u32, usize); 7] = [(1, 300), (10, 1200), (40, 1452), (1, 1452), (60, 200), (2, 1000), (47, 1300)];

fn numbers_and_sizes(heard: &[VerifiedDatagram]) -> Vec<(u32, usize)> {
    heard.iter().map(|heard| (heard.number, heard.bytes)).collect()
}

fn joins() -> NicConfig {
    NicConfig { lro_datagrams: true, ..NicConfig::default() }
}

#[test]
fn device_and_software_seal_the_same_datagrams() {
    let datagrams: u32 = BURSTS.iter().map(|(count, _)| count).sum();
    for six in [false, true] {
        // Each NIC leaves another part of the work to the stack; the frames must not differ.
        let one_by_one = NicConfig { udp_segmentation: false, ..NicConfig::default() };
        let few = NicConfig { tso_max_bytes: 7000, ..NicConfig::default() };
        let no_checksums = NicConfig { checksum_offload: false, lro: false, ..NicConfig::default() };
        let mut wires: Vec<Vec<Bytes>> = Vec::new();
        for (has_engine, nic) in [
            ([true, true], NicConfig::default()),
            ([true, false], few),
            ([true, true], one_by_one.clone()),
            ([true, false], no_checksums),
            ([false, true], NicConfig::default()),
            ([false, false], one_by_one),
        ] {
            let mut world = world(has_engine, [nic, joins()], LinkConfig::default());
            let (sent, heard) = world.run(six, &BURSTS, None);
            let [by_device, by_software] = if has_engine[0] { [7, 0] } else { [0, 7] };
            assert_eq!(sent, Sent { by_device, by_software, ..Sent::default() });
            assert!(heard.iter().map(|heard| heard.number).eq(0..datagrams), "{has_engine:?}");
            assert!(heard.iter().all(|heard| heard.ecn == EcnCodepoint::Capable0));
            // A quick reader sees some datagrams before others can be joined to them.
            let joined = heard.iter().filter(|heard| heard.by_device.is_some_and(|packets| packets > 1)).count();
            match has_engine[1] {
                true => assert!(joined > 50 && heard.iter().all(|heard| heard.by_device.is_some()), "{joined}"),
                false => assert!(heard.iter().all(|heard| heard.by_device.is_none())),
            }
            let counters = world.counters();
            assert_eq!(counters.value("UdpOutDatagrams"), u64::from(datagrams));
            assert_eq!(counters.value("UdpInDatagrams"), u64::from(datagrams));
            assert_eq!(counters.value("HostTxDeviceDrops"), 0);
            wires.push(world.wire.seen().iter().map(|seen| seen.frame.data.clone()).collect());
        }
        for frames in &wires {
            assert_eq!(frames.len(), datagrams as usize);
            assert!(*frames == wires[0], "the wire shows who sealed them (IPv6: {six})");
            // RFC 9000 14: IPv4 packets must not be fragmented.
            assert!(six || frames.iter().all(|frame| frame[20] & 0x40 != 0));
        }
    }
}

/// Each datagram can be opened on its own: no lost, late or broken datagram keeps the device from opening others.
#[test]
fn device_opens_every_datagram_despite_faults() {
    let share = |share| Share::new(share).unwrap();
    let reorder = Reorder { share: share(0.05), hold: Duration::from_micros(40) };
    let impairments = Impairments {
        loss: share(0.05),
        mark: share(0.1),
        duplicate: share(0.02),
        corrupt: share(0.02),
        reorder: Some(reorder),
        ..Impairments::default()
    };
    let link = LinkConfig { rate: Some(10_000_000_000), impairments, ..LinkConfig::default() };
    let bursts: Vec<_> = BURSTS.into_iter().cycle().take(70).collect();
    let sent: u32 = bursts.iter().map(|(count, _)| count).sum();
    let mut received = Vec::new();
    for opens in [true, false] {
        let nics = [NicConfig::default(), joins()];
        let (_, heard) = world([true, opens], nics, link.clone()).run(false, &bursts, None);
        assert!(heard.iter().all(|heard| heard.by_device.is_some() == opens), "all of them, or none");
        let ecn = |ecn| heard.iter().filter(|heard| heard.ecn == ecn).count();
        let (marked, unmarked) = (ecn(EcnCodepoint::CongestionExperienced), ecn(EcnCodepoint::Capable0));
        assert!(marked > 50 && marked + unmarked == heard.len(), "{marked} and {unmarked}");
        let mut numbers = numbers_and_sizes(&heard);
        assert!(!numbers.is_sorted(), "some were late");
        numbers.sort_unstable();
        let all = numbers.len();
        numbers.dedup();
        // Without duplicates and reordering the test would pass for the wrong reason.
        assert!(numbers.len() < all, "some came twice");
        assert!((0.9..0.97).contains(&(numbers.len() as f64 / f64::from(sent))), "{} of {sent}", numbers.len());
        received.push(numbers);
    }
    // The same seed gives the same faults, so device and software must open the same datagrams.
    assert!(received[0] == received[1], "whoever opens them");
}

#[test]
fn device_continues_after_a_reset() {
    let bursts = [(20, 1200); 30];
    let mut world = world([true; 2], [NicConfig::default(), joins()], LinkConfig::default());
    let (sent, heard) = world.run(false, &bursts, Some(10));
    assert_eq!((sent.resets, sent.by_device + sent.by_software), (1, 30));
    assert!(sent.by_device >= 28, "{sent:?}");
    // Packets that were queued to the device and not yet sealed at the reset were dropped there.
    let (counters, all) = (world.counters(), 20 * 30);
    let (lost, dropped) = (all - heard.len() as u64, counters.value("tx_drop_unknown_context"));
    assert!(dropped > 0 && lost == 20 * dropped, "{lost} lost, {dropped} packets dropped");
    let after = heard.iter().filter(|heard| heard.number >= 13 * 20);
    assert!(after.clone().count() == 17 * 20 && after.clone().all(|heard| heard.by_device.is_some()));
}

// ---- refused sends

/// Returns a socket with a transmit context, on a host with a slow NIC.
fn slow() -> (HushBed, UdpSocket, Handle) {
    let nic = NicConfig { line_rate: Some(100_000_000), ..NicConfig::default() };
    let world = world([true; 2], [nic, joins()], LinkConfig::default());
    let mut socket = world.near.stack().bind_udp(Some(5000)).unwrap();
    let context = context(&mut socket, Direction::Transmit).unwrap();
    (world, socket, context)
}

fn asking(to: SocketAddr, context: Handle, number: u32, count: u32, each: usize) -> TxDatagram {
    let ask = PacketAsk { context, number: number.into(), args: 77 };
    TxDatagram { ask: Some(ask), ..burst(to, number, count, each) }
}

/// Polls a send once.
fn try_send(
    world: &mut HushBed,
    socket: &mut UdpSocket,
    batch: &mut VecDeque<TxDatagram>,
) -> Poll<Result<usize, SendRefusal>> {
    world.bed.run(poll_fn(|cx| Poll::Ready(socket.poll_send(cx, batch))))
}

#[test]
fn impossible_sends_are_refused() {
    let (mut world, mut socket, context) = slow();
    for six in [false, true] {
        let (to, most) = (world.to(six), if six { 1452 } else { 1472 });
        assert_eq!(socket.limits(to).bytes, most);
        let whole = asking(to, context, 0, 1, 1000);
        let refused = |datagram: TxDatagram, world: &mut HushBed, socket: &mut UdpSocket| {
            let mut batch = VecDeque::from([datagram]);
            let Poll::Ready(Err(refused)) = try_send(world, socket, &mut batch) else { panic!("it was taken") };
            assert_eq!(batch.len(), 1, "it is handed back");
            refused
        };
        // A datagram is never fragmented, with or without `dont_fragment`.
        for dont_fragment in [false, true] {
            let long = TxDatagram { dont_fragment, ..asking(to, context, 0, 1, most + 1) };
            let error = refused(long, &mut world, &mut socket);
            assert!(matches!(error, SendRefusal::TooLong { most: told } if told == most), "{error}");
        }
        let unasked = TxDatagram { ask: None, ..burst(to, 0, 1, most + 1) };
        assert!(matches!(refused(unasked, &mut world, &mut socket), SendRefusal::TooLong { .. }));
        let many = asking(to, context, 0, 129, 200);
        assert!(matches!(refused(many, &mut world, &mut socket), SendRefusal::TooMany { segments: 128, .. }));
        // Contexts that do not exist.
        for other in [Handle { index: context.index + 1, ..context }, Handle { generation: 9, ..context }] {
            let foreign = asking(to, other, 0, 1, 1000);
            assert!(matches!(refused(foreign, &mut world, &mut socket), SendRefusal::Ask));
        }
        let there = Some(to.ip());
        let source = TxDatagram { source: there, ..whole.clone() };
        assert!(matches!(refused(source, &mut world, &mut socket), SendRefusal::Source { .. }));
        let nowhere = TxDatagram { to: "192.0.2.1:9".parse().unwrap(), ..whole.clone() };
        assert!(matches!(refused(nowhere, &mut world, &mut socket), SendRefusal::Unreachable { .. }));
        // A host may use its own address.
        let own: IpAddr = if six { world.near.ipv6_address().into() } else { world.near.address().into() };
        let mut batch = VecDeque::from([TxDatagram { source: Some(own), ..whole }]);
        assert!(matches!(try_send(&mut world, &mut socket, &mut batch), Poll::Ready(Ok(1))));
    }
    assert_eq!(world.counters().value("UdpOutDatagrams"), 2);
}

#[test]
fn sends_of_a_removed_context_are_reported() {
    let (mut world, mut socket, context) = slow();
    let _nobody_answers = world.far.stack().bind_udp(Some(PORT)).unwrap();
    let (to, mut number, mut taken) = (world.to(false), 0, 0);
    loop {
        let mut batch: VecDeque<_> = (0..10).map(|at| asking(to, context, number + 30 * at, 30, 1400)).collect();
        match try_send(&mut world, &mut socket, &mut batch) {
            Poll::Ready(sent) => taken += sent.unwrap(),
            Poll::Pending => break,
        }
        number += 300 - 30 * batch.len() as u32;
    }
    assert!((100..2000).contains(&taken), "{taken} sends wait");
    // Bursts that wait for the slow line have not reached the engine yet.
    socket.control(&mut |contexts| contexts.remove(context));
    let mut batch = VecDeque::from([asking(to, context, number, 1, 100)]);
    assert!(matches!(try_send(&mut world, &mut socket, &mut batch), Poll::Ready(Err(SendRefusal::Ask))));
    let runtime = world.near.runtime();
    world.bed.run(runtime.sleep(Duration::from_secs(1)));
    let mut told = Vec::new();
    while let Some(event) = world.bed.run(next_event(&mut socket)) {
        match event {
            SocketEvent::NotSent(ask) => told.push(ask),
            other => assert_eq!(other, SocketEvent::Context(ContextNews::Removed(context))),
        }
    }
    let counters = world.counters();
    assert_eq!(told.len() as u64, counters.value("HostTxDeviceDrops"));
    assert!(told.len() > 90, "{}", told.len());
    let sent = counters.value("UdpOutDatagrams") - 30 * told.len() as u64;
    assert!(told.iter().map(|ask| ask.number).eq((sent..number.into()).step_by(30)), "the last ones, in order");
    // A dropped burst must not leave the host, not even in plain.
    assert_eq!(world.wire.seen().len() as u64, sent);
    assert!(!world.wire.contains(b"PLAINTEXT"));
}

#[test]
fn lost_context_is_refused_after_a_reset() {
    let (mut world, mut socket, lost) = slow();
    let (to, runtime) = (world.to(false), world.near.runtime());
    world.near.reset_device();
    world.bed.run(runtime.sleep(Duration::from_millis(1)));
    assert_eq!(world.bed.run(next_event(&mut socket)), Some(SocketEvent::Reset));
    let mut batch = VecDeque::from([asking(to, lost, 0, 1, 200)]);
    assert!(matches!(try_send(&mut world, &mut socket, &mut batch), Poll::Ready(Err(SendRefusal::Ask))));
    let made = context(&mut socket, Direction::Transmit).unwrap();
    batch[0].ask = Some(PacketAsk { context: made, number: 0, args: 77 });
    assert!(matches!(try_send(&mut world, &mut socket, &mut batch), Poll::Ready(Ok(1))));
}

#[test]
fn a_socket_that_is_dropped_gives_its_contexts_back() {
    let (mut world, mut socket, _) = slow();
    let receiving = context(&mut socket, Direction::Receive).unwrap();
    let runtime = world.near.runtime();
    world.bed.run(runtime.sleep(Duration::from_millis(1)));
    assert_eq!(world.bed.run(next_event(&mut socket)), Some(SocketEvent::Context(ContextNews::Ready(receiving))));
    assert_eq!(world.near.device_contexts(), 2);
    drop(socket);
    world.bed.run(runtime.sleep(Duration::from_millis(1)));
    assert_eq!(world.near.device_contexts(), 0);
}

/// An ICMP error would quote the datagram, and opened contents must not leave again.
#[test]
fn opened_datagram_is_not_quoted_in_icmp() {
    let mut world = world([true; 2], [NicConfig::default(), joins()], LinkConfig::default());
    let mut opens = world.far.stack().bind_udp(Some(1)).unwrap();
    context(&mut opens, Direction::Receive).unwrap();
    let mut socket = world.near.stack().bind_udp(Some(5000)).unwrap();
    let (to, runtime) = (world.to(false), world.near.runtime());
    world.bed.run(runtime.sleep(Duration::from_millis(1)));
    let mut batch = VecDeque::from([sealed(&burst(to, 0, 1, 500)), TxDatagram::new(to, Bytes::from_static(b"plain"))]);
    assert!(matches!(try_send(&mut world, &mut socket, &mut batch), Poll::Ready(Ok(2))));
    world.bed.run(runtime.sleep(Duration::from_millis(1)));
    let counters = world.counters();
    assert_eq!((counters.value("UdpNoPorts"), counters.value("IcmpOutDestUnreachs")), (2, 1));
    assert!(!world.wire.contains(b"PLAINTEXT"));
}

#[test]
fn contexts_of_one_queue_are_not_for_another() {
    let nic = NicConfig { queues: 2, ..joins() };
    let mut world = world([true; 2], [nic.clone(), nic], LinkConfig::default());
    let [first, second] = [0, 1].map(|shard: usize| world.far.shards()[shard].clone());
    let (mut opens, mut inbox) = (first.bind_udp(Some(1)).unwrap(), second.bind_udp(Some(PORT)).unwrap());
    let opener = context(&mut opens, Direction::Receive).unwrap();
    let mut socket = world.near.stack().bind_udp(Some(5000)).unwrap();
    let (to, runtime) = (world.to(false), world.near.runtime());
    world.bed.run(runtime.sleep(Duration::from_millis(1)));
    // The first queue opens the datagram for a socket of the second queue, where no receiver knows the opening context.
    let mut batch = VecDeque::from([sealed(&burst(to, 0, 1, 500)), TxDatagram::new(to, Bytes::from_static(b"plain"))]);
    assert!(matches!(try_send(&mut world, &mut socket, &mut batch), Poll::Ready(Ok(2))));
    world.bed.run(runtime.sleep(Duration::from_millis(1)));
    let mut received = Vec::new();
    world.bed.run(poll_fn(|cx| inbox.poll_receive(cx, &mut received, 9))).unwrap();
    assert_eq!(received.iter().map(|datagram| &datagram.data[..]).collect::<Vec<_>>(), [b"plain"]);
    assert_eq!(world.counters().value("HostShardDrops"), 1);
    // A context made on one queue cannot be used on another.
    let answer = asking((world.near.address(), 5000).into(), opener, 0, 1, 100);
    let mut batch = VecDeque::from([answer]);
    let sent = world.bed.run(poll_fn(|cx| Poll::Ready(inbox.poll_send(cx, &mut batch))));
    assert!(matches!(sent, Poll::Ready(Err(SendRefusal::Ask))));
}

/// A socket that does not ask for joined datagrams gets them one by one.
#[test]
fn a_plain_reader_gets_one_datagram_at_a_time() {
    let mut world = world([false; 2], [NicConfig::default(), joins()], LinkConfig::default());
    let inbox = world.far.stack().bind_udp(Some(9)).unwrap();
    let outbox = world.near.stack().bind_udp(None).unwrap();
    let to = (world.far.address(), 9).into();
    let receiving = world.far.spawn("receiver", async move {
        let mut all = Vec::new();
        while all.len() < 42 {
            all.push(inbox.recv_from().await.unwrap().0.to_vec());
        }
        all
    });
    let data: Bytes = (0..50_000u32).map(|at| (at >> 7) as u8).collect();
    let each = NonZeroU16::new(1200).unwrap();
    world.bed.run(outbox.send_segmented(data.clone(), each, to)).unwrap();
    let received = world.bed.run(receiving);
    assert!(received.iter().map(Vec::as_slice).eq(data.chunks(1200)));
    assert!(world.counters().value("rx_lro_packets") > 0, "they were joined");
}

/// Runs the protocol without any device.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn protocol_runs_over_the_kernels_sockets() {
    use offload_api::TokioDatagrams;
    let bind = || tokio::net::UdpSocket::bind("127.0.0.1:0");
    let mut near = TokioDatagrams::new(bind().await.unwrap()).unwrap();
    let mut far = TokioDatagrams::new(bind().await.unwrap()).unwrap();
    let to = far.local_addr().unwrap();
    let receiving = tokio::spawn(async move {
        let (opener, mut batch, mut all) = (context(&mut far, Direction::Receive), Vec::new(), Vec::new());
        while all.len() < 60 {
            poll_fn(|cx| far.poll_receive(cx, &mut batch, 16)).await.unwrap();
            all.extend(batch.drain(..).flat_map(|datagram| take(datagram, opener)));
        }
        all
    });
    let mut sender = Sender::new(&mut near);
    for first in (0..60).step_by(20) {
        sender.send(&mut near, burst(to, first, 20, 1200)).await;
    }
    let heard = receiving.await.unwrap();
    assert_eq!(sender.sent, Sent { by_software: 3, ..Sent::default() });
    assert!(heard.iter().map(|heard| heard.number).eq(0..60));
    assert!(heard.iter().all(|heard| heard.ecn == EcnCodepoint::Capable0 && heard.by_device.is_none()));
}
