//! The fabric of a small device: services with bounded queues, instances that come and go, packets of several tenants.
//!
//! ```text
//! offer --> [queue] service -- credit --> [queue] service -- credit --> [queue] service --> in order of their flow --> poll
//!             |  instances: one packet each, or all of them one (blocks in any order)
//! ```
//!
//! A packet is passed on block by block: the next service can begin with its first block. A service begins with a
//! packet only if the next service has a free place in its queue, so no packet is lost on the way, and a slow service
//! holds up earlier ones. Each tenant has separate places and a share of each service. If the first queue is full, the
//! packet is refused and stays with the caller.
//!
//! Changes of instances lose nothing: a retiring instance finishes its packet first; a new one occupies area at once
//! and works when it is configured. Packets of a flow leave in order of arrival, even if a later packet was faster.
//!
//! The clock is virtual, in integer picoseconds. There is no randomness besides the caller's.

use crate::window::{ServiceDemand, ServiceWindow};
use crate::{Graph, GraphStep, Service, ServiceCosts};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

/// Parameters of a fabric.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// The costs of the services.
    pub costs: ServiceCosts,
    /// Available area, in units of an AES-128 instance.
    pub area: f64,
    /// Maximum number of waiting packets of each tenant at each service.
    pub queue: usize,
    /// Maximum number of flows of each tenant with expanded keys. The least recently used flow is forgotten.
    pub flows: usize,
}

impl Default for FabricConfig {
    fn default() -> FabricConfig {
        FabricConfig { costs: ServiceCosts::default(), area: 64.0, queue: 256, flows: 1024 }
    }
}

/// Identifier of a tenant's chain in a fabric.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainId(usize);

/// A packet, as far as the fabric needs to know.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The tenant's chain.
    pub chain: ChainId,
    /// Identifier of the flow.
    pub flow: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// The caller's identifier of the packet.
    pub name: u64,
}

/// A packet that has left the fabric.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepartedPacket {
    /// The packet.
    pub packet: Packet,
    /// The time of the offer.
    pub came_ns: f64,
    /// The time when the last block of this packet and of all earlier packets of the flow had left.
    pub left_ns: f64,
}

impl DepartedPacket {
    /// Returns the time in the fabric.
    pub fn sojourn_ns(&self) -> f64 {
        self.left_ns - self.came_ns
    }
}

/// Reason why a fabric refuses a request.
///
/// ```
/// use crypto_services::{Fabric, FabricConfig, FabricError, Suite, TransformDirection};
///
/// let mut fabric = Fabric::new(FabricConfig { area: 1.0, ..FabricConfig::default() });
/// let refused = fabric.add_chain(Suite::Aes128Gcm.graph(TransformDirection::Apply), 1).unwrap_err();
/// assert_eq!(refused.to_string(), "2.2 units of area are needed and the fabric has 1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The area is too small.
    #[error("{needed:.1} units of area are needed and the fabric has {has}")]
    Area {
        /// Area that all instances would need.
        needed: f64,
        /// Available area.
        has: f64,
    },
    /// No chain uses the service.
    #[error("no chain uses {}", .0.name())]
    NotUsed(Service),
    /// Without an instance, a chain would stand still.
    #[error("{} needs one instance at least", .0.name())]
    NoInstance(Service),
    /// The first queue is full.
    #[error("the tenant's places at {} are all taken", .0.name())]
    Full(Service),
}

/// Services, tenants and their packets in virtual time.
///
/// ```
/// use crypto_services::{Fabric, FabricConfig, Packet, Service, Suite, TransformDirection};
///
/// let mut fabric = Fabric::new(FabricConfig::default());
/// let chain = fabric.add_chain(Suite::Aes128Gcm.graph(TransformDirection::Apply), 1)?;
/// fabric.set_instances(0.0, Service::Aes128, 4)?; // one works at once, three in a while
/// for name in 0..3 {
///     fabric.offer(0.0, Packet { chain, flow: 7, bytes: 1464, name })?;
/// }
/// fabric.advance(1e6);
/// let left: Vec<u64> = core::iter::from_fn(|| fabric.poll()).map(|departed| departed.packet.name).collect();
/// assert_eq!(left, [0, 1, 2]);
/// assert_eq!(fabric.instances(Service::Aes128), 1, "configuring the others takes 2 ms");
/// fabric.advance(3e6);
/// assert_eq!(fabric.instances(Service::Aes128), 4);
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
#[derive(Debug)]
pub struct Fabric {
    config: FabricConfig,
    pools: Vec<ServicePool>,
    chains: Vec<TenantChain>,
    in_flight: Vec<PacketProgress>,
    unused: Vec<usize>,
    events: BinaryHeap<Reverse<(Picoseconds, u64, FabricEvent)>>,
    order: u64,
    now: Picoseconds,
    out: VecDeque<DepartedPacket>,
    area_time: f64,
    refused: u64,
}

/// Virtual time in picoseconds.
type Picoseconds = u64;
/// Virtual service of a tenant: blocks divided by the tenant's share, in units of 1 / [`TURN`].
type VirtualService = u128;

#[derive(Debug)]
struct TenantChain {
    steps: Vec<(GraphStep, usize)>,
    share: u32,
    flows: HashMap<u64, FlowState>,
    /// Flows with expanded keys, by order of use.
    known: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct FlowState {
    /// Key of the flow in `known`. `None` if the key is not expanded.
    used: Option<u64>,
    came: u64,
    left: u64,
    /// Finished packets that wait for an earlier packet of the flow.
    held: BTreeMap<u64, DepartedPacket>,
}

#[derive(Clone, Copy, Debug)]
struct PacketProgress {
    packet: Packet,
    came: Picoseconds,
    /// Number of the packet in its flow.
    number: u64,
    step: usize,
    knows_key: bool,
    /// The time when the service before passes on the last block.
    last: Picoseconds,
}

#[derive(Debug)]
struct ServicePool {
    service: Service,
    block: Picoseconds,
    area: f64,
    /// The time when each instance accepts the next block.
    instances: Vec<Picoseconds>,
    /// The time when each instance under configuration begins to work.
    starting: Vec<Picoseconds>,
    retiring: usize,
    tenants: Vec<TenantQueue>,
    turn: VirtualService,
    /// Pools with a packet that waits for a place here.
    held_up: Vec<usize>,
    window: ServiceDemand,
}

/// A tenant's state at a service.
#[derive(Debug, Default)]
struct TenantQueue {
    /// Occupied and promised places.
    places: usize,
    turn: VirtualService,
    /// Waiting packets, by turn and then by arrival.
    queue: VecDeque<((VirtualService, u64), usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FabricEvent {
    /// An instance begins to work.
    Started(usize),
    /// An instance becomes free.
    Free(usize),
    /// The key of a chain's flow is expanded.
    Expanded(usize, u64),
    /// A packet's first block arrives.
    Arrived(usize),
    /// A packet's last block leaves.
    Through(usize),
}

impl Fabric {
    /// Creates a fabric without services.
    pub fn new(config: FabricConfig) -> Fabric {
        Fabric {
            config,
            pools: Vec::new(),
            chains: Vec::new(),
            in_flight: Vec::new(),
            unused: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            now: 0,
            out: VecDeque::new(),
            area_time: 0.0,
            refused: 0,
        }
    }

    /// Adds a tenant's chain. Services used by other chains are shared; each new service gets one instance. Tenants
    /// that wait for the same service are served in proportion to their shares; a share of 0 counts as 1.
    ///
    /// # Errors
    /// [`FabricError::Area`] if the new services do not fit.
    pub fn add_chain(&mut self, graph: Graph, share: u32) -> Result<ChainId, FabricError> {
        let missing = graph.steps().iter().map(|step| step.service).filter(|service| self.pool_of(*service).is_none());
        let missing: Vec<Service> = missing.collect();
        // Checked before any pool is created, so that a refused chain leaves no trace.
        self.check_area(missing.iter().map(|service| self.config.costs.get(*service).area).sum())?;
        for service in missing {
            let cost = self.config.costs.get(service);
            self.pools.push(ServicePool {
                service,
                block: to_time(cost.block_ns).max(1),
                area: cost.area,
                instances: vec![0],
                starting: Vec::new(),
                retiring: 0,
                tenants: self.chains.iter().map(|_| TenantQueue::default()).collect(),
                turn: 0,
                held_up: Vec::new(),
                window: ServiceDemand::default(),
            });
        }
        self.pools.iter_mut().for_each(|pool| pool.tenants.push(TenantQueue::default()));
        let steps = graph.steps().iter().filter_map(|step| Some((*step, self.pool_of(step.service)?))).collect();
        self.chains.push(TenantChain { steps, share: share.max(1), flows: HashMap::new(), known: BTreeMap::new() });
        Ok(ChainId(self.chains.len() - 1))
    }

    /// Sets the number of instances at once, for the setup of a model before packets arrive; no real device can do
    /// that. Instances under configuration are replaced, and the instances that are busy longest are kept.
    ///
    /// # Errors
    /// [`FabricError`]; nothing has changed then.
    pub fn set_up(&mut self, service: Service, instances: u32) -> Result<(), FabricError> {
        let pool = self.pool_of(service).ok_or(FabricError::NotUsed(service))?;
        if instances == 0 {
            return Err(FabricError::NoInstance(service));
        }
        let has = self.pools[pool].instances.len() + self.pools[pool].starting.len();
        self.check_area((f64::from(instances) - has as f64) * self.config.costs.get(service).area)?;
        let (now, of_service) = (self.now, &mut self.pools[pool]);
        // Descending, so that truncation drops the instances that are free earliest.
        of_service.instances.sort_unstable_by_key(|free| Reverse(*free));
        of_service.instances.resize(instances as usize, now);
        of_service.starting.clear();
        of_service.retiring = 0;
        self.try_start(pool);
        Ok(())
    }

    /// Sets the number of instances. New instances work once they are configured; surplus ones go once their packets
    /// have left.
    ///
    /// # Errors
    /// [`FabricError`]; nothing has changed then.
    pub fn set_instances(&mut self, now_ns: f64, service: Service, instances: u32) -> Result<(), FabricError> {
        self.advance(now_ns);
        let pool = self.pool_of(service).ok_or(FabricError::NotUsed(service))?;
        if instances == 0 {
            return Err(FabricError::NoInstance(service));
        }
        let (now, cost) = (self.now, self.config.costs.get(service));
        let wanted = instances as usize;
        let has = self.pools[pool].wanted();
        // Retiring instances can stay at once. Only new ones have to be configured and need area.
        if wanted > has {
            let (back, new) = self.pools[pool].split_growth(wanted - has);
            self.check_area(new as f64 * cost.area)?;
            self.pools[pool].retiring -= back;
            let at = now.saturating_add(to_time(cost.start_ns));
            for _ in 0..new {
                self.pools[pool].starting.push(at);
                self.put(at, FabricEvent::Started(pool));
            }
        } else {
            let pool = &mut self.pools[pool];
            for _ in wanted..has {
                // Instances under configuration are removed first, because no packet is in them.
                if pool.starting.pop().is_none() {
                    pool.retiring += 1;
                }
            }
            pool.retire(now);
        }
        Ok(())
    }

    /// Returns whether there is a place for the packet now.
    ///
    /// # Panics
    /// If the packet's chain belongs to a fabric with more chains.
    pub(crate) fn has_room(&self, packet: &Packet) -> bool {
        let (ChainId(chain), knows_key) = (packet.chain, self.knows_key(packet));
        let pool = self.chains[chain].steps[self.chains[chain].next_step(0, knows_key)].1;
        self.pools[pool].tenants[chain].places < self.config.queue
    }

    /// Returns whether the key of the packet's flow is expanded.
    fn knows_key(&self, packet: &Packet) -> bool {
        let ChainId(chain) = packet.chain;
        self.chains[chain].flows.get(&packet.flow).is_some_and(|flow| flow.used.is_some())
    }

    /// Offers a packet that arrives at `now_ns`.
    ///
    /// # Errors
    /// [`FabricError::Full`]; the packet stays with the caller, and is counted as refused.
    ///
    /// # Panics
    /// If the packet's chain belongs to a fabric with more chains.
    pub fn offer(&mut self, now_ns: f64, packet: Packet) -> Result<(), FabricError> {
        self.advance(now_ns);
        let (now, ChainId(chain)) = (self.now, packet.chain);
        let knows_key = self.knows_key(&packet);
        // Refused packets count as demand as well, so that the controller sees the whole load.
        for (step, pool) in &self.chains[chain].steps {
            if !(step.once && knows_key) {
                let pool = &mut self.pools[*pool];
                pool.window.note(step.serial, step.blocks(packet.bytes), pool.block);
            }
        }
        let first = self.chains[chain].next_step(0, knows_key);
        let pool = self.chains[chain].steps[first].1;
        if self.pools[pool].tenants[chain].places >= self.config.queue {
            self.refused += 1;
            return Err(FabricError::Full(self.pools[pool].service));
        }
        self.pools[pool].tenants[chain].places += 1;
        // Refreshes the flow in the order of use, so that active flows keep their keys.
        if knows_key {
            self.know(chain, packet.flow);
        }
        let flow = self.chains[chain].flows.entry(packet.flow).or_default();
        let number = flow.came;
        flow.came += 1;
        let in_flight = PacketProgress { packet, came: now, number, step: first, knows_key, last: now };
        let place = match self.unused.pop() {
            Some(place) => {
                self.in_flight[place] = in_flight;
                place
            }
            None => {
                self.in_flight.push(in_flight);
                self.in_flight.len() - 1
            }
        };
        self.arrive(place);
        Ok(())
    }

    /// Returns the time of the next event.
    pub fn next_event_ns(&self) -> Option<f64> {
        let Reverse((at, _, _)) = self.events.peek()?;
        let mut ns = to_ns(*at);
        // After hours, `f64` nanoseconds are coarser than picoseconds. The result must not be earlier than the event.
        while to_time(ns) < *at {
            ns = ns.next_up();
        }
        Some(ns)
    }

    /// Processes all events up to `now_ns`. Picoseconds never goes back.
    pub fn advance(&mut self, now_ns: f64) {
        let now = to_time(now_ns);
        while let Some(Reverse((at, _, _))) = self.events.peek()
            && *at <= now
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.pass_time(at);
            match event {
                FabricEvent::Started(pool) => {
                    // The instance may have been removed before it was ready.
                    let works = self.pools[pool].starting.iter().position(|works| *works <= at);
                    if let Some(place) = works {
                        self.pools[pool].starting.swap_remove(place);
                        self.pools[pool].instances.push(at);
                        self.try_start(pool);
                    }
                }
                FabricEvent::Free(pool) => self.try_start(pool),
                FabricEvent::Expanded(chain, flow) => self.know(chain, flow),
                FabricEvent::Arrived(place) => self.arrive(place),
                FabricEvent::Through(place) => self.leave(place),
            }
        }
        self.pass_time(now);
    }

    /// Returns the next departed packet.
    pub fn poll(&mut self) -> Option<DepartedPacket> {
        self.out.pop_front()
    }

    /// Returns the number of working instances of a service.
    pub fn instances(&self, service: Service) -> u32 {
        self.pool_of(service).map_or(0, |pool| self.pools[pool].instances.len() as u32)
    }

    /// Returns the occupied area, including instances under configuration and retiring ones.
    pub fn area(&self) -> f64 {
        self.pools.iter().map(|pool| (pool.instances.len() + pool.starting.len()) as f64 * pool.area).sum()
    }

    /// Returns the integral of the area over time, in AES-128 instance seconds.
    pub fn area_seconds(&self) -> f64 {
        self.area_time / 1e12
    }

    /// Returns the number of refused packets.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the number of packets in the fabric.
    pub fn under_way(&self) -> usize {
        self.in_flight.len() - self.unused.len()
            + self.chains.iter().flat_map(|chain| chain.flows.values()).map(|flow| flow.held.len()).sum::<usize>()
    }

    /// Returns the demand at each service since the last call, with its instances, in the order in which chains
    /// introduced the services.
    pub fn take_window(&mut self) -> Vec<ServiceWindow> {
        let window = |pool: &mut ServicePool| ServiceWindow {
            service: pool.service,
            instances: pool.wanted() as u32,
            waiting: pool.tenants.iter().map(|tenant| tenant.queue.len()).sum(),
            work: core::mem::take(&mut pool.window),
        };
        self.pools.iter_mut().map(window).collect()
    }

    fn pool_of(&self, service: Service) -> Option<usize> {
        self.pools.iter().position(|pool| pool.service == service)
    }

    fn check_area(&self, more: f64) -> Result<(), FabricError> {
        let (needed, has) = (self.area() + more, self.config.area);
        // Areas are sums of tenths, so rounding errors must not refuse a fitting chain.
        (needed <= has + 1e-6).then_some(()).ok_or(FabricError::Area { needed, has })
    }

    fn put(&mut self, at: Picoseconds, event: FabricEvent) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn pass_time(&mut self, to: Picoseconds) {
        if to > self.now {
            self.area_time += self.area() * (to - self.now) as f64;
            self.now = to;
        }
    }

    /// Puts a packet into the queue of its service, where it has a place.
    fn arrive(&mut self, place: usize) {
        let PacketProgress { packet, step, .. } = self.in_flight[place];
        let ChainId(chain) = packet.chain;
        let (of_step, pool_number) = self.chains[chain].steps[step];
        let pool = &mut self.pools[pool_number];
        // Fair sharing: a tenant's turn advances by the requested blocks divided by the tenant's share.
        let asked =
            VirtualService::from(of_step.blocks(packet.bytes)) * TURN / VirtualService::from(self.chains[chain].share);
        let tenant = &mut pool.tenants[chain];
        tenant.turn = tenant.turn.max(pool.turn) + asked;
        self.order += 1;
        tenant.queue.push_back(((tenant.turn, self.order), place));
        self.try_start(pool_number);
    }

    /// Starts all packets that can start at a service.
    fn try_start(&mut self, number: usize) {
        // A list instead of recursion: a freed place may let a whole chain of services continue.
        let mut begin = vec![number];
        while let Some(number) = begin.pop() {
            self.pools[number].retire(self.now);
            while self.start_one(number) {
                // A place has become free, so the services that waited for one try again.
                begin.append(&mut self.pools[number].held_up);
            }
        }
    }

    fn start_one(&mut self, number: usize) -> bool {
        let Some((key, place, instance, next_step)) = self.next_to_start(number) else { return false };
        let now = self.now;
        let PacketProgress { packet, step, last: last_before, .. } = self.in_flight[place];
        let ChainId(chain) = packet.chain;
        let of_step = self.chains[chain].steps[step].0;
        let next = self.chains[chain].steps.get(next_step).map(|(_, pool)| *pool);
        // Reserves the place at the next service now, so that the packet is never stuck between two services.
        if let Some(next) = next {
            self.pools[next].tenants[chain].places += 1;
        }
        let pool = &mut self.pools[number];
        pool.tenants[chain].queue.pop_front();
        pool.turn = pool.turn.max(key.0);
        pool.tenants[chain].places -= 1;
        // All instances share the blocks of a packet, unless each block needs the one before.
        let together = if of_step.serial { 1 } else { pool.instances.len() as u64 };
        let behind_first = u64::from(of_step.blocks(packet.bytes) - 1);
        // Saturates, so that times near the maximum cannot overflow.
        let first = now.saturating_add(pool.block);
        let others = behind_first.saturating_mul(pool.block) / together;
        let last = last_before.saturating_add(pool.block).max(first.saturating_add(others));
        let free_at = last - pool.block + pool.block / together;
        if of_step.serial {
            pool.instances[instance] = free_at;
        } else {
            pool.instances.fill(free_at);
        }
        // At least one picosecond later, so that a service of zero time cannot loop forever.
        self.put(free_at.max(now.saturating_add(1)), FabricEvent::Free(number));
        let in_flight = &mut self.in_flight[place];
        (in_flight.last, in_flight.step) = (last, next_step);
        // Packets that arrive before this event expand the key as well.
        if of_step.once {
            self.put(last, FabricEvent::Expanded(chain, packet.flow));
        }
        match next {
            Some(_) => self.put(first, FabricEvent::Arrived(place)),
            None => self.put(last, FabricEvent::Through(place)),
        }
        true
    }

    /// Returns the first packet in a service's queues that can start, its instance, and its next step. A packet without
    /// a place at the next service holds up its own tenant only, because chains may use services in opposite orders.
    fn next_to_start(&mut self, number: usize) -> Option<((VirtualService, u64), usize, usize, usize)> {
        let (now, mut held_up_at) = (self.now, Vec::new());
        let mut first: Option<((VirtualService, u64), usize, bool, usize)> = None;
        let pool = &self.pools[number];
        for tenant in &pool.tenants {
            let Some(&(key, place)) = tenant.queue.front() else { continue };
            let PacketProgress { packet, step, knows_key, .. } = self.in_flight[place];
            let ChainId(chain) = packet.chain;
            let of_chain = &self.chains[chain];
            let next_step = of_chain.next_step(step + 1, knows_key);
            let next = of_chain.steps.get(next_step).map(|(_, pool)| *pool);
            match next.filter(|next| self.pools[*next].tenants[chain].places >= self.config.queue) {
                Some(full) => held_up_at.push(full),
                None if first.is_none_or(|(other, ..)| key < other) => {
                    first = Some((key, place, of_chain.steps[step].0.serial, next_step));
                }
                None => {}
            }
        }
        let found = first.and_then(|(key, place, serial, next_step)| {
            let mut instances = pool.instances.iter();
            // A packet without order among its blocks uses all instances together, so all must be free.
            let free = match serial {
                true => instances.position(|free| *free <= now),
                false => instances.all(|free| *free <= now).then_some(0),
            };
            free.map(|instance| (key, place, instance, next_step))
        });
        // These services try again when a place becomes free there.
        for next in held_up_at {
            let held_up = &mut self.pools[next].held_up;
            if !held_up.contains(&number) {
                held_up.push(number);
            }
        }
        found
    }

    /// Notes that a flow's key is expanded and was just used.
    fn know(&mut self, number: usize, name: u64) {
        self.order += 1;
        let chain = &mut self.chains[number];
        let flow = chain.flows.entry(name).or_default();
        if let Some(used) = flow.used.replace(self.order) {
            chain.known.remove(&used);
        }
        chain.known.insert(self.order, name);
        if chain.known.len() > self.config.flows
            && let Some((_, oldest)) = chain.known.pop_first()
            && let Some(flow) = chain.flows.get_mut(&oldest)
        {
            flow.used = None;
            // An idle flow without a key has no state worth keeping.
            if flow.came == flow.left {
                chain.flows.remove(&oldest);
            }
        }
    }

    /// Removes a packet after its last step, and releases packets of its flow in order.
    fn leave(&mut self, place: usize) {
        let PacketProgress { packet, came, number, .. } = self.in_flight[place];
        self.unused.push(place);
        let now = to_ns(self.now);
        let ChainId(chain) = packet.chain;
        let chain = &mut self.chains[chain];
        let Some(flow) = chain.flows.get_mut(&packet.flow) else { return };
        flow.held.insert(number, DepartedPacket { packet, came_ns: to_ns(came), left_ns: now });
        // Earlier packets of the flow may have taken longer on another instance.
        while let Some(departed) = flow.held.remove(&flow.left) {
            flow.left += 1;
            self.out.push_back(DepartedPacket { left_ns: now, ..departed });
        }
        if flow.came == flow.left && flow.used.is_none() {
            chain.flows.remove(&packet.flow);
        }
    }
}

impl TenantChain {
    /// Returns the first step from `step` on that a packet needs.
    fn next_step(&self, step: usize, knows_key: bool) -> usize {
        let needed = |(step, _): &(GraphStep, usize)| !(step.once && knows_key);
        self.steps[step..].iter().position(needed).map_or(self.steps.len(), |more| step + more)
    }
}

impl ServicePool {
    /// Returns the target number of instances.
    fn wanted(&self) -> usize {
        self.instances.len() + self.starting.len() - self.retiring
    }

    /// Splits a growth into retiring instances that stay, and new ones.
    fn split_growth(&self, more: usize) -> (usize, usize) {
        let back = more.min(self.retiring);
        (back, more - back)
    }

    /// Removes idle instances that are to retire.
    fn retire(&mut self, now: Picoseconds) {
        // One instance always stays, or waiting packets could never leave.
        while self.retiring > 0
            && self.instances.len() > 1
            && let Some(idle) = self.instances.iter().position(|free| *free <= now)
        {
            self.instances.swap_remove(idle);
            self.retiring -= 1;
        }
    }
}

fn to_time(ns: f64) -> Picoseconds {
    // Casts of large, negative or undefined numbers saturate.
    (ns * 1000.0).round() as Picoseconds
}

fn to_ns(time: Picoseconds) -> f64 {
    time as f64 / 1000.0
}

/// Resolution of a turn: divisible by the largest share with enough precision, and 2^48 packets of the largest size do
/// not overflow.
const TURN: VirtualService = 1 << 52;
