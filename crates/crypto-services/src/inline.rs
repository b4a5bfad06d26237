//! Chains of services between a NIC's engines and the wire: packets are delayed by the services.

use crate::driven::{ControlledFabric, to_ns};
use crate::{
    ChainId, Controller, Fabric, FabricConfig, FabricError, InstanceChange, Packet, Suite, TransformDirection,
};
use core::fmt;
use core::task::Waker;
use core::time::Duration;
use offload_base::Instant;
use offload_base::time::earliest;
use offload_formats::{HeaderKind, Headers};
use offload_wire::Port;
use offload_wire::frame::Frame;
use std::collections::{HashMap, VecDeque};

offload_base::counters! {
    /// Counters of a [`ServicePort`].
    ///
    /// ```
    /// assert_eq!(crypto_services::InlineCounters::default().services_rx_drop_full, 0);
    /// ```
    pub struct InlineCounters {
        /// Frames sent through services.
        pub services_tx_packets: "services_tx_packets",
        /// Frames received through services.
        pub services_rx_packets: "services_rx_packets",
        /// Sent frames that waited for a place at the first service, and held up later ones.
        pub services_tx_waits: "services_tx_waits",
        /// Received frames dropped because the first service had no place.
        pub services_rx_drop_full: "services_rx_drop_full",
    }
}

/// A tenant's suite on a [`ServicePort`].
///
/// See [`ServicePort`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineChain {
    /// The suite.
    pub suite: Suite,
    /// The tenant's share of services that several tenants use.
    pub share: u32,
}

/// Work of the services on a frame.
///
/// See [`ServicePort`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineWork {
    /// Index of the chain, from 0.
    pub chain: usize,
    /// Identifier of the flow. Frames of one flow and direction stay in order, and the flow's key is expanded once.
    pub flow: u64,
    /// Number of bytes for the cipher.
    pub bytes: u32,
}

impl InlineWork {
    /// Classifies an ESP packet, with or without UDP encapsulation, for the first chain. The flow is the SPI; the bytes
    /// are the ones after the ESP header.
    ///
    /// ```
    /// let mut frame = vec![2; 12];
    /// frame.extend([0x08, 0x00]);
    /// frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// frame.extend([0, 0, 0x10, 1, 0, 0, 0, 7]);
    /// frame.extend([9; 12]);
    /// let work = crypto_services::InlineWork::from_esp(&frame).expect("this is ESP");
    /// assert_eq!((work.flow, work.bytes), (0x1001, 12));
    /// ```
    pub fn from_esp(frame: &[u8]) -> Option<InlineWork> {
        let headers = Headers::parse(frame);
        let esp = frame.get(headers.find(HeaderKind::Esp)?..headers.end())?;
        let bytes = esp.len().checked_sub(offload_formats::esp::HEADER_BYTES)?;
        let flow = offload_formats::esp::parse(esp)?.spi.into();
        Some(InlineWork { chain: 0, flow, bytes: u32::try_from(bytes).ok()? })
    }
}

/// Parameters of a [`ServicePort`].
///
/// ```
/// assert_eq!(crypto_services::ServicePortConfig::default().fabric.area, 64.0);
/// ```
#[derive(Clone, Debug)]
pub struct ServicePortConfig {
    /// The device. Both directions share its services. `flows` and `queue` apply to each direction of each chain.
    pub fabric: FabricConfig,
    /// Interval of the controller's decisions.
    pub window: Duration,
    /// Chains, each for both directions.
    pub chains: Vec<InlineChain>,
}

/// One tenant with AES-128-GCM on a device of 64 units of area, and a controller that decides each millisecond.
impl Default for ServicePortConfig {
    fn default() -> ServicePortConfig {
        ServicePortConfig {
            fabric: FabricConfig::default(),
            window: Duration::from_millis(1),
            chains: vec![InlineChain { suite: Suite::Aes128Gcm, share: 1 }],
        }
    }
}

/// A port around a NIC's port, with frames that pass a [`Fabric`]'s services to the wire and from the wire. It models a
/// NIC with ciphers made of services, the stage between engines and MAC. The NIC's engines produce the bytes, the
/// services take the time, and a [`Controller`] decides the number of instances.
///
/// If the services have no place, a sent frame waits and holds up later ones; a received frame is dropped and counted,
/// as by a NIC with full buffers. Frames without work for the services bypass them.
///
/// ```
/// use crypto_services::{Fixed, InlineWork, ServicePort, ServicePortConfig};
/// # use core::task::Waker;
/// use offload_base::Instant;
/// use offload_wire::{Port, frame::Frame};
///
/// # #[derive(Default)]
/// # struct Nic(Vec<Frame>);
/// # impl Port for Nic {
/// #     fn receive_frame(&mut self, _: Instant, frame: Frame) { self.0.push(frame) }
/// #     fn poll_frame(&mut self, _: Instant) -> Option<Frame> { None }
/// #     fn process(&mut self, _: Instant) {}
/// #     fn next_event(&self) -> Option<Instant> { None }
/// #     fn register_doorbell(&mut self, _: &Waker) {}
/// # }
/// # let nic = Nic::default();
/// let all_is_one_flow = |frame: &[u8]| Some(InlineWork { chain: 0, flow: 1, bytes: frame.len() as u32 });
/// let mut port = ServicePort::new(nic, ServicePortConfig::default(), Box::new(Fixed), all_is_one_flow)?;
/// port.receive_frame(Instant::ZERO, Frame::new(vec![0; 1464].into()));
/// let there = port.next_event().expect("the services work on it");
/// port.process(there);
/// assert!(there > Instant::ZERO);
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
pub struct ServicePort<P> {
    port: P,
    device: ControlledFabric,
    /// Chains for sending and for receiving.
    chains: Vec<[ChainId; 2]>,
    look: Box<InlineClassifier>,
    under_way: HashMap<u64, (TransformDirection, Frame)>,
    /// A sent frame for which the first service has no place.
    held: Option<(Packet, Frame)>,
    /// Frames that have passed and are not yet taken by the wire.
    out: VecDeque<Frame>,
    next: u64,
    now: Instant,
    counters: InlineCounters,
}

type InlineClassifier = dyn Fn(&[u8]) -> Option<InlineWork> + Send;

impl<P: Port> ServicePort<P> {
    /// Wraps `port`. `look` classifies frames; frames without a chain bypass the services.
    ///
    /// # Errors
    /// [`FabricError::Area`] if one instance of each service does not fit the device.
    pub fn new(
        port: P,
        config: ServicePortConfig,
        controller: Box<dyn Controller + Send>,
        look: impl Fn(&[u8]) -> Option<InlineWork> + Send + 'static,
    ) -> Result<ServicePort<P>, FabricError> {
        let mut device = ControlledFabric::new(config.fabric, config.window, controller);
        let mut add = |suite: Suite, way, share| device.fabric.add_chain(suite.graph(way), share);
        // Sealing and opening have different graphs, so each direction has a chain of its own.
        let both = |InlineChain { suite, share }: InlineChain| -> Result<[ChainId; 2], FabricError> {
            Ok([add(suite, TransformDirection::Apply, share)?, add(suite, TransformDirection::Undo, share)?])
        };
        let chains = config.chains.into_iter().map(both).collect::<Result<_, _>>()?;
        Ok(ServicePort {
            port,
            device,
            chains,
            look: Box::new(look),
            under_way: HashMap::new(),
            held: None,
            out: VecDeque::new(),
            next: 0,
            now: Instant::ZERO,
            counters: InlineCounters::default(),
        })
    }

    /// Returns the NIC's port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Returns the device.
    pub fn fabric(&self) -> &Fabric {
        &self.device.fabric
    }

    /// Returns the last 4,096 decisions of the controller.
    pub fn changes(&self) -> impl Iterator<Item = &InstanceChange> {
        self.device.changes()
    }

    /// Returns the counters.
    pub fn counters(&self) -> InlineCounters {
        self.counters
    }

    /// Returns the number of frames in the services, waiting for the wire, or waiting for a place.
    pub fn in_flight(&self) -> usize {
        self.under_way.len() + self.out.len() + usize::from(self.held.is_some())
    }

    /// Classifies a frame.
    fn packet(&mut self, way: TransformDirection, frame: &Frame) -> Option<Packet> {
        let InlineWork { chain, flow, bytes } = (self.look)(&frame.data)?;
        let chain = self.chains.get(chain)?[usize::from(way == TransformDirection::Undo)];
        self.next += 1;
        Some(Packet { chain, flow, bytes, name: self.next })
    }

    /// Offers a frame to the services. Returns the frame if there is no place.
    fn offer(&mut self, way: TransformDirection, packet: Packet, frame: Frame) -> Result<(), Frame> {
        let fabric = &mut self.device.fabric;
        // A dropped frame counts as demand for the controller. A waiting frame is offered later and counts then.
        let waits = way == TransformDirection::Apply && !fabric.has_room(&packet);
        if waits || fabric.offer(to_ns(self.now), packet).is_err() {
            return Err(frame);
        }
        self.device.wake();
        self.under_way.insert(packet.name, (way, frame));
        Ok(())
    }

    /// Processes all events up to `now`.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while self.device.step(to_ns(self.now), self.is_idle()).is_some() {
            while let Some(departed) = self.device.fabric.poll() {
                match self.under_way.remove(&departed.packet.name) {
                    Some((TransformDirection::Apply, frame)) => self.out.push_back(frame),
                    Some((TransformDirection::Undo, frame)) => {
                        self.counters.services_rx_packets += 1;
                        self.port.receive_frame(self.now, frame);
                    }
                    None => {}
                }
            }
        }
        // Events may have freed a place at the first service.
        if let Some((packet, frame)) = self.held.take()
            && let Err(frame) = self.offer(TransformDirection::Apply, packet, frame)
        {
            self.held = Some((packet, frame));
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns whether frames of the NIC may enter the services.
    fn takes_more(&self) -> bool {
        self.held.is_none() && self.out.is_empty()
    }
}

impl<P: Port> Port for ServicePort<P> {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        self.advance(now);
        match self.packet(TransformDirection::Undo, &frame) {
            Some(packet) if self.offer(TransformDirection::Undo, packet, frame.clone()).is_err() => {
                self.counters.services_rx_drop_full += 1;
            }
            Some(_) => {}
            None => self.port.receive_frame(now, frame),
        }
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        self.advance(now);
        // While the wire has not taken passed frames, no more enter. The wire thus slows the NIC down, as it does
        // without services.
        while self.takes_more()
            && let Some(frame) = self.port.poll_frame(now)
        {
            let Some(packet) = self.packet(TransformDirection::Apply, &frame) else { return Some(frame) };
            if let Err(frame) = self.offer(TransformDirection::Apply, packet, frame) {
                self.counters.services_tx_waits += 1;
                self.held = Some((packet, frame));
            }
        }
        let frame = self.out.pop_front();
        self.counters.services_tx_packets += u64::from(frame.is_some());
        frame
    }

    fn process(&mut self, now: Instant) {
        self.advance(now);
        self.port.process(now);
    }

    fn next_event(&self) -> Option<Instant> {
        // The NIC's next event may be in the past while no frames may enter. It must not wake the port again and again.
        let of_port = self.port.next_event().filter(|at| self.takes_more() || *at > self.now);
        let of_wire = (!self.out.is_empty()).then_some(self.now);
        earliest(earliest(of_port, of_wire), self.device.next_event(self.is_idle()))
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.port.register_doorbell(waker);
    }
}

impl<P: fmt::Debug> fmt::Debug for ServicePort<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServicePort { port, device, under_way, counters, .. } = self;
        f.debug_struct("ServicePort")
            .field("port", port)
            .field("device", device)
            .field("under_way", &under_way.len())
            .field("counters", counters)
            .finish_non_exhaustive()
    }
}
