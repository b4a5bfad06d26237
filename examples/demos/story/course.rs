//! Two hosts with NICs on a wire that loses one packet and delays one, and a server that sends records.

use crate::story::log::Log;
use crate::story::reading::Reading;
use crate::story::watch::{FateCounters, Role, StoryImpairment, WatchedDriver, WatchedPort};
use crate::story::{Opened, Story, StoryStep};
use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use ktls_offload::{KtlsStream, Offload, TlsCounters};
use nic_sim::wire::{Link, LinkConfig};
use nic_sim::{Device, NicConfig, TlsEngineConfig, nic};
use offload_api::ResyncMode;
use offload_base::Seed;
use offload_base::cost::Domain;
use offload_host_stack::{Config, Host, TcpConfig, TcpListener, TcpStream};
use offload_testbed::identity::{self, Randomness};
use offload_testbed::{Runtime, Station, VirtualTime, connect};
use std::io;
use std::sync::Arc;

/// The settings of a story. Equal settings give the same story on every machine.
///
/// See [`Story`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Number of records that the server sends.
    pub records: u64,
    /// Number of records that follow after the client has received all of them.
    pub more: u64,
    /// Content bytes of each record.
    pub record_size: u16,
    /// The packet to lose, counted from 1.
    pub lose: Option<usize>,
    /// The packet to delay so that the next packet overtakes it, counted from 1.
    pub hold_back: Option<usize>,
    /// Resynchronization of the client's NIC.
    pub resync: ResyncMode,
    /// Additional delay of the NIC's questions to its driver.
    pub question_delay: Duration,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            records: 6,
            more: 3,
            record_size: 4000,
            lose: Some(12),
            hold_back: Some(4),
            resync: ResyncMode::DriverRequest,
            question_delay: Duration::ZERO,
        }
    }
}

impl Script {
    /// Runs the connection in virtual time.
    ///
    /// # Errors If the connection is lost.
    pub fn run(&self) -> io::Result<Story> {
        let mut time = VirtualTime::new();
        let runtime: Arc<dyn Runtime> = Arc::new(time.handle());
        let log = Log::default();
        let (server, server_device) = self.host(Role::Server, &runtime, &log);
        let (client, client_device) = self.host(Role::Client, &runtime, &log);
        let watched = WatchedPort { device: client_device, reading: Reading::default(), log: log.clone() };
        let link = LinkConfig::default();
        // Both directions have their own seed, as on two separate fibres.
        let (there, back) = (Link::new(&link, Seed(1)), Link::new(&link, Seed(2)));
        let left = Station::new("server", Domain::Device(0), server_device);
        let right = Station::new("client", Domain::Device(1), watched);
        let cable = connect(&runtime, left, right, there, back);
        let fate = StoryImpairment {
            lose: self.lose,
            hold_back: self.hold_back,
            by: HELD_BACK,
            log: log.clone(),
            counters: FateCounters::default(),
        };
        cable.left_to_right.lock().expect("nobody panicked with it").impair(Box::new(fate));
        let serving = time.spawn("server", serve(*self, server.listen(PORT, 1)?, log.clone()));
        let fetching = fetch(*self, client, runtime, log.clone());
        // The client ends first, because the server waits for its close.
        time.block_on(fetching)?;
        time.block_on(serving)?;
        Ok(log.story())
    }

    /// Checks that a story contains the packets to lose and to delay, and is not too long.
    ///
    /// ```
    /// use offload_demos::story::course::Script;
    ///
    /// let course = Script { lose: Some(999), ..Script::default() };
    /// let error = course.check(&course.run()?).unwrap_err();
    /// assert!(error.starts_with("--lose 999: the story has"), "{error}");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The reason as text.
    pub fn check(&self, story: &Story) -> Result<(), String> {
        let packets = story.packets.len();
        if packets > MAX_PACKETS {
            return Err(format!(
                "the story has {packets} packets, more than the limit of {MAX_PACKETS}: choose fewer or smaller \
                 records"
            ));
        }
        for (option, packet) in [("--lose", self.lose), ("--hold-back", self.hold_back)] {
            if let Some(packet) = packet.filter(|packet| *packet > packets) {
                return Err(format!("{option} {packet}: the story has {packets} packets"));
            }
        }
        Ok(())
    }

    /// Builds one of the two hosts, and the device of its NIC.
    fn host(&self, role: Role, runtime: &Arc<dyn Runtime>, log: &Log) -> (Host, Device) {
        let ((own, mac), (other, other_mac)) = match role {
            Role::Server => (SERVER, CLIENT),
            Role::Client => (CLIENT, SERVER),
        };
        // Pacing and joining (LRO) are off, so that each packet is visible by itself and at its usual time.
        let config = NicConfig {
            mac,
            engines: TlsEngineConfig { resync: self.resync, ..TlsEngineConfig::default() }.into(),
            pacing: false,
            lro: false,
            ..NicConfig::default()
        };
        let (device, driver) = nic(config);
        let driver = WatchedDriver::new(driver, role, log.clone(), self.question_delay);
        let mut config = Config::new(own, mac, Seed(u64::from(mac[5]))).with_neighbour(IpAddr::from(other), other_mac);
        config.tcp = TcpConfig { nodelay: true, ..TcpConfig::default() };
        let host = Host::new(config, Box::new(driver), runtime.clone());
        let _serves_on = runtime.spawn("stack", host.serve());
        (host, device)
    }
}

async fn serve(course: Script, mut listener: TcpListener, log: Log) -> io::Result<()> {
    let mut config = identity::server_config(Randomness::Seeded(Seed(1)), None);
    // Tickets are records too. Without tickets, the first record of the story is number 0.
    config.send_tls13_tickets = 0;
    let stream = listener.accept().await?;
    let mut stream = offloaded(ktls_offload::accept(stream, Arc::new(config)).await?).await?;
    stream.set_record_size(course.record_size.into());
    // The handshake is not part of the story.
    log.begin();
    // Each batch waits for the client's request.
    for records in [course.records, course.more] {
        stream.next_chunk().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let content = vec![b'.'; records as usize * usize::from(course.record_size)];
        stream.send_chunk(content.into()).await?;
    }
    while stream.next_chunk().await?.is_some() {}
    stream.close().await
}

// The client asks for both batches, so that the second one starts after all of the first was received.
async fn fetch(course: Script, host: Host, runtime: Arc<dyn Runtime>, log: Log) -> io::Result<()> {
    let config = Arc::new(identity::client_config(Randomness::Seeded(Seed(2)), None));
    let stream = host.connect(None, (SERVER.0, PORT).into()).await?;
    let mut stream = offloaded(ktls_offload::connect(stream, config, identity::server_name()).await?).await?;
    let mut before = *stream.counters();
    let mut number = 0;
    while number < course.records + course.more {
        if number == 0 || number == course.records {
            stream.send_chunk(Bytes::from_static(b"go on")).await?;
        }
        stream.next_chunk().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let after = *stream.counters();
        for by in opened_between(&before, &after) {
            log.note(runtime.now(), StoryStep::Opened { number, by });
            number += 1;
        }
        before = after;
    }
    log.end();
    stream.close().await?;
    while stream.next_chunk().await?.is_some() {}
    Ok(())
}

/// Offloads both directions, and keeps them offloaded regardless of retransmissions.
async fn offloaded(mut stream: KtlsStream<TcpStream>) -> io::Result<KtlsStream<TcpStream>> {
    stream.set_retransmit_limit(None);
    stream.offload(Offload::BOTH);
    stream.ready().await?;
    Ok(stream)
}

/// Returns the place of decryption of each record counted between two readings.
fn opened_between(before: &TlsCounters, after: &TlsCounters) -> impl Iterator<Item = Opened> {
    let counts = [
        (Opened::ByNic, after.rx_records_device - before.rx_records_device),
        (Opened::InPart, after.rx_records_partial - before.rx_records_partial),
        (Opened::InSoftware, after.rx_records_sw - before.rx_records_sw),
    ];
    counts.into_iter().flat_map(|(by, count)| core::iter::repeat_n(by, count as usize))
}

/// An IP address and an Ethernet address.
type StoryEndpoint = (Ipv4Addr, [u8; 6]);

const SERVER: StoryEndpoint = (Ipv4Addr::new(10, 0, 0, 1), [0x02, 0, 0, 0, 0, 1]);
const CLIENT: StoryEndpoint = (Ipv4Addr::new(10, 0, 0, 2), [0x02, 0, 0, 0, 0, 2]);
const PORT: u16 = 443;
const MAX_PACKETS: usize = 200;
/// A delay longer than the transmission time of a full packet, and shorter than that of two.
const HELD_BACK: Duration = Duration::from_nanos(200);
