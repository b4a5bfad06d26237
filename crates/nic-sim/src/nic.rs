//! A NIC: a device with one or more drivers, connected by rings.

use crate::NicConfig;
use nic_device::{Device, Function, QueuePair, SwitchedDevice};
use nic_driver::{Driver, EswitchDriver};
use nic_engine::Engines;
use nic_engines::EngineConfigs;
use nic_rings::eswitch::eswitch_rings;
use nic_rings::rings;
use nic_switch::SwitchConfig;

/// Builds a NIC. The device goes to the thread that runs it, the driver to a host. Device and driver share only rings
/// and signals, so they may run on different threads.
///
/// ```
/// use nic_sim::wire::Port;
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{NetDevice, NoRecords, TransmitResult, TxPacket};
/// use offload_base::Instant;
///
/// let (mut device, mut driver) = nic(NicConfig { delays: nic_sim::Delays::NONE, ..NicConfig::default() });
/// let packet = TxPacket { header: [0xff; 60].into_iter().collect(), ..TxPacket::default() };
/// assert_eq!(driver.transmit(Instant::ZERO, packet, &NoRecords), TransmitResult::Posted);
/// device.process(Instant::ZERO);
/// assert!(device.poll_frame(Instant::ZERO).is_none(), "the doorbell has not rung");
/// driver.flush(Instant::ZERO);
/// device.process(Instant::ZERO);
/// assert_eq!(device.poll_frame(Instant::ZERO).unwrap().len(), 60);
/// ```
///
/// # Panics
/// If a ring has no entries, or if the send ring is too short for a packet with the longest resync before it (64
/// entries suffice for an MTU of 576 bytes and above).
pub fn nic(config: NicConfig) -> (Device, Driver) {
    nic_with(config, |_| ())
}

/// Builds a NIC with the additional engines of `add`.
///
/// # Panics
/// As for [`nic`].
pub fn nic_with(config: NicConfig, mut add: impl FnMut(&mut Engines)) -> (Device, Driver) {
    let (config, pairs, mut drivers) = pairs(NicConfig { queues: 1, ..config }, &mut add);
    (Device::new(&config, pairs), drivers.remove(0))
}

/// Builds a NIC with `config.queues` queue pairs: one driver per pair, and one shared port.
///
/// The Toeplitz hash of a packet's addresses and ports and an indirection table select the queue; initially the table
/// lists the queues in turn. Packets of a flow with a receive context go to the queue of the context.
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
/// As for [`nic`], and if there is no queue.
pub fn multi_queue_nic(config: NicConfig) -> (Device, Vec<Driver>) {
    multi_queue_nic_with(config, |_| ())
}

/// Builds a NIC with several queue pairs and the additional engines of `add`, which is called for each pair.
///
/// # Panics
/// As for [`multi_queue_nic`].
pub fn multi_queue_nic_with(config: NicConfig, mut add: impl FnMut(&mut Engines)) -> (Device, Vec<Driver>) {
    let (config, pairs, drivers) = pairs(config, &mut add);
    (Device::new(&config, pairs), drivers)
}

/// Builds a NIC with a switch: the device, the drivers of the host's own function, and the management interface of the
/// host. `config` applies to the uplink and the host's function. Other functions are made by [`function`] and then
/// attached.
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
/// assert_eq!(machines[1].receive(now).map(|packet| packet.frame.len()), Some(60), "frames pass without a rule");
/// ```
///
/// # Panics
/// As for [`multi_queue_nic`].
pub fn switched_nic(config: NicConfig, switch: SwitchConfig) -> (SwitchedDevice, Vec<Driver>, EswitchDriver) {
    let (config, pairs, drivers) = pairs(config, &mut |_| ());
    let (device, rings) = eswitch_rings(ESWITCH_COMMANDS, REPRESENTED_FRAMES);
    (SwitchedDevice::new(&config, switch, device, pairs), drivers, EswitchDriver::new(rings))
}

/// Builds a function for a NIC with a switch, with `config.queues` queue pairs and their drivers.
///
/// See [`switched_nic`] for an example.
///
/// # Panics
/// As for [`multi_queue_nic`].
pub fn function(config: NicConfig) -> (Function, Vec<Driver>) {
    function_with(config, |_| ())
}

/// Builds a function with the additional engines of `add`, which is called for each queue pair.
///
/// # Panics
/// As for [`multi_queue_nic`].
pub fn function_with(config: NicConfig, mut add: impl FnMut(&mut Engines)) -> (Function, Vec<Driver>) {
    let (config, pairs, drivers) = pairs(config, &mut add);
    (Function::new(&config, pairs), drivers)
}

type DeviceConfig = nic_rings::NicConfig;

fn pairs(config: NicConfig, add: &mut dyn FnMut(&mut Engines)) -> (DeviceConfig, Vec<QueuePair>, Vec<Driver>) {
    assert!(config.queues > 0, "a NIC needs a queue pair");
    let (config, engines) = config.split();
    let engines = engines.for_each_queue(config.queues);
    let pair = |queue| queue_pair(config.for_each_queue(), &engines, queue, add);
    let (pairs, drivers) = (0..config.queues).map(pair).unzip();
    (config, pairs, drivers)
}

/// Maximum number of unanswered commands to a switch.
const ESWITCH_COMMANDS: usize = 64;
/// Maximum number of representor frames that may wait, in each direction.
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
    // Checked at construction, because a packet that needs a longer resync could otherwise never be sent.
    assert!(
        config.send_ring >= Driver::descriptors_at_most(&config, &descriptions),
        "a send ring of {} entries has no room for a resync at an MTU of {} bytes",
        config.send_ring,
        config.mtu
    );
    let (device_rings, driver_rings) = rings(&config);
    (QueuePair::new(config.clone(), device_rings, engines), Driver::new(config, queue, driver_rings, descriptions))
}
