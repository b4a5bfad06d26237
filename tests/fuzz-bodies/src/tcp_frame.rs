//! TCP segments in Ethernet frames, with right checksums.

use offload_formats::InternetSum;

/// Returns a segment from 10.0.0.2 to 10.0.0.1.
pub(crate) fn tcp_frame(from_port: u16, to_port: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&[2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0]);
    frame.extend_from_slice(&(40 + payload.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    frame.extend_from_slice(&from_port.to_be_bytes());
    frame.extend_from_slice(&to_port.to_be_bytes());
    frame.extend_from_slice(&seq.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend_from_slice(payload);
    let (mut ip, tcp) = (InternetSum::default(), &frame[34..]);
    ip.add(&frame[14..34]);
    let mut text = InternetSum::pseudo_header(6, [10, 0, 0, 2].into(), [10, 0, 0, 1].into(), tcp.len());
    text.add(tcp);
    frame[24..26].copy_from_slice(&ip.finish().to_be_bytes());
    frame[50..52].copy_from_slice(&text.finish().to_be_bytes());
    frame
}
