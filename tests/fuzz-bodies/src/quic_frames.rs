//! QUIC packets into a device with a context, and requests out of it: sealed packets are opened to their plaintext;
//! other packets are delivered unchanged; packets that cannot be sealed are not sent; and nothing panics.
//!
//! Input: a byte of operation, a byte of length in units of eight, that many bytes, and so on.

use crate::input::Input;
use bytes::Bytes;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, NicConfig, nic};
use offload_api::quic::QuicContext;
use offload_api::{Direction, NetDevice, NoRecords, QuicAsk, QuicCipher, QuicContexts, QuicVerdict, TxAsk, TxPacket};
use offload_base::Instant;
use offload_formats::Headers;
use offload_quic::{TrafficSecret, seal};

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let cipher = QuicCipher::ALL[usize::from(input.byte()) % 4];
    let cid = usize::from(input.byte()) % 21;
    // The cache has room for one context, so that contexts are evicted all the time.
    let config = NicConfig { delays: Delays::NONE, line_rate: None, context_cache_bytes: 208, ..NicConfig::default() };
    let (mut device, mut driver) = nic(config);
    let secret = TrafficSecret::new(cipher, &[7; 48][..if cipher == QuicCipher::Aes256Gcm { 48 } else { 32 }]);
    let Ok(secret) = secret else { return };
    let context = || QuicContext { header: secret.header(), generation: 0, key: secret.key() };
    let Some(mut quic) = driver.contexts().and_then(QuicContexts::from_contexts) else { return };
    quic.listen(PORT, cid as u8).expect("there is room");
    let [sender, receiver] = [Direction::Transmit, Direction::Receive]
        .map(|direction| quic.create(direction, context()).expect("there is room"));
    // The device must know the connection ID to find the context.
    quic.learn(receiver, PORT, &[0xc1; 20][..cid], 3, None).expect("there is room");
    let (now, mut number) = (Instant::ZERO, 0u64);
    device.process(now);
    while !input.0.is_empty() {
        let (what, bytes) = (input.byte(), usize::from(input.byte()) * 8 % 1400);
        let bytes = input.take(bytes);
        // Numbers may skip, but must not go back, as on a real connection.
        number += u64::from(what >> 4);
        let plain =
            [&[0x41 | what & 0x1c], &[0xc1; 20][..cid], &(number as u16).to_be_bytes(), bytes, &[0; 16]].concat();
        match what & 3 {
            // A packet sealed here, which the device must open if sealing succeeded.
            0 => {
                let mut sealed = plain.clone();
                let fits = seal(&secret.packet_key(), &secret.header_key(), &mut sealed, 1 + cid, 3, number).is_ok();
                device.receive_frame(now, frame(&sealed));
                device.process(now);
                let packet = driver.receive(now).expect("nothing is lost");
                let data = payload(&packet.frame);
                match QuicVerdict::from_marks(&packet.meta.marks) {
                    QuicVerdict::Opened { context, .. } => {
                        assert!(context == receiver && fits);
                        let end = plain.len() - 16;
                        assert_eq!(data[..end], plain[..end]);
                    }
                    _ => assert_eq!(data, sealed),
                }
            }
            // Arbitrary bytes.
            1 => {
                device.receive_frame(now, frame(bytes));
                device.process(now);
                let packet = driver.receive(now).expect("nothing is lost");
                assert!(!matches!(QuicVerdict::from_marks(&packet.meta.marks), QuicVerdict::Opened { .. }));
                assert_eq!(payload(&packet.frame), bytes);
            }
            // A packet to be sealed by the device, with a valid or an arbitrary request.
            _ => {
                let whole = what & 3 == 2;
                let data = if whole { plain } else { bytes.to_vec() };
                let (generation, cid_bytes) = if whole { (0, cid as u8) } else { (what.into(), what) };
                let ask = QuicAsk { context: sender, path: 3, number, generation, cid_bytes };
                let ask = TxAsk { checksum: true, packet: Some(ask.into()), ..TxAsk::default() };
                let header = header(data.len()).into();
                let packet = TxPacket { header, fragments: [Bytes::from(data.clone())].into_iter().collect(), ask };
                let _sent = driver.transmit(now, packet, &NoRecords);
                driver.flush(now);
                device.process(now);
                while let Some(frame) = device.poll_frame(now) {
                    let sealed = payload(&frame.data);
                    assert!(sealed.len() == data.len() && sealed[data.len() - 16..] != data[data.len() - 16..]);
                }
                device.process(now);
            }
        }
        driver.flush(now);
    }
}

fn header(bytes: usize) -> Vec<u8> {
    let mut header = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0];
    header.extend_from_slice(&(28 + bytes as u16).to_be_bytes());
    header.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x20, 1]);
    header.extend_from_slice(&PORT.to_be_bytes());
    header.extend_from_slice(&(8 + bytes as u16).to_be_bytes());
    header.extend_from_slice(&[0, 0]);
    header
}

fn frame(datagram: &[u8]) -> Frame {
    let mut frame = header(datagram.len());
    frame.extend_from_slice(datagram);
    if let Some(transport) = Headers::parse(&frame).transport() {
        transport.fill_checksums(&mut frame);
    }
    frame.into()
}

fn payload(frame: &[u8]) -> &[u8] {
    Headers::parse(frame).transport().map_or(&[], |transport| &frame[transport.payload..transport.end])
}

const PORT: u16 = 4433;
