//! PDUs in a stream that is cut at random, and every check of the receiver.

use bytes::{Bytes, BytesMut};
use nvme_tcp::wire::{
    Command, Completion, ConnectionSide, DataHeader, FatalError, FatalStatus, InitializeRequest, InitializeResponse,
    IoOpcode, Pdu, PduFraming, PduItem, PduLimits, PduReceiver, ReadyToTransfer, Sgl, Status, Termination, WirePdu,
};
use offload_api::rx::NvmeVerdict;
use offload_api::{Handle, RxMeta, RxSegment, Verdict, engines};
use offload_base::Seq;
use proptest::prelude::*;

/// A PDU with its data, and whether it is complete.
type ParsedPdu = (Pdu, Vec<u8>, bool);

fn any_pdu(side: ConnectionSide) -> BoxedStrategy<(Pdu, Vec<u8>)> {
    let data = prop::collection::vec(any::<u8>(), 1..300usize);
    match side {
        ConnectionSide::Controller => prop_oneof![
            (any::<u16>(), any::<u32>(), prop::option::of(data.clone())).prop_map(|(id, namespace, data)| {
                let data = data.unwrap_or_default();
                let command = Command::new(IoOpcode::Write as u8, id).with_namespace(namespace);
                (Pdu::Command(command.with_sgl(Sgl::in_capsule(data.len() as u32))), data)
            }),
            (any::<u16>(), any::<u16>(), any::<u32>(), any::<bool>(), data).prop_map(
                |(command, tag, offset, last, data)| {
                    let length = data.len() as u32;
                    (Pdu::HostData(DataHeader { command, tag, offset, length, last, success: false }), data)
                }
            ),
        ]
        .boxed(),
        ConnectionSide::Host => prop_oneof![
            any::<(u64, u16, u16)>().prop_map(|(result, command, status)| {
                let status = Status::from_bits(status);
                (Pdu::Response(Completion { result, command, status, ..Completion::default() }), Vec::new())
            }),
            any::<(u16, u16, u32, u32)>().prop_map(|(command, tag, offset, length)| {
                (Pdu::ReadyToTransfer(ReadyToTransfer { command, tag, offset, length }), Vec::new())
            }),
            (any::<u16>(), any::<u32>(), any::<bool>(), any::<bool>(), data).prop_map(
                |(command, offset, last, success, data)| {
                    let length = data.len() as u32;
                    (Pdu::ControllerData(DataHeader { command, tag: 0, offset, length, last, success }), data)
                }
            ),
        ]
        .boxed(),
    }
}

fn limits(framing: PduFraming) -> PduLimits {
    let PduFraming { header_digest, data_digest, alignment } = framing;
    PduLimits { header_digest, data_digest, alignment, ..PduLimits::default() }
}

fn receive(receiver: &mut PduReceiver, all: &mut Vec<ParsedPdu>) -> Result<(), FatalError> {
    while let Some(received) = receiver.poll()? {
        match received {
            PduItem::Header { pdu, data } => {
                assert!(all.last().is_none_or(|(_, _, ended)| *ended), "the PDU before has ended");
                all.push((pdu, Vec::new(), data == 0));
            }
            PduItem::Data(segment) => all.last_mut().unwrap().1.extend_from_slice(&segment.data),
            PduItem::DataEnd { intact } => {
                let last = all.last_mut().unwrap();
                assert!(intact, "the digest of {:?}", last.0);
                last.2 = true;
            }
        }
    }
    Ok(())
}

fn segment(seq: u32, data: &[u8], nvme: NvmeVerdict) -> RxSegment {
    let context = Handle { index: Handle::indices(engines::NVME_TCP, 1).start, generation: 0 };
    let meta = match nvme {
        NvmeVerdict::NotChecked => RxMeta::default(),
        NvmeVerdict::Good => RxMeta::default().marked(context, Verdict::Done),
        NvmeVerdict::ResyncRequested => RxMeta::default().marked(context, Verdict::Asks),
    };
    RxSegment { seq: Seq(seq), data: BytesMut::from(data).into(), meta }
}

fn wire(pdu: WirePdu) -> Vec<u8> {
    let length = pdu.len() as usize;
    let bytes = pdu.into_pieces().collect::<Vec<_>>().concat();
    assert_eq!(bytes.len(), length, "PLEN");
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The receiver returns the same PDUs and data for any cut and any pieces that the device verified.
    #[test]
    fn pdus_do_not_depend_on_cuts(
        (side, pdus) in prop::sample::select(vec![ConnectionSide::Host, ConnectionSide::Controller])
            .prop_flat_map(|side| (Just(side), prop::collection::vec(any_pdu(side), 1..8))),
        header_digest: bool, data_digest: bool, alignment in 0u8..32,
        cuts in prop::collection::vec((1usize..200, any::<bool>()), 1..50),
    ) {
        let framing = PduFraming { header_digest, data_digest, alignment };
        let (mut stream, mut ends) = (Vec::new(), vec![0]);
        for (pdu, data) in &pdus {
            // Two pieces, which must make no difference.
            let (left, right) = data.split_at(data.len() / 3);
            stream.extend(wire(framing.frame(pdu, [Bytes::copy_from_slice(left), Bytes::copy_from_slice(right)])));
            ends.push(stream.len());
        }
        let mut receiver = PduReceiver::new(side, limits(framing));
        let (mut all, mut at) = (Vec::new(), 0);
        for (bytes, vouched) in cuts.iter().cycle() {
            let end = stream.len().min(at + bytes);
            let verdict = if *vouched { NvmeVerdict::Good } else { NvmeVerdict::NotChecked };
            receiver.push(segment(at as u32, &stream[at..end], verdict));
            receive(&mut receiver, &mut all).unwrap();
            at = end;
            // `rest` must be exact between and within PDUs, and unknown only within a header.
            let next = ends[ends.partition_point(|end| *end < at)];
            let header = all.last().is_none_or(|(_, _, ended)| *ended) && next > at;
            prop_assert_eq!(receiver.rest(), (!header).then_some((next - at) as u32));
            if at == stream.len() { break }
        }
        prop_assert!(receiver.is_between_pdus());
        prop_assert_eq!(receiver.taken(), stream.len() as u64);
        let sent: Vec<ParsedPdu> = pdus.into_iter().map(|(pdu, data)| (pdu, data, true)).collect();
        prop_assert_eq!(all, sent);
    }

    /// A flipped bit in the data or their digest is found, unless the device verified every byte of the PDU.
    #[test]
    fn flipped_bit_is_found(at in 0usize..104, bit in 0u8..8, cut in 1usize..104, first: bool, second: bool) {
        let framing = PduFraming { data_digest: true, ..PduFraming::default() };
        let data = DataHeader { command: 1, tag: 2, offset: 0, length: 100, last: true, success: false };
        let mut stream = wire(framing.frame(&Pdu::HostData(data), [Bytes::from(vec![7; 100])]));
        stream[24 + at] ^= 1 << bit;
        let verdict = |vouched| if vouched { NvmeVerdict::Good } else { NvmeVerdict::NotChecked };
        let mut receiver = PduReceiver::new(ConnectionSide::Controller, limits(framing));
        receiver.push(segment(0, &stream[..24 + cut], verdict(first)));
        receiver.push(segment(0, &stream[24 + cut..], verdict(second)));
        let mut end = None;
        while let Some(received) = receiver.poll().unwrap() {
            if let PduItem::DataEnd { intact } = received { end = Some(intact) }
        }
        prop_assert_eq!(end, Some(first && second));
    }

    /// Random bytes cause an error or nothing, but no panic. An error is final.
    #[test]
    fn noise_does_not_panic(noise in prop::collection::vec(any::<u8>(), 0..400), header_digest: bool, data_digest: bool) {
        for side in [ConnectionSide::Host, ConnectionSide::Controller] {
            let framing = PduFraming { header_digest, data_digest, alignment: 3 };
            let mut receiver = PduReceiver::new(side, limits(framing));
            receiver.push(segment(0, &noise, NvmeVerdict::NotChecked));
            let mut ended = Ok(());
            loop {
                match receiver.poll() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => { ended = Err(error); break }
                }
            }
            if let Err(error) = ended {
                prop_assert_eq!(receiver.poll().unwrap_err(), error);
            }
        }
    }
}

#[test]
fn data_are_held_back_only_while_the_device_verifies() {
    let framing = PduFraming { data_digest: true, ..PduFraming::default() };
    let data = DataHeader { command: 1, tag: 2, offset: 0, length: 100, last: true, success: false };
    let stream = wire(framing.frame(&Pdu::HostData(data), [Bytes::from(vec![7; 100])]));
    let mut receiver = PduReceiver::new(ConnectionSide::Controller, limits(framing));
    receiver.push(segment(0, &stream[..64], NvmeVerdict::Good));
    assert!(matches!(receiver.poll(), Ok(Some(PduItem::Header { data: 100, .. }))));
    assert!(matches!(receiver.poll(), Ok(None)), "40 bytes wait for the device's verdict on the rest");
    receiver.push(segment(64, &stream[64..70], NvmeVerdict::NotChecked));
    let mut given = 0;
    while let Some(PduItem::Data(segment)) = receiver.poll().unwrap() {
        given += segment.data.len();
    }
    assert_eq!(given, 46);
}

/// The fatal error for each kind of invalid header, one row for each check.
#[test]
fn every_invalid_header_has_its_fatal_error() {
    let digests = PduFraming { header_digest: true, data_digest: true, alignment: 0 };
    let plain = PduFraming::default();
    let command = Pdu::Command(Command::new(IoOpcode::Write as u8, 1).with_sgl(Sgl::in_capsule(8)));
    let data = DataHeader { command: 1, tag: 0, offset: 0, length: 8, last: true, success: false };
    let (host_data, controller_data) = (Pdu::HostData(data), Pdu::ControllerData(data));
    let request = Pdu::InitializeRequest(InitializeRequest::default());
    let response = Pdu::Response(Completion::default());
    let ask = Pdu::ReadyToTransfer(ReadyToTransfer { command: 1, tag: 0, offset: 0, length: 8 });
    let ending = Pdu::HostTermination(Termination { status: 1, information: [0; 4] });
    let payload = || [Bytes::from_static(b"8 bytes!")];
    let none = || [Bytes::new()];
    let field = FatalStatus::InvalidHeaderField;
    let limit = FatalStatus::LimitExceeded;
    // Name; receiver; framing; PDU; position and value of the changed bytes; expected FES and FEI.
    type PduFaultRow = (&'static str, ConnectionSide, PduFraming, WirePdu, usize, Vec<u8>, FatalStatus, Option<u32>);
    let rows: Vec<PduFaultRow> = vec![
        (
            "unknown type",
            ConnectionSide::Controller,
            plain,
            plain.frame(&command, payload()),
            0,
            vec![0x0b],
            field,
            Some(0),
        ),
        (
            "type of the other side",
            ConnectionSide::Controller,
            plain,
            plain.frame(&response, none()),
            0,
            vec![0x05],
            field,
            Some(0),
        ),
        (
            "type of the other side",
            ConnectionSide::Host,
            plain,
            plain.frame(&command, payload()),
            0,
            vec![0x04],
            field,
            Some(0),
        ),
        (
            "HLEN of ICReq",
            ConnectionSide::Controller,
            plain,
            plain.frame(&request, none()),
            2,
            vec![127],
            field,
            Some(2),
        ),
        (
            "HLEN of a command",
            ConnectionSide::Controller,
            plain,
            plain.frame(&command, payload()),
            2,
            vec![73],
            field,
            Some(2),
        ),
        (
            "HLEN of a response",
            ConnectionSide::Host,
            plain,
            plain.frame(&response, none()),
            2,
            vec![16],
            field,
            Some(2),
        ),
        (
            "PDO into the header",
            ConnectionSide::Controller,
            plain,
            plain.frame(&command, payload()),
            3,
            vec![68],
            field,
            Some(3),
        ),
        (
            "PDO into the digest",
            ConnectionSide::Controller,
            digests,
            digests.frame(&command, payload()),
            3,
            vec![72],
            field,
            Some(3),
        ),
        (
            "PDO not aligned",
            ConnectionSide::Controller,
            plain,
            plain.frame(&host_data, payload()),
            3,
            vec![26],
            field,
            Some(3),
        ),
        (
            "PDO to the host",
            ConnectionSide::Host,
            plain,
            plain.frame(&controller_data, payload()),
            3,
            vec![20],
            field,
            Some(3),
        ),
        (
            "PLEN less than HLEN",
            ConnectionSide::Controller,
            plain,
            plain.frame(&command, payload()),
            4,
            vec![71],
            field,
            Some(4),
        ),
        (
            "PLEN of ICReq",
            ConnectionSide::Controller,
            plain,
            plain.frame(&request, none()),
            4,
            vec![129],
            field,
            Some(4),
        ),
        (
            "PLEN of a response",
            ConnectionSide::Host,
            plain,
            plain.frame(&response, none()),
            4,
            vec![28],
            field,
            Some(4),
        ),
        ("PLEN of R2T", ConnectionSide::Host, plain, plain.frame(&ask, none()), 4, vec![32], field, Some(4)),
        (
            "PLEN of H2CData without data",
            ConnectionSide::Controller,
            plain,
            plain.frame(&host_data, payload()),
            4,
            vec![24],
            field,
            Some(4),
        ),
        (
            "PLEN other than DATAL",
            ConnectionSide::Controller,
            plain,
            plain.frame(&host_data, payload()),
            4,
            vec![36],
            field,
            Some(4),
        ),
        (
            "PLEN other than DATAL, to the host",
            ConnectionSide::Host,
            plain,
            plain.frame(&controller_data, payload()),
            4,
            vec![31],
            field,
            Some(4),
        ),
        (
            "PLEN of TermReq",
            ConnectionSide::Controller,
            plain,
            plain.frame(&ending, none()),
            4,
            vec![153],
            field,
            Some(4),
        ),
        (
            "PLEN with room for a digest only",
            ConnectionSide::Controller,
            digests,
            digests.frame(&command, payload()),
            4,
            vec![80],
            field,
            Some(4),
        ),
        (
            "HDGSTF missing",
            ConnectionSide::Controller,
            digests,
            digests.frame(&command, payload()),
            1,
            vec![2],
            field,
            Some(1),
        ),
        (
            "HDGSTF without being agreed on",
            ConnectionSide::Controller,
            plain,
            plain.frame(&command, payload()),
            1,
            vec![1],
            field,
            Some(1),
        ),
        (
            "DDGSTF missing",
            ConnectionSide::Controller,
            digests,
            digests.frame(&command, payload()),
            1,
            vec![1],
            field,
            Some(1),
        ),
        (
            "header digest",
            ConnectionSide::Controller,
            digests,
            digests.frame(&command, payload()),
            72,
            vec![1, 2, 3, 4],
            FatalStatus::HeaderDigest,
            Some(0x0403_0201),
        ),
        (
            "header digest to the host",
            ConnectionSide::Host,
            digests,
            digests.frame(&response, none()),
            9,
            vec![1],
            FatalStatus::HeaderDigest,
            None,
        ),
        (
            "too much data in a capsule",
            ConnectionSide::Controller,
            plain,
            plain.frame(&command, payload()),
            4,
            vec![0, 0, 1, 0],
            limit,
            None,
        ),
        (
            "more data than MAXH2CDATA",
            ConnectionSide::Controller,
            plain,
            plain.frame(&host_data, payload()),
            4,
            vec![0, 0, 0, 1],
            limit,
            None,
        ),
    ];
    for (what, side, framing, pdu, at, bytes, status, information) in rows {
        let mut stream = wire(pdu);
        stream[at..at + bytes.len()].copy_from_slice(&bytes);
        let mut receiver = PduReceiver::new(side, limits(framing));
        receiver.push(segment(0, &stream, NvmeVerdict::NotChecked));
        let error = receive(&mut receiver, &mut Vec::new()).expect_err(what);
        assert_eq!(error.status, status, "{what}");
        // FEI is defined for some errors only.
        if let Some(information) = information {
            assert_eq!(error.information, information.to_le_bytes(), "{what}");
        }
        assert_eq!(error.header[..], stream[..error.header.len()], "{what}: the faulty header goes back");
        assert!(error.header.len() >= 8, "{what}");
    }
}

#[test]
fn opening_and_terminating_pdus_have_no_digest() {
    let digests = PduFraming { header_digest: true, data_digest: true, alignment: 0 };
    let response = Pdu::InitializeResponse(InitializeResponse { header_digest: true, ..InitializeResponse::default() });
    assert_eq!(digests.frame(&response, []).len(), 128);
    let ending = Pdu::ControllerTermination(Termination { status: 3, information: [9; 4] });
    let stream = wire(digests.frame(&ending, [Bytes::from_static(b"the header in question")]));
    let mut receiver = PduReceiver::new(ConnectionSide::Host, limits(digests));
    receiver.push(segment(0, &stream, NvmeVerdict::NotChecked));
    let mut all = Vec::new();
    receive(&mut receiver, &mut all).unwrap();
    assert_eq!(all, [(ending, b"the header in question".to_vec(), true)]);
}
