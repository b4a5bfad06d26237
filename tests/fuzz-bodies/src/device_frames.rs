//! Frames from the wire into a device with a receive context: each frame is delivered or counted as dropped, buffers
//! are neither lost nor created, and nothing panics.
//!
//! Input: a byte of length in units of eight, that many bytes of frame, and so on. Every other frame gets headers that
//! steer it to the context, so that its payload reaches the TLS engine.

use crate::tcp_frame::tcp_frame;
use core::time::Duration;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, NicConfig, nic};
use offload_api::{Direction, FlowKey, NetDevice, TlsKey, TlsSuite, TlsVersion, TypedContexts};
use offload_base::{Instant, Seq};

/// Runs one input.
pub fn run(data: &[u8]) {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, receive_ring: 4, ..NicConfig::default() };
    let (mut device, mut driver) = nic(config);
    let flow = FlowKey::tcp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[0; 16], [0; 12]).unwrap();
    driver.tls().unwrap().add(&flow, Direction::Receive, Seq(0), 0, &key).unwrap();
    let (mut now, mut data, mut seq, mut frames, mut received) = (Instant::ZERO, data, 0u32, 0u64, 0u64);
    while let Some((length, rest)) = data.split_first() {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length) * 8));
        data = rest;
        let frame = if frames % 2 == 0 { bytes.to_vec() } else { steered(bytes, &mut seq) };
        frames += 1;
        // Time must advance, or moderated interrupts would never fire.
        now += Duration::from_nanos(100);
        device.receive_frame(now, Frame::from(frame));
        device.process(now);
        assert!(device.poll_frame(now).is_none());
        while let Some(packet) = driver.receive(now) {
            received += 1;
            assert!(packet.frame.len() <= 1514);
        }
        // Some answers deny the header, the other answers give an arbitrary number.
        if let Some(offload_api::DeviceEvent::ResyncRequested { handle, header, .. }) = driver.poll_event() {
            let number = (header.0 % 3 > 0).then_some(u64::from(header.0));
            driver.tls().unwrap().answer_resync(handle, header, number);
        }
        driver.flush(now);
    }
    let counted = device.counters();
    let dropped = counted.rx_drop_address + counted.rx_oversize_pkts_phy + counted.rx_out_of_buffer;
    // No frame may vanish without being counted.
    assert_eq!(received + dropped, frames);
}

/// Returns the bytes as TCP payload of the context's flow, with right checksums. The first two bytes move the sequence
/// number.
fn steered(bytes: &[u8], seq: &mut u32) -> Vec<u8> {
    if let [high, low, ..] = bytes {
        *seq = seq.wrapping_add_signed(i32::from(i16::from_be_bytes([*high, *low])) / 64);
    }
    let frame = tcp_frame(2, 1, *seq, bytes);
    *seq = seq.wrapping_add(bytes.len() as u32);
    frame
}
