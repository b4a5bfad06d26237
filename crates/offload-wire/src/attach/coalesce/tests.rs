//! Joined packets, cut again, equal the original frames.

use super::*;
use crate::attach::Resegmenter;
use offload_formats::InternetSum;
use proptest::prelude::*;

/// The choices for one generated segment.
#[derive(Clone, Debug)]
struct SegmentPlan {
    flow: u8,
    six: bool,
    payload: usize,
    flags: u8,
    /// Whether the segment does not continue its flow.
    skip: bool,
    acknowledgment: u32,
    window: u16,
    timestamp: u32,
    corrupt: bool,
    tos: u8,
}

fn plan() -> impl Strategy<Value = SegmentPlan> {
    let flags = prop_oneof![20 => Just(0x10u8), 2 => Just(0x18u8), 1 => prop::sample::select(vec![0x11u8, 0x19, 0x50, 0x90, 0x02, 0x14, 0x30])];
    let payload = prop_oneof![10 => Just(1448usize), 2 => 0usize..1448, 1 => Just(0usize)];
    let rarely = |weight| prop_oneof![weight => Just(false), 1 => Just(true)];
    (
        0u8..3,
        rarely(3),
        payload,
        flags,
        rarely(20),
        0u32..2,
        0u16..2,
        0u32..2,
        rarely(20),
        prop_oneof![20 => Just(0u8), 1 => Just(3u8)],
    )
        .prop_map(|(flow, six, payload, flags, skip, acknowledgment, window, timestamp, corrupt, tos)| {
            // Mostly, segments differ only in their position in the flow.
            let quiet = payload % 3 == 2;
            let keep = |value: u32| if quiet { 0 } else { value };
            SegmentPlan {
                flow,
                six,
                payload,
                flags,
                skip,
                acknowledgment: keep(acknowledgment),
                window: keep(u32::from(window)) as u16,
                timestamp: keep(timestamp),
                corrupt,
                tos,
            }
        })
}

/// The state of one flow.
#[derive(Default)]
struct CoalesceFlow {
    seq: u32,
    identification: u16,
}

fn frame(plan: &SegmentPlan, flow: &mut CoalesceFlow) -> Frame {
    if plan.skip {
        // A gap in the sequence numbers, as after a lost segment.
        flow.seq = flow.seq.wrapping_add(7);
        flow.identification = flow.identification.wrapping_add(2);
    }
    let mut tcp = vec![0x01, 0xbb, 0x13, plan.flow, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, plan.flags, 0, 0, 0, 0, 0, 0];
    tcp[4..8].copy_from_slice(&flow.seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&plan.acknowledgment.to_be_bytes());
    tcp[14..16].copy_from_slice(&plan.window.to_be_bytes());
    tcp.extend([1, 1, 8, 10]);
    tcp.extend(plan.timestamp.to_be_bytes());
    tcp.extend([0, 0, 0, 9]);
    tcp.extend((0..plan.payload).map(|at| (flow.seq as usize + at) as u8));
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if plan.six {
        bytes.extend([0x86, 0xdd, 0x60, plan.tos << 4, 0, 0, 0, 0, 6, 64]);
        bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    } else {
        bytes.extend([8, 0, 0x45, plan.tos, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    bytes.extend(&tcp);
    let transport = bytes.len() - tcp.len();
    let packet_bytes = bytes.len();
    // The length is still zero here, so a checked parse would refuse the packet.
    let headers = Headers::parse_unfinished(&bytes).transport().unwrap();
    headers.version.set_length(&mut bytes[14..], packet_bytes - 14);
    if !plan.six {
        set_number(&mut bytes, 18, flow.identification);
        fill_ipv4_header(&mut bytes[14..]);
    }
    let mut sum = headers.pseudo_sum(&bytes);
    sum.add(&bytes[transport..]);
    set_number(&mut bytes, headers.checksum(), sum.finish());
    if plan.corrupt {
        let at = packet_bytes - 1;
        bytes[at] ^= 1;
    }
    flow.seq = flow.seq.wrapping_add(plan.payload as u32);
    flow.identification = flow.identification.wrapping_add(1);
    Frame::from(bytes)
}

fn frames(plans: &[SegmentPlan]) -> Vec<Frame> {
    let mut flows: [CoalesceFlow; 6] = Default::default();
    // This flow's sequence numbers wrap within the test.
    flows[1].seq = u32::MAX - 3000;
    flows[2].identification = u16::MAX - 2;
    plans.iter().map(|plan| frame(plan, &mut flows[usize::from(plan.flow) + 3 * usize::from(plan.six)])).collect()
}

/// Returns the identity of a frame's flow in these tests.
fn flow_of(frame: &Frame) -> (u8, u8) {
    let six = frame.data[12] == 0x86;
    (frame.data[12], frame.data[if six { 57 } else { 37 }])
}

fn joined(frames: &[Frame], flush_every: usize) -> Vec<OutPacket> {
    let mut coalescer = Coalescer::default();
    let mut packets = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        coalescer.push(frame.clone());
        if number % flush_every == flush_every - 1 {
            coalescer.flush();
        }
        packets.extend(std::iter::from_fn(|| coalescer.pop()));
    }
    coalescer.flush();
    packets.extend(std::iter::from_fn(|| coalescer.pop()));
    packets
}

fn cut(packet: &OutPacket) -> Vec<Frame> {
    let mut resegmenter = Resegmenter::default();
    let bytes = [&packet.virtio_header()[..]].into_iter().chain(packet.pieces()).collect::<Vec<_>>().concat();
    assert_eq!(bytes.len(), VnetHeader::LEN + packet.len());
    resegmenter.buffer()[..bytes.len()].copy_from_slice(&bytes);
    resegmenter.filled(bytes.len()).unwrap();
    std::iter::from_fn(|| resegmenter.next_frame()).collect()
}

proptest! {
    #[test]
    fn joined_packets_cut_into_the_original_frames(plans in prop::collection::vec(plan(), 0..200), flush_every in 1usize..100) {
        let frames = frames(&plans);
        let packets = joined(&frames, flush_every);
        let mut again = Vec::new();
        for packet in &packets {
            let cut = cut(packet);
            prop_assert_eq!(cut.len(), packet.frames());
            again.extend(cut);
        }
        prop_assert_eq!(again.len(), frames.len());
        for flow in [0x08, 0x86].into_iter().flat_map(|version| (0..3).map(move |port| (version, port))) {
            let of_flow = |frames: &[Frame]| frames.iter().filter(|frame| flow_of(frame) == flow).cloned().collect::<Vec<_>>();
            prop_assert!(of_flow(&again) == of_flow(&frames), "flow {:?} is not what it was", flow);
        }
    }

    #[test]
    fn garbage_passes_unchanged(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 14..200), 0..20)) {
        let frames: Vec<Frame> = frames.into_iter().map(Frame::from).collect();
        let packets = joined(&frames, 1000);
        prop_assert!(packets.iter().flat_map(cut).eq(frames));
    }
}

fn bulk(segments: usize) -> Vec<SegmentPlan> {
    let plan = SegmentPlan {
        flow: 0,
        six: false,
        payload: 1448,
        flags: 0x10,
        skip: false,
        acknowledgment: 1,
        window: 1,
        timestamp: 1,
        corrupt: false,
        tos: 0,
    };
    vec![plan; segments]
}

fn shape(plans: &[SegmentPlan]) -> Vec<usize> {
    joined(&frames(plans), usize::MAX).iter().map(OutPacket::frames).collect()
}

#[test]
fn bulk_is_joined_up_to_the_packet_limit() {
    // 45 segments of 1448 bytes fill an IP packet of 64 KiB; small segments are limited by their number.
    assert_eq!(shape(&bulk(100)), [45, 45, 10]);
    let small: Vec<SegmentPlan> = bulk(100).into_iter().map(|plan| SegmentPlan { payload: 100, ..plan }).collect();
    assert_eq!(shape(&small), [64, 36]);
}

#[test]
fn interleaved_flows_are_joined_separately() {
    let mut plans = bulk(40);
    for (number, plan) in plans.iter_mut().enumerate() {
        plan.flow = (number % 2) as u8;
    }
    assert_eq!(shape(&plans), [20, 20]);
}

#[test]
fn different_headers_are_not_joined() {
    let changed = |change: fn(&mut SegmentPlan)| {
        let mut plans = bulk(10);
        plans[5..].iter_mut().for_each(change);
        shape(&plans)
    };
    assert_eq!(changed(|_| {}), [10]);
    // A change in any other header field ends the packet, and starts another one.
    assert_eq!(changed(|plan| plan.acknowledgment = 2), [5, 5]);
    assert_eq!(changed(|plan| plan.window = 2), [5, 5]);
    assert_eq!(changed(|plan| plan.timestamp = 2), [5, 5]);
    assert_eq!(changed(|plan| plan.tos = 3), [5, 5], "congestion experienced");
    assert_eq!(changed(|plan| plan.flags = 0x50), [5, 5], "ECE");
    assert_eq!(changed(|plan| plan.payload = 1400), [6, 4], "a short one is the last, and the next are as short");
    assert_eq!(changed(|plan| plan.flags = 0x18), [6, 1, 1, 1, 1], "PSH is the last's");
    assert_eq!(changed(|plan| plan.corrupt = true), [5, 1, 1, 1, 1, 1]);
    let mut plans = bulk(10);
    plans[5].skip = true;
    assert_eq!(shape(&plans), [5, 5], "a hole");
    plans[5] = SegmentPlan { payload: 0, skip: false, ..plans[4].clone() };
    assert_eq!(shape(&plans), [5, 1, 4], "an acknowledgment without data");
}

#[test]
fn checksum_of_all_ones_is_not_joined() {
    let mut frames = frames(&bulk(2));
    let mut second = frames[1].data.to_vec();
    // The payload's last word makes the checksum zero.
    let end = second.len() - 2;
    let mut sum = InternetSum::default();
    sum.add(&second[end..]);
    sum.add(&second[50..52]);
    let word = !sum.finish();
    set_number(&mut second, end, word);
    // Both values verify, but only zero can be recreated by computing the checksum.
    for (zero, packets) in [(0, 1), (0xffff, 2)] {
        set_number(&mut second, 50, zero);
        frames[1] = Frame::from(second.clone());
        let joined = joined(&frames, usize::MAX);
        assert_eq!(joined.len(), packets, "a checksum of {zero:#x}");
        assert!(joined.iter().flat_map(cut).eq(frames.iter().cloned()));
    }
}

/// Writes a big-endian number at `at`.
fn set_number(bytes: &mut [u8], at: usize, number: u16) {
    bytes[at..at + 2].copy_from_slice(&number.to_be_bytes());
}
