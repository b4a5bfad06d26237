//! A NIC: a device and its driver, or its drivers, joined by rings.

use crate::NicConfig;
use nic_device::{Device, Function, QueuePair, SwitchedDevice};
use nic_driver::{Driver, EswitchDriver};
use nic_engine::Engines;
use nic_engines::EngineConfigs;
use nic_rings::eswitch::eswitch_rings;
use nic_rings::rings;
use nic_switch::SwitchConfig;

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
    nic_with(config, |_| ())
}

/// The same, with more engines than every NIC has: those that `add` adds.
///
/// # Panics
/// As [`nic`] does.
pub fn nic_with(config: NicConfig, mut add: impl FnMut(&mut Engines)) -> (Device, Driver) {
    let (config, pairs, mut drivers) = pairs(NicConfig { queues: 1, ..config }, &mut add);
    (Device::new(&config, pairs), drivers.remove(0))
}

/// Builds a NIC with as many queue pairs as `config` says: a driver for each, and behind them one port.
///
/// A packet comes to a queue by the Toeplitz hash of its addresses and ports and an indirection table, at first the
/// queues in turn; but packets of a flow that a queue's receive context follows come to that queue.
///
/// ```
/// use nic_sim::{NicConfig, multi_queue_nic};
/// use offload_api::{FlowKey, NetDevice};
///
/// let (_device, mut drivers) = multi_queue_nic(NicConfig { queues: 4, ..NicConfig::default() });
/// let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:50000".parse().unwrap());
/// assert_eq!(drivers.iter().filter(|driver| driver.serves(&flow)).count(), 1);
///
/// let all_to_queue_2 = [2; 128];
/// drivers[0].rss().unwrap().set_indirection(&all_to_queue_2).unwrap();
/// ```
///
/// # Panics
/// As [`nic`] does, and if there is no queue.
pub fn multi_queue_nic(config: NicConfig) -> (Device, Vec<Driver>) {
    multi_queue_nic_with(config, |_| ())
}

/// The same, with more engines than every NIC has: `add` adds them, for each queue pair anew.
///
/// # Panics
/// As [`multi_queue_nic`] does.
pub fn multi_queue_nic_with(config: NicConfig, mut add: impl FnMut(&mut Engines)) -> (Device, Vec<Driver>) {
    let (config, pairs, drivers) = pairs(config, &mut add);
    (Device::new(&config, pairs), drivers)
}

/// Builds a NIC with a switch: its device, the drivers of the host's own function, and what the host manages the switch by.
/// `config` is of the uplink and of the host's function; other functions are made by [`function`] and plugged in.
///
/// ```
/// use nic_sim::switch::{FunctionConfig, Mac};
/// use nic_sim::wire::Port;
/// use nic_sim::{Delays, NicConfig, SwitchConfig, Vport, function, switched_nic};
/// use offload_api::{NetDevice, NoRecords, TxPacket};
/// use offload_base::Instant;
///
/// let now = Instant::ZERO;
/// let config = |last| NicConfig { mac: [2, 0, 0, 0, 0, last], delays: Delays::NONE, ..NicConfig::default() };
/// let (mut device, _host, _eswitch) = switched_nic(config(1), SwitchConfig::default());
/// let mut machines: Vec<_> = (0..2)
///     .map(|number| {
///         let config = config(2 + number);
///         let port = FunctionConfig::new(Mac(config.mac));
///         let (function, mut drivers) = function(config);
///         device.plug(Vport::Virtual(number.into()), port, function);
///         drivers.remove(0)
///     })
///     .collect();
/// let mut frame = vec![0; 60];
/// frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 2]);
/// machines[0].transmit(now, TxPacket { header: frame.into_iter().collect(), ..TxPacket::default() }, &NoRecords);
/// machines[0].flush(now);
/// device.process(now);
/// device.process(now);
/// assert_eq!(machines[1].receive(now).map(|packet| packet.frame.len()), Some(60), "they talk without a rule");
/// ```
///
/// # Panics
/// As [`multi_queue_nic`] does.
pub fn switched_nic(config: NicConfig, switch: SwitchConfig) -> (SwitchedDevice, Vec<Driver>, EswitchDriver) {
    let (config, pairs, drivers) = pairs(config, &mut |_| ());
    let (device, rings) = eswitch_rings(ESWITCH_COMMANDS, REPRESENTED_FRAMES);
    (SwitchedDevice::new(&config, switch, device, pairs), drivers, EswitchDriver::new(rings))
}

/// Builds a function for a NIC with a switch, with as many queue pairs as `config` says, and their drivers.
///
/// See [`switched_nic`] for an example.
///
/// # Panics
/// As [`multi_queue_nic`] does.
pub fn function(config: NicConfig) -> (Function, Vec<Driver>) {
    function_with(config, |_| ())
}

/// The same, with more engines than every NIC has: `add` adds them, for each queue pair anew.
///
/// # Panics
/// As [`multi_queue_nic`] does.
pub fn function_with(config: NicConfig, mut add: impl FnMut(&mut Engines)) -> (Function, Vec<Driver>) {
    let (config, pairs, drivers) = pairs(config, &mut add);
    (Function::new(&config, pairs), drivers)
}

type DeviceConfig = nic_rings::NicConfig;

fn pairs(config: NicConfig, add: &mut dyn FnMut(&mut Engines)) -> (DeviceConfig, Vec<QueuePair>, Vec<Driver>) {
    assert!(config.queues > 0, "a NIC has a queue pair at least");
    let (config, engines) = config.split();
    let engines = engines.for_each_queue(config.queues);
    let pair = |queue| queue_pair(config.for_each_queue(), &engines, queue, add);
    let (pairs, drivers) = (0..config.queues).map(pair).unzip();
    (config, pairs, drivers)
}

/// Commands to a switch that may be without an answer.
const ESWITCH_COMMANDS: usize = 64;
/// Frames of representors that may wait, each way.
const REPRESENTED_FRAMES: usize = 1024;

fn queue_pair(
    config: DeviceConfig,
    engines: &EngineConfigs,
    queue: u16,
    add: &mut dyn FnMut(&mut Engines),
) -> (QueuePair, Driver) {
    let mut engines = engines.engines();
    add(&mut engines);
    let descriptions = engines.descriptions();
    assert!(
        config.send_ring >= Driver::descriptors_at_most(&config, &descriptions),
        "a send ring of {} entries has no room for a resync at an MTU of {} bytes",
        config.send_ring,
        config.mtu
    );
    let (device_rings, driver_rings) = rings(&config);
    (QueuePair::new(config.clone(), device_rings, engines), Driver::new(config, queue, driver_rings, descriptions))
}
