//! Both ends of a queue pair's rings and signals.

use crate::config::NicConfig;
use crate::packet::{ControlCompletion, ControlEntry, ReceiveCompletion, ReceiveDescriptor, SendCompletion, SendEntry};
use crate::ring::{Consumer, Producer, ring};
use crate::signal::Signal;

/// The device's ends of the rings that it shares with its driver.
///
/// See [`rings`] for an example.
#[derive(Debug)]
pub struct DeviceRings {
    /// Packets to send, and other work in their order.
    pub send: Consumer<SendEntry>,
    /// Completions of send entries.
    pub send_completions: Producer<SendCompletion>,
    /// Empty buffers.
    pub receive: Consumer<ReceiveDescriptor>,
    /// Received packets.
    pub receive_completions: Producer<ReceiveCompletion>,
    /// Commands from the driver.
    pub control: Consumer<ControlEntry>,
    /// Answers to commands, and spontaneous reports.
    pub control_completions: Producer<ControlCompletion>,
    /// Doorbell from driver to device: entries were published.
    pub doorbell: Signal,
    /// Interrupt from device to driver: a packet was received, or a report is ready.
    pub interrupt: Signal,
    /// Interrupt from device to driver: send entries are completed.
    pub send_interrupt: Signal,
}

/// The driver's ends of the rings that it shares with its device.
///
/// See [`rings`] for an example.
#[derive(Debug)]
pub struct DriverRings {
    /// Packets to send, and other work in their order.
    pub send: Producer<SendEntry>,
    /// Completions of send entries.
    pub send_completions: Consumer<SendCompletion>,
    /// Empty buffers.
    pub receive: Producer<ReceiveDescriptor>,
    /// Received packets.
    pub receive_completions: Consumer<ReceiveCompletion>,
    /// Commands to the device.
    pub control: Producer<ControlEntry>,
    /// Answers to commands, and spontaneous reports.
    pub control_completions: Consumer<ControlCompletion>,
    /// Doorbell from driver to device: entries were published.
    pub doorbell: Signal,
    /// Interrupt from device to driver: a packet was received, or a report is ready.
    pub interrupt: Signal,
    /// Interrupt from device to driver: send entries are completed.
    pub send_interrupt: Signal,
}

/// Creates the rings and signals of a queue pair.
///
/// ```
/// use nic_rings::packet::{SendDescriptor, SendEntry};
/// use nic_rings::{NicConfig, rings};
///
/// let (mut device, mut driver) = rings(&NicConfig::default());
/// driver.send.push(SendEntry { slot: 7, descriptor: SendDescriptor::Fence }).unwrap();
/// driver.send.publish();
/// assert_eq!(device.send.pop().unwrap().slot, 7);
/// ```
pub fn rings(config: &NicConfig) -> (DeviceRings, DriverRings) {
    let (send, device_send) = ring(config.send_ring);
    let (device_send_completions, send_completions) = ring(config.send_ring);
    let (receive, device_receive) = ring(config.receive_ring);
    let (device_receive_completions, receive_completions) = ring(config.receive_ring);
    let (control, device_control) = ring(config.control_ring);
    // Half of the ring is for answers to commands, the other half for spontaneous reports.
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
    (device_rings, driver_rings)
}
