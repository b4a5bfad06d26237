//! A NIC: a device and its driver, joined by rings.

use crate::config::NicConfig;
use crate::device::{Device, DeviceRings};
use crate::driver::{Driver, DriverRings};
use crate::ring::ring;
use crate::signal::Signal;

/// Builds a NIC. The device goes to whatever runs it, the driver to a host; they share rings and signals only,
/// so the two may live on different threads.
///
/// ```
/// use nic_sim::wire::Port;
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{NetDevice, NoRecords, Sent, TxPacket};
/// use offload_base::Instant;
///
/// let (mut device, mut driver) = nic(NicConfig { delays: nic_sim::Delays::NONE, ..NicConfig::default() });
/// let packet = TxPacket { header: [0xff; 60].into_iter().collect(), ..TxPacket::default() };
/// assert_eq!(driver.transmit(Instant::ZERO, packet, &NoRecords), Sent::Posted);
/// device.process(Instant::ZERO);
/// assert!(device.poll_frame(Instant::ZERO).is_none(), "the doorbell has not rung");
/// driver.flush(Instant::ZERO);
/// device.process(Instant::ZERO);
/// assert_eq!(device.poll_frame(Instant::ZERO).unwrap().len(), 60);
/// ```
///
/// # Panics
/// If a ring has no entries, or the send ring too few for a packet with the longest resync before it (64 will do
/// from an MTU of 576 bytes on).
pub fn nic(config: NicConfig) -> (Device, Driver) {
    assert!(
        config.send_ring >= Driver::descriptors_at_most(&config),
        "a send ring of {} entries has no room for a resync at an MTU of {} bytes",
        config.send_ring,
        config.mtu
    );
    let (send, device_send) = ring(config.send_ring);
    let (device_send_completions, send_completions) = ring(config.send_ring);
    let (receive, device_receive) = ring(config.receive_ring);
    let (device_receive_completions, receive_completions) = ring(config.receive_ring);
    let (control, device_control) = ring(config.control_ring);
    // One half is for answers to commands, the other for what happens without one.
    let (device_control_completions, control_completions) = ring(2 * config.control_ring);
    let (doorbell, interrupt, send_interrupt) = (Signal::new(), Signal::new(), Signal::new());
    let device_rings = DeviceRings {
        send: device_send,
        send_completions: device_send_completions,
        receive: device_receive,
        receive_completions: device_receive_completions,
        control: device_control,
        control_completions: device_control_completions,
        doorbell: doorbell.clone(),
        interrupt: interrupt.clone(),
        send_interrupt: send_interrupt.clone(),
    };
    let driver_rings = DriverRings {
        send,
        send_completions,
        receive,
        receive_completions,
        control,
        control_completions,
        doorbell,
        interrupt,
        send_interrupt,
    };
    (Device::new(config.clone(), device_rings), Driver::new(config, driver_rings))
}
