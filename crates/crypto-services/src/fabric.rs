//! The fabric of a small device: services with bounded queues, instances that come and go, packets of several tenants.
//!
//! ```text
//! offer --> [queue] service -- credit --> [queue] service -- credit --> [queue] service --> in order of their flow --> poll
//!             |  instances: one packet each, or all of them one (blocks in any order)
//! ```
//!
//! A packet is handed on block by block: the next service begins with its first block. A service begins with a packet when the next
//! one has a place in its queue for it, so nothing is lost on the way and a slow service holds up those before it. Each tenant has
//! places of its own, and its share of each service. When the first queue is full, the packet is refused, and is the caller's.
//!
//! A change of instances loses nothing: an instance that is to go ends its packet first; one that is to come takes up area at once,
//! and works when it is configured. Packets of a flow leave in the order in which they came, whichever instance was faster.
//!
//! Time is virtual, in picoseconds inside; there is no other randomness than the caller's.

use crate::window::{ServiceWindow, Work};
use crate::{Costs, Graph, Service, Step};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

/// What a fabric is built with.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// What services cost.
    pub costs: Costs,
    /// Area for instances, in units of an AES-128 instance.
    pub area: f64,
    /// Packets of each tenant that may wait at each service.
    pub queue: usize,
    /// Flows of each tenant whose keys stay expanded; the one that was silent longest is forgotten.
    pub flows: usize,
}

impl Default for FabricConfig {
    fn default() -> FabricConfig {
        FabricConfig { costs: Costs::default(), area: 64.0, queue: 256, flows: 1024 }
    }
}

/// A tenant's chain in a fabric.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainId(usize);

/// What the fabric knows of a packet.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The tenant's chain.
    pub chain: ChainId,
    /// Its flow.
    pub flow: u64,
    /// How long it is.
    pub bytes: u32,
    /// The caller's name for it.
    pub name: u64,
}

/// A packet that has passed its chain.
///
/// See [`Fabric`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Departed {
    /// The packet.
    pub packet: Packet,
    /// When it was offered.
    pub came_ns: f64,
    /// When its last block was out, and all packets of its flow before it.
    pub left_ns: f64,
}

impl Departed {
    /// How long it was in the fabric.
    pub fn sojourn_ns(&self) -> f64 {
        self.left_ns - self.came_ns
    }
}

/// Why a fabric refuses.
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
    /// There is no room.
    #[error("{needed:.1} units of area are needed and the fabric has {has}")]
    Area {
        /// What all instances would take up.
        needed: f64,
        /// What there is.
        has: f64,
    },
    /// No chain uses the service.
    #[error("no chain uses {}", .0.name())]
    NotUsed(Service),
    /// Without an instance a chain would stand still.
    #[error("{} needs one instance at least", .0.name())]
    NoInstance(Service),
    /// The first queue is full.
    #[error("the tenant's places at {} are all taken", .0.name())]
    Full(Service),
}

/// Services, tenants and their packets, in virtual time.
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
    pools: Vec<Pool>,
    chains: Vec<Chain>,
    in_flight: Vec<InFlight>,
    unused: Vec<usize>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    order: u64,
    now: Time,
    out: VecDeque<Departed>,
    area_time: f64,
    refused: u64,
}

/// Picoseconds.
type Time = u64;
/// Blocks divided by a share, in units of 1 / [`TURN`].
type Turn = u128;

#[derive(Debug)]
struct Chain {
    steps: Vec<(Step, usize)>,
    share: u32,
    flows: HashMap<u64, Flow>,
    /// Flows whose keys are expanded, by when they were used.
    known: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Flow {
    /// Its place in `known`.
    used: Option<u64>,
    came: u64,
    left: u64,
    /// Packets that are through, but behind one that is not.
    held: BTreeMap<u64, Departed>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    packet: Packet,
    came: Time,
    /// Which of its flow.
    number: u64,
    step: usize,
    knows_key: bool,
    /// When the service before hands on the last block.
    last: Time,
}

#[derive(Debug)]
struct Pool {
    service: Service,
    block: Time,
    area: f64,
    /// When each instance takes the next block.
    instances: Vec<Time>,
    /// When each of those that are being configured works.
    starting: Vec<Time>,
    retiring: usize,
    tenants: Vec<AtPool>,
    turn: Turn,
    /// Pools that have a packet for this one's queue.
    held_up: Vec<usize>,
    window: Work,
}

/// What a tenant has at a service.
#[derive(Debug, Default)]
struct AtPool {
    /// Places that are taken or promised.
    places: usize,
    turn: Turn,
    /// By turn, then by when they came.
    queue: VecDeque<((Turn, u64), usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An instance works from now on.
    Started(usize),
    /// An instance is free.
    Free(usize),
    /// The key of a chain's flow is expanded.
    Expanded(usize, u64),
    /// A packet's first block is there.
    Arrived(usize),
    /// Its last block is out.
    Through(usize),
}

impl Fabric {
    /// Without services.
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

    /// Adds a tenant's chain. Services that others have are shared; of the rest there is one instance each. Where tenants wait for the same
    /// service, each gets it in proportion to its share; a share of 0 counts as 1.
    ///
    /// # Errors
    /// [`FabricError::Area`].
    pub fn add_chain(&mut self, graph: Graph, share: u32) -> Result<ChainId, FabricError> {
        let missing = graph.steps().iter().map(|step| step.service).filter(|service| self.pool_of(*service).is_none());
        let missing: Vec<Service> = missing.collect();
        self.check_area(missing.iter().map(|service| self.config.costs.of(*service).area).sum())?;
        for service in missing {
            let cost = self.config.costs.of(service);
            self.pools.push(Pool {
                service,
                block: to_time(cost.block_ns).max(1),
                area: cost.area,
                instances: vec![0],
                starting: Vec::new(),
                retiring: 0,
                tenants: self.chains.iter().map(|_| AtPool::default()).collect(),
                turn: 0,
                held_up: Vec::new(),
                window: Work::default(),
            });
        }
        self.pools.iter_mut().for_each(|pool| pool.tenants.push(AtPool::default()));
        let steps = graph.steps().iter().filter_map(|step| Some((*step, self.pool_of(step.service)?))).collect();
        self.chains.push(Chain { steps, share: share.max(1), flows: HashMap::new(), known: BTreeMap::new() });
        Ok(ChainId(self.chains.len() - 1))
    }

    /// Gives a service so many instances at once, which no device can: for the time before packets come. Those that are being configured are
    /// replaced, and those that are busy longest stay.
    ///
    /// # Errors
    /// [`FabricError`] says why nothing is changed.
    pub fn set_up(&mut self, service: Service, instances: u32) -> Result<(), FabricError> {
        let pool = self.pool_of(service).ok_or(FabricError::NotUsed(service))?;
        if instances == 0 {
            return Err(FabricError::NoInstance(service));
        }
        let has = self.pools[pool].instances.len() + self.pools[pool].starting.len();
        self.check_area((f64::from(instances) - has as f64) * self.config.costs.of(service).area)?;
        let (now, of_service) = (self.now, &mut self.pools[pool]);
        of_service.instances.sort_unstable_by_key(|free| Reverse(*free));
        of_service.instances.resize(instances as usize, now);
        of_service.starting.clear();
        of_service.retiring = 0;
        self.try_start(pool);
        Ok(())
    }

    /// Gives a service so many instances: more of them work once they are configured, fewer once they have ended their packets.
    ///
    /// # Errors
    /// [`FabricError`] says why nothing is changed.
    pub fn set_instances(&mut self, now_ns: f64, service: Service, instances: u32) -> Result<(), FabricError> {
        self.advance(now_ns);
        let pool = self.pool_of(service).ok_or(FabricError::NotUsed(service))?;
        if instances == 0 {
            return Err(FabricError::NoInstance(service));
        }
        let (now, cost) = (self.now, self.config.costs.of(service));
        let wanted = instances as usize;
        let has = self.pools[pool].wanted();
        if wanted > has {
            let (back, new) = self.pools[pool].split_growth(wanted - has);
            self.check_area(new as f64 * cost.area)?;
            self.pools[pool].retiring -= back;
            let at = now.saturating_add(to_time(cost.start_ns));
            for _ in 0..new {
                self.pools[pool].starting.push(at);
                self.put(at, Event::Started(pool));
            }
        } else {
            let pool = &mut self.pools[pool];
            for _ in wanted..has {
                // What does not work yet goes first.
                if pool.starting.pop().is_none() {
                    pool.retiring += 1;
                }
            }
            pool.retire(now);
        }
        Ok(())
    }

    /// Whether there is a place for a packet now.
    ///
    /// # Panics
    /// If the packet's chain is of a fabric with more chains.
    pub(crate) fn has_room(&self, packet: &Packet) -> bool {
        let (ChainId(chain), knows_key) = (packet.chain, self.knows_key(packet));
        let pool = self.chains[chain].steps[self.chains[chain].next_step(0, knows_key)].1;
        self.pools[pool].tenants[chain].places < self.config.queue
    }

    /// Whether the key of the packet's flow is expanded.
    fn knows_key(&self, packet: &Packet) -> bool {
        let ChainId(chain) = packet.chain;
        self.chains[chain].flows.get(&packet.flow).is_some_and(|flow| flow.used.is_some())
    }

    /// Takes a packet that is there at `now_ns`.
    ///
    /// # Errors
    /// [`FabricError::Full`]: the packet is still the caller's, and is counted as refused.
    ///
    /// # Panics
    /// If the packet's chain is of a fabric with more chains.
    pub fn offer(&mut self, now_ns: f64, packet: Packet) -> Result<(), FabricError> {
        self.advance(now_ns);
        let (now, ChainId(chain)) = (self.now, packet.chain);
        let knows_key = self.knows_key(&packet);
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
        if knows_key {
            self.know(chain, packet.flow);
        }
        let flow = self.chains[chain].flows.entry(packet.flow).or_default();
        let number = flow.came;
        flow.came += 1;
        let in_flight = InFlight { packet, came: now, number, step: first, knows_key, last: now };
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

    /// When something happens next.
    pub fn next_event_ns(&self) -> Option<f64> {
        let Reverse((at, _, _)) = self.events.peek()?;
        let mut ns = to_ns(*at);
        // After hours, picoseconds are finer than what says nanoseconds: never before it.
        while to_time(ns) < *at {
            ns = ns.next_up();
        }
        Some(ns)
    }

    /// Does all that happens until `now_ns`. Time does not go back.
    pub fn advance(&mut self, now_ns: f64) {
        let now = to_time(now_ns);
        while let Some(Reverse((at, _, _))) = self.events.peek()
            && *at <= now
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.pass_time(at);
            match event {
                Event::Started(pool) => {
                    let works = self.pools[pool].starting.iter().position(|works| *works <= at);
                    if let Some(place) = works {
                        self.pools[pool].starting.swap_remove(place);
                        self.pools[pool].instances.push(at);
                        self.try_start(pool);
                    }
                }
                Event::Free(pool) => self.try_start(pool),
                Event::Expanded(chain, flow) => self.know(chain, flow),
                Event::Arrived(place) => self.arrive(place),
                Event::Through(place) => self.leave(place),
            }
        }
        self.pass_time(now);
    }

    /// The next packet that has left.
    pub fn poll(&mut self) -> Option<Departed> {
        self.out.pop_front()
    }

    /// Instances of a service that work.
    pub fn instances(&self, service: Service) -> u32 {
        self.pool_of(service).map_or(0, |pool| self.pools[pool].instances.len() as u32)
    }

    /// Area that instances take up now, those that are being configured and those that are about to go with them.
    pub fn area(&self) -> f64 {
        self.pools.iter().map(|pool| (pool.instances.len() + pool.starting.len()) as f64 * pool.area).sum()
    }

    /// Area by time, in units of an AES-128 instance for a second.
    pub fn area_seconds(&self) -> f64 {
        self.area_time / 1e12
    }

    /// Packets that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Packets that were taken and have not left.
    pub fn under_way(&self) -> usize {
        self.in_flight.len() - self.unused.len()
            + self.chains.iter().flat_map(|chain| chain.flows.values()).map(|flow| flow.held.len()).sum::<usize>()
    }

    /// What each service was asked for since this was last called, and how many instances it has, in the order in which chains named them.
    pub fn take_window(&mut self) -> Vec<ServiceWindow> {
        let window = |pool: &mut Pool| ServiceWindow {
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
        // Areas are sums of tenths.
        (needed <= has + 1e-6).then_some(()).ok_or(FabricError::Area { needed, has })
    }

    fn put(&mut self, at: Time, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn pass_time(&mut self, to: Time) {
        if to > self.now {
            self.area_time += self.area() * (to - self.now) as f64;
            self.now = to;
        }
    }

    /// A packet is in the queue of its service, where it has a place.
    fn arrive(&mut self, place: usize) {
        let InFlight { packet, step, .. } = self.in_flight[place];
        let ChainId(chain) = packet.chain;
        let (of_step, pool_number) = self.chains[chain].steps[step];
        let pool = &mut self.pools[pool_number];
        // Shares: a turn comes later by what is asked for, divided by the share.
        let asked = Turn::from(of_step.blocks(packet.bytes)) * TURN / Turn::from(self.chains[chain].share);
        let tenant = &mut pool.tenants[chain];
        tenant.turn = tenant.turn.max(pool.turn) + asked;
        self.order += 1;
        tenant.queue.push_back(((tenant.turn, self.order), place));
        self.try_start(pool_number);
    }

    /// Begins with whatever can begin at a service.
    fn try_start(&mut self, number: usize) {
        let mut begin = vec![number];
        while let Some(number) = begin.pop() {
            self.pools[number].retire(self.now);
            while self.start_one(number) {
                // A place is free: the services that waited for one try again.
                begin.append(&mut self.pools[number].held_up);
            }
        }
    }

    fn start_one(&mut self, number: usize) -> bool {
        let Some((key, place, instance, next_step)) = self.next_to_start(number) else { return false };
        let now = self.now;
        let InFlight { packet, step, last: last_before, .. } = self.in_flight[place];
        let ChainId(chain) = packet.chain;
        let of_step = self.chains[chain].steps[step].0;
        let next = self.chains[chain].steps.get(next_step).map(|(_, pool)| *pool);
        if let Some(next) = next {
            self.pools[next].tenants[chain].places += 1;
        }
        let pool = &mut self.pools[number];
        pool.tenants[chain].queue.pop_front();
        pool.turn = pool.turn.max(key.0);
        pool.tenants[chain].places -= 1;
        let together = if of_step.serial { 1 } else { pool.instances.len() as u64 };
        let behind_first = u64::from(of_step.blocks(packet.bytes) - 1);
        // At the end of time all happens at once.
        let first = now.saturating_add(pool.block);
        let others = behind_first.saturating_mul(pool.block) / together;
        let last = last_before.saturating_add(pool.block).max(first.saturating_add(others));
        let free_at = last - pool.block + pool.block / together;
        if of_step.serial {
            pool.instances[instance] = free_at;
        } else {
            pool.instances.fill(free_at);
        }
        self.put(free_at.max(now.saturating_add(1)), Event::Free(number));
        let in_flight = &mut self.in_flight[place];
        (in_flight.last, in_flight.step) = (last, next_step);
        if of_step.once {
            self.put(last, Event::Expanded(chain, packet.flow));
        }
        match next {
            Some(_) => self.put(first, Event::Arrived(place)),
            None => self.put(last, Event::Through(place)),
        }
        true
    }

    /// The first packet in a service's queue that can begin, the instance for it, and the step that comes next. A packet whose next service
    /// has no place for it holds up its own tenant, but no other: chains may use services in opposite orders.
    fn next_to_start(&mut self, number: usize) -> Option<((Turn, u64), usize, usize, usize)> {
        let (now, mut held_up_at) = (self.now, Vec::new());
        let mut first: Option<((Turn, u64), usize, bool, usize)> = None;
        let pool = &self.pools[number];
        for tenant in &pool.tenants {
            let Some(&(key, place)) = tenant.queue.front() else { continue };
            let InFlight { packet, step, knows_key, .. } = self.in_flight[place];
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
            let free = match serial {
                true => instances.position(|free| *free <= now),
                false => instances.all(|free| *free <= now).then_some(0),
            };
            free.map(|instance| (key, place, instance, next_step))
        });
        for next in held_up_at {
            let held_up = &mut self.pools[next].held_up;
            if !held_up.contains(&number) {
                held_up.push(number);
            }
        }
        found
    }

    /// A flow's key is expanded, and was used just now.
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
            if flow.came == flow.left {
                chain.flows.remove(&oldest);
            }
        }
    }

    /// A packet is through.
    fn leave(&mut self, place: usize) {
        let InFlight { packet, came, number, .. } = self.in_flight[place];
        self.unused.push(place);
        let now = to_ns(self.now);
        let ChainId(chain) = packet.chain;
        let chain = &mut self.chains[chain];
        let Some(flow) = chain.flows.get_mut(&packet.flow) else { return };
        flow.held.insert(number, Departed { packet, came_ns: to_ns(came), left_ns: now });
        while let Some(departed) = flow.held.remove(&flow.left) {
            flow.left += 1;
            self.out.push_back(Departed { left_ns: now, ..departed });
        }
        if flow.came == flow.left && flow.used.is_none() {
            chain.flows.remove(&packet.flow);
        }
    }
}

impl Chain {
    /// The first step from `step` on that a packet needs.
    fn next_step(&self, step: usize, knows_key: bool) -> usize {
        let needed = |(step, _): &(Step, usize)| !(step.once && knows_key);
        self.steps[step..].iter().position(needed).map_or(self.steps.len(), |more| step + more)
    }
}

impl Pool {
    /// Instances that it is to have.
    fn wanted(&self) -> usize {
        self.instances.len() + self.starting.len() - self.retiring
    }

    /// Of so many more, those that only have to stay, and those that are new.
    fn split_growth(&self, more: usize) -> (usize, usize) {
        let back = more.min(self.retiring);
        (back, more - back)
    }

    /// Lets instances go that have ended their packets.
    fn retire(&mut self, now: Time) {
        while self.retiring > 0
            && self.instances.len() > 1
            && let Some(idle) = self.instances.iter().position(|free| *free <= now)
        {
            self.instances.swap_remove(idle);
            self.retiring -= 1;
        }
    }
}

fn to_time(ns: f64) -> Time {
    // A cast of what is too much, or below zero, gives the nearest.
    (ns * 1000.0).round() as Time
}

fn to_ns(time: Time) -> f64 {
    time as f64 / 1000.0
}

/// A block's part of a turn, so that the largest share divides it well, and 2^48 packets of the largest size do not overflow it.
const TURN: Turn = 1 << 52;
