//! Two hosts with IPsec between stack and driver, in virtual time: a stream in one direction and a reply in the other.

use super::router::Router;
use core::net::IpAddr;
use core::time::Duration;
use ipsec::{KeyedDevice, Keying, SaEvent, SaId, SaUse, SecureDevice};
use nic_sim::wire::tap::RecordedFrame;
use nic_sim::wire::{FrameRecorder, Impairments, LinkConfig, Reorder, Share};
use nic_sim::{EspEngineConfig, NicConfig};
use offload_api::{
    Action, Direction, DontFragment, EspKey, EspMode, EspSuite, Lifetime, OffloadKind, Policy, SaParams, SaRefusal,
    Selector, Template, UdpEncapsulation,
};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_host_stack::TcpConfig;
use offload_testbed::{BedHost, Testbed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A stream and its protection.
#[derive(Clone)]
pub(crate) struct StreamPair {
    pub(crate) suite: EspSuite,
    pub(crate) mode: EspMode,
    pub(crate) esn: bool,
    pub(crate) udp: bool,
    pub(crate) window: u32,
    pub(crate) last_number: u64,
    pub(crate) lifetime: Lifetime,
    pub(crate) dont_fragment: DontFragment,
    pub(crate) dscp: Option<u8>,
    pub(crate) offload: OffloadKind,
    pub(crate) mtu: u16,
    /// Whether the stream uses IPv6. In transport mode, ESP then uses IPv6 too.
    pub(crate) ipv6: bool,
    /// Whether the outer headers of a tunnel are IPv6.
    pub(crate) outer_ipv6: bool,
    /// MTU of a router between the hosts.
    pub(crate) router: Option<u16>,
    /// SAs for which each NIC has room.
    pub(crate) sas: u32,
    /// SA states in each NIC's cache. The others are in host memory.
    pub(crate) cached: usize,
    /// Queues of each NIC.
    pub(crate) queues: u16,
    pub(crate) link: LinkConfig,
    /// Delay before the hosts get their SAs.
    pub(crate) keys_after: Option<Duration>,
    /// Whether an event that asks for an SA leads to a new pair of SAs.
    pub(crate) rekey_on_events: bool,
    pub(crate) seed: u64,
}

impl Default for StreamPair {
    fn default() -> StreamPair {
        StreamPair {
            suite: EspSuite::Aes128Gcm,
            mode: EspMode::Transport,
            esn: false,
            udp: false,
            window: 64,
            last_number: 0,
            lifetime: Lifetime::default(),
            dont_fragment: DontFragment::Copy,
            dscp: None,
            offload: OffloadKind::None,
            mtu: 1500,
            ipv6: false,
            outer_ipv6: false,
            router: None,
            sas: 64,
            cached: 64,
            queues: 1,
            link: LinkConfig::default(),
            keys_after: None,
            rekey_on_events: false,
            seed: 1,
        }
    }
}

/// The result of a run.
pub(crate) struct StreamOutcome {
    pub(crate) sent: Vec<u8>,
    pub(crate) received: Vec<u8>,
    pub(crate) seen: Vec<RecordedFrame>,
    pub(crate) counters: CounterSet,
    pub(crate) events: Vec<SaEvent>,
    pub(crate) rekeys: u32,
    pub(crate) used: Vec<SaUse>,
    pub(crate) refused: Option<SaRefusal>,
    /// Size of the largest packet that the router forwarded, and the number of packets that it refused.
    pub(crate) routed: (usize, usize),
}

impl StreamOutcome {
    /// Tests whether a part of the payload was on the wire in plain.
    pub(crate) fn saw_plaintext(&self) -> bool {
        self.seen.iter().any(|seen| seen.frame.data.windows(MARK.len()).any(|window| window == MARK))
    }
}

/// Returns a link with loss, reordering, duplication and corruption.
pub(crate) fn lossy(loss: f64, reorder: f64, duplicate: f64, corrupt: f64) -> LinkConfig {
    let share = |share: f64| Share::new(share).unwrap();
    let reorder = Reorder { share: share(reorder), hold: Duration::from_micros(30) };
    let impairments = Impairments {
        loss: share(loss),
        reorder: Some(reorder),
        duplicate: share(duplicate),
        corrupt: share(corrupt),
        ..Impairments::default()
    };
    LinkConfig { impairments, ..LinkConfig::default() }
}

/// Tests whether all frames are ARP, ESP, or ESP in UDP.
pub(crate) fn only_esp(seen: &[RecordedFrame], udp: bool) -> bool {
    assert!(!seen.is_empty());
    seen.iter().all(|seen| {
        let data = &seen.frame.data;
        let protocol = if udp { 17 } else { 50 };
        match [data[12], data[13]] {
            [8, 6] => true,
            [8, 0] => data[23] == protocol || is_about_size(data, 34, 1, 3),
            _ => data[20] == protocol || is_about_size(data, 54, 58, 2),
        }
    })
}

/// Tests whether a frame is the router's "too big" message.
fn is_about_size(data: &[u8], icmp: usize, protocol: u8, kind: u8) -> bool {
    data[if icmp == 34 { 23 } else { 20 }] == protocol && data[icmp] == kind
}

/// The repeated content of a payload, so that any plain part of it is noticed.
pub(crate) const MARK: &[u8] = b"never in the clear ";

fn address(ipv6: bool, host: usize) -> IpAddr {
    let number = host as u8 + 1;
    if ipv6 { [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into() } else { [10, 0, 0, number].into() }
}

impl StreamPair {
    /// Returns a host's address in ESP packets.
    pub(crate) fn outer(&self, host: usize) -> IpAddr {
        address(if self.mode == EspMode::Tunnel { self.outer_ipv6 } else { self.ipv6 }, host)
    }

    /// Returns the `round`th SA from host `from` to the other host.
    pub(crate) fn sa(&self, direction: Direction, from: usize, round: u32) -> SaParams {
        let byte = (7 + from as u32 * 2 + round * 4) as u8;
        let material = vec![byte; self.suite.key_len() + 4];
        let key = EspKey::new(self.suite, &material).unwrap();
        let spi = 0x1000 + round * 2 + from as u32;
        let encapsulation = self.udp.then_some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
        SaParams {
            mode: self.mode,
            reqid: 1,
            esn: self.esn,
            replay_window: self.window,
            encapsulation,
            lifetime: self.lifetime,
            dont_fragment: self.dont_fragment,
            dscp: self.dscp,
            offload: self.offload,
            last_number: if round == 0 { self.last_number } else { 0 },
            ..SaParams::new(direction, spi, self.outer(from), self.outer(1 - from), key)
        }
    }

    fn policies(&self, host: usize) -> Vec<Policy> {
        let template = |from: usize| match self.mode {
            EspMode::Transport => Template::transport(1),
            EspMode::Tunnel => Template::tunnel(self.outer(from), self.outer(1 - from), 1),
        };
        [(Direction::Transmit, host), (Direction::Receive, 1 - host)]
            .map(|(direction, from)| Policy {
                direction,
                selector: Selector::ANY,
                priority: 0,
                action: Action::Protect(template(from)),
            })
            .into()
    }

    /// Gives both hosts the `round`th SAs. The receiver gets its SA first, so that no packet arrives early.
    fn key(&self, hosts: &[BedHost; 2], round: u32) -> Option<SaRefusal> {
        let mut refused = None;
        for (direction, at) in
            [(Direction::Receive, 0), (Direction::Receive, 1), (Direction::Transmit, 0), (Direction::Transmit, 1)]
        {
            let from = if direction == Direction::Transmit { at } else { 1 - at };
            let added = with_keying(&hosts[at], |keying| {
                keying.add_sa(hosts[at].now(), self.sa(direction, from, round)).expect("a good SA")
            });
            refused = refused.or(added.refused);
        }
        refused
    }

    pub(crate) fn run(&self, bytes: usize) -> StreamOutcome {
        let recorder = FrameRecorder::default();
        let nic = NicConfig {
            mtu: self.mtu,
            engines: EspEngineConfig { sas: self.sas }.into(),
            context_cache_bytes: self.cached * CONTEXT_BYTES * usize::from(self.queues),
            queues: self.queues,
            ..NicConfig::default()
        };
        let bed = Testbed::builder(Seed(self.seed))
            .host("server", nic.clone(), TcpConfig::default())
            .layer(SecureDevice::for_queues)
            .host("client", nic, TcpConfig::default())
            .layer(SecureDevice::for_queues);
        // Without a router in the test, this router is not connected.
        let router = Router::new(self.router.unwrap_or(u16::MAX));
        let bed = match self.router {
            None => bed.wire(0, 1, self.link.clone()).recorded(&recorder),
            Some(_) => bed
                .attach(1, "router", router.face(1), self.link.clone())
                .attach(0, "router", router.face(0), self.link.clone())
                .recorded(&recorder),
        };
        let mut bed = bed.build().unwrap();
        let hosts = [bed.host(0).clone(), bed.host(1).clone()];
        for (number, host) in hosts.iter().enumerate() {
            for policy in self.policies(number) {
                with_keying(host, |keying| keying.add_policy(policy)).unwrap();
            }
        }
        // Keys come now, or later from the task below.
        let refused = if self.keys_after.is_none() { self.key(&hosts, 0) } else { None };
        let sent: Vec<u8> = MARK.iter().copied().cycle().take(bytes).collect();
        let mut listener = hosts[0].stack().listen(7, 1).unwrap();
        let data = sent.clone();
        let serving = hosts[0].spawn("server", async move {
            let mut stream = listener.accept().await?;
            stream.write_all(&data).await?;
            stream.shutdown().await?;
            let mut word = Vec::new();
            stream.read_to_end(&mut word).await?;
            std::io::Result::Ok(word)
        });
        let (client, server) = (hosts[1].clone(), (address(self.ipv6, 0), 7).into());
        let fetching = hosts[1].spawn("client", async move {
            let mut stream = client.stack().connect(None, server).await?;
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await?;
            stream.write_all(MARK).await?;
            stream.shutdown().await?;
            std::io::Result::Ok(received)
        });
        let (pair, keyed) = (self.clone(), hosts.clone());
        let (runtime, mut round) = (bed.runtime(), 0);
        let (report, reports) = std::sync::mpsc::channel();
        hosts[0].spawn("keys", async move {
            let mut ticks = 0u64;
            loop {
                testbed_sleep(&*runtime, TICK).await;
                ticks += 1;
                if pair.keys_after.is_some_and(|after| after <= TICK * ticks as u32) && round == 0 {
                    pair.key(&keyed, 1);
                    round = 1;
                }
                let mut wanted = false;
                for host in &keyed {
                    while let Some(event) = with_keying(host, |keying| keying.poll_sa_event()) {
                        // A missing SA is added by the test itself, and a crossing needs no successor.
                        wanted |= !matches!(event, SaEvent::Acquire { .. } | SaEvent::Crossed { .. });
                        let _ = report.send(event);
                    }
                }
                if wanted && pair.rekey_on_events {
                    round += 1;
                    pair.key(&keyed, round);
                }
            }
        });
        let received = bed.run_within(ENOUGH, fetching).unwrap();
        assert_eq!(bed.run_within(ENOUGH, serving).unwrap(), MARK, "the word back");
        let mut used = Vec::new();
        for host in &hosts {
            for index in 0..64 {
                let id = SaId(offload_api::Handle { index, generation: 0 });
                used.extend(with_keying(host, |keying| keying.sa_use(id)));
            }
        }
        let events = reports.try_iter().collect();
        // Each round adds four SAs: two ends and two directions.
        let rekeys = used.len() as u32 / 4 - u32::from(self.keys_after.is_none());
        let (seen, counters, routed) = (recorder.seen(), bed.counters(), router.routed());
        StreamOutcome { sent, received, seen, counters, events, rekeys, used, refused, routed }
    }
}

pub(crate) async fn testbed_sleep(runtime: &dyn offload_testbed::Runtime, span: Duration) {
    let mut alarm = runtime.alarm();
    let until = runtime.now() + span;
    core::future::poll_fn(|cx| alarm.poll(cx, Some(until))).await;
}

/// Limit of virtual time per wait: long enough for retransmission timeouts.
pub(crate) const ENOUGH: Duration = Duration::from_secs(3600);
/// Size of a context on a NIC.
const CONTEXT_BYTES: usize = 208;
/// The interval at which the test polls keying events.
const TICK: Duration = Duration::from_micros(10);

pub(crate) fn with_keying<T>(host: &BedHost, f: impl FnOnce(&mut dyn Keying) -> T) -> T {
    host.stack().with_device(|device| f(device.keying().expect("an IPsec layer")))
}
