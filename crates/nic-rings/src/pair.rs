//! The rings and signals of a queue pair, by their two ends.

use crate::config::NicConfig;
use crate::packet::{ControlCompletion, ControlEntry, ReceiveCompletion, ReceiveDescriptor, SendCompletion, SendEntry};
use crate::ring::{Consumer, Producer, ring};
use crate::signal::Signal;

/// The device's ends of the rings it shares with its driver.
///
/// See [`rings`] for an example.
#[derive(Debug)]
pub struct DeviceRings {
    /// What is to be sent, and done in order with it.
    pub send: Consumer<SendEntry>,
    /// The descriptors that are done.
    pub send_completions: Producer<SendCompletion>,
    /// Empty buffers.
    pub receive: Consumer<ReceiveDescriptor>,
    /// Received packets.
    pub receive_completions: Producer<ReceiveCompletion>,
    /// Commands.
    pub control: Consumer<ControlEntry>,
    /// Answers, and what happens without a command.
    pub control_completions: Producer<ControlCompletion>,
    /// Driver to device: something was published.
    pub doorbell: Signal,
    /// Device to driver: something was received or happened.
    pub interrupt: Signal,
    /// Device to driver: send descriptors are done.
    pub send_interrupt: Signal,
}

/// The driver's ends of the rings it shares with its device.
///
/// See [`rings`] for an example.
#[derive(Debug)]
pub struct DriverRings {
    /// What is to be sent, and done in order with it.
    pub send: Producer<SendEntry>,
    /// The descriptors that are done.
    pub send_completions: Consumer<SendCompletion>,
    /// Empty buffers.
    pub receive: Producer<ReceiveDescriptor>,
    /// Received packets.
    pub receive_completions: Consumer<ReceiveCompletion>,
    /// Commands.
    pub control: Producer<ControlEntry>,
    /// Answers, and what happens without a command.
    pub control_completions: Consumer<ControlCompletion>,
    /// Driver to device: something was published.
    pub doorbell: Signal,
    /// Device to driver: something was received or happened.
    pub interrupt: Signal,
    /// Device to driver: send descriptors are done.
    pub send_interrupt: Signal,
}

/// Makes the rings and signals of a queue pair.
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
    (device_rings, driver_rings)
}
