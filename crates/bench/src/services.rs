//! NICs with ciphers as services on a small device: the cost of inline ESP on such a device.

use core::fmt;
use core::time::Duration;
use crypto_services::{
    Controller, Fabric, FabricError, Fixed, Goal, Hysteresis, InlineChain, InlineWork, Predictive, ServicePort,
    ServicePortConfig, Suite, TransformDirection,
};
use ipsec::KeyFile;
use nic_sim::wire::Port;
use offload_api::EspSuite;
use offload_base::counters::Counters as _;
use offload_bench_tls::bulk::PortOfHost;
use offload_bench_tls::choices;
use offload_bench_tls::facts::Run;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

choices! {
    /// The policy that decides the number of instances of a service.
    pub enum ServiceController {
        /// Prediction by queueing theory.
        Queue = "queue",
        /// Thresholds of utilization.
        Hysteresis = "hysteresis",
        /// One instance of each service.
        Fixed = "fixed",
    }
}

impl ServiceController {
    /// Returns the controller of a device with `area`, which is to pass 99 of 100 packets within `target`.
    pub fn controller(self, target: Duration, area: f64) -> Box<dyn Controller + Send> {
        match self {
            ServiceController::Queue => Box::new(Predictive::new(Goal::new(target.as_nanos() as f64, area))),
            ServiceController::Hysteresis => Box::new(Hysteresis::new(0.9, 0.4)),
            ServiceController::Fixed => Box::new(Fixed),
        }
    }
}

/// The devices of services between two NICs and their wire.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::bulk::{Bulk, Mode};
/// use offload_bench::ipsec;
/// use offload_bench_tls::payload::Payload;
/// use offload_bench::services::{EspServices, ServiceController};
///
/// let keys = ipsec::usual_keys(Seed(1)).offloaded(offload_api::OffloadKind::Packet);
/// let services = EspServices::new(&keys, 64.0, ServiceController::Queue).expect("there is room");
/// let bulk = Bulk::new(Mode::Tcp, Payload::seeded(Seed(1), 100_000));
/// let mut run = Bulk { layer: Some(ipsec::layer(keys)), port: Some(services.port()), ..bulk }.run()?;
/// services.count(&mut run);
/// assert!(run.sha256_ok && run.counters["services_tx_packets"] > 60);
/// # Ok::<(), offload_bench_tls::bulk::BulkError>(())
/// ```
pub struct EspServices {
    config: ServicePortConfig,
    controller: ServiceController,
    /// The chain of each SPI.
    chains: Arc<HashMap<u64, usize>>,
    ports: Arc<Mutex<Vec<SharedPort>>>,
}

type SharedPort = Arc<Mutex<ServicePort<Box<dyn Port>>>>;

impl EspServices {
    /// Creates devices of this area, in AES-128 instances, for the ciphers of the SAs: AES-GCM and ChaCha20-Poly1305.
    /// Packets of other SAs bypass the device.
    ///
    /// # Errors [`FabricError::Area`] if the area is too small for one instance of each service.
    pub fn new(keys: &KeyFile, area: f64, controller: ServiceController) -> Result<EspServices, FabricError> {
        let mut config = ServicePortConfig { chains: Vec::new(), ..ServicePortConfig::default() };
        config.fabric.area = area;
        let mut chains = HashMap::new();
        for sa in keys.sas() {
            let Some(suite) = suite_of(sa.key.suite()) else { continue };
            // SAs of one suite share a chain, so that instances serve all of them.
            let known = config.chains.iter().position(|chain| chain.suite == suite);
            let chain = known.unwrap_or_else(|| {
                config.chains.push(InlineChain { suite, share: 1 });
                config.chains.len() - 1
            });
            chains.insert(sa.spi.into(), chain);
        }
        // The fabric is only built to check the area; each port builds its own.
        let mut fabric = Fabric::new(config.fabric.clone());
        for InlineChain { suite, share } in &config.chains {
            fabric.add_chain(suite.graph(TransformDirection::Apply), *share)?;
            fabric.add_chain(suite.graph(TransformDirection::Undo), *share)?;
        }
        Ok(EspServices { config, controller, chains: Arc::new(chains), ports: Arc::default() })
    }

    /// Returns the function that inserts a device between each NIC and the wire.
    pub fn port(&self) -> PortOfHost {
        let (config, controller, chains) = (self.config.clone(), self.controller, self.chains.clone());
        let ports = self.ports.clone();
        Arc::new(move |_, port| {
            let chains = chains.clone();
            let look = move |frame: &[u8]| {
                let work = InlineWork::from_esp(frame)?;
                Some(InlineWork { chain: *chains.get(&work.flow)?, ..work })
            };
            let controller = controller.controller(TARGET, config.fabric.area);
            // The fabric of `new` had room for the same chains, so this fabric has, too.
            let port = ServicePort::new(port, config.clone(), controller, look);
            let port = Arc::new(Mutex::new(port.expect("there was room for the chains in another one like it")));
            ports.lock().unwrap_or_else(PoisonError::into_inner).push(port.clone());
            Box::new(port)
        })
    }

    /// Adds the devices' counters to a run's counters, together with the largest number of instances of each service.
    pub fn count(&self, run: &mut Run) {
        for (port, host) in self.ports.lock().unwrap_or_else(PoisonError::into_inner).iter().zip(["server", "client"]) {
            let port = port.lock().unwrap_or_else(PoisonError::into_inner);
            port.counters().visit(&mut |name, value| *run.counters.entry(name.into()).or_default() += value);
            let mut most = HashMap::new();
            for change in port.changes().filter(|change| change.done) {
                let instances = most.entry(change.decision.service.name()).or_insert(change.from);
                *instances = change.decision.instances.max(*instances);
            }
            for (service, instances) in most {
                run.counters.insert(format!("services_{host}_{service}_most"), instances.into());
            }
        }
        run.counters.retain(|_, value| *value > 0);
    }
}

impl fmt::Debug for EspServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EspServices { config, controller, .. } = self;
        f.debug_struct("EspServices").field("config", config).field("controller", controller).finish_non_exhaustive()
    }
}

/// Returns the service suite for an SA's cipher.
fn suite_of(suite: EspSuite) -> Option<Suite> {
    match suite {
        EspSuite::Aes128Gcm => Some(Suite::Aes128Gcm),
        EspSuite::Aes256Gcm => Some(Suite::Aes256Gcm),
        EspSuite::ChaCha20Poly1305 => Some(Suite::ChaCha20Poly1305),
        _ => None,
    }
}

/// Latency target of 99 of 100 packets. On a short wire, TCP would take a longer delay for a loss.
const TARGET: Duration = Duration::from_micros(100);
