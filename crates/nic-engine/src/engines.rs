//! The list of a NIC's engines.

use crate::hosted::InstalledEngine;
use crate::{EngineDescription, JobEngine, NamedStage, PacketEngine, StageMakers, StreamEngine};
use offload_api::EngineInfo;

/// The engines of a NIC, in the order of their numbers.
///
/// ```
/// use nic_engine::Engines;
/// use nic_sim::engines::DataKeys;
///
/// let mut engines = Engines::none();
/// engines.add_job(DataKeys::default(), 16);
/// assert_eq!((engines.infos()[0].name, engines.infos()[0].contexts), ("data keys", 16));
/// let [installed] = &engines.into_installed()[..] else { panic!("it is one") };
/// assert!(matches!(installed, nic_engine::hosted::InstalledEngine::Job(_)));
/// ```
#[derive(Debug)]
pub struct Engines {
    installed: Vec<InstalledEngine>,
    stages: StageMakers,
}

impl Engines {
    /// Creates an empty list.
    pub fn none() -> Engines {
        Engines { installed: Vec::new(), stages: StageMakers::default() }
    }

    /// Adds an engine that follows the bytes of flows, with at most `contexts` contexts. To return to the middle of a
    /// unit, a driver passes the unit through the context from its first byte.
    pub fn add_stream<E: StreamEngine>(&mut self, engine: E, contexts: u32) {
        self.installed.push(InstalledEngine::stream(engine, contexts));
    }

    /// Adds an engine that processes whole packets, with at most `contexts` contexts.
    pub fn add_packet<E: PacketEngine>(&mut self, engine: E, contexts: u32) {
        self.installed.push(InstalledEngine::packet(engine, contexts));
    }

    /// Adds an engine that works from memory to memory, with at most `contexts` contexts. Only a lookaside accelerator
    /// has job queues for such an engine.
    pub fn add_job<E: JobEngine>(&mut self, engine: E, contexts: u32) {
        self.installed.push(InstalledEngine::job(engine, contexts));
    }

    /// Returns the descriptions for a driver.
    pub fn descriptions(&self) -> Vec<EngineDescription> {
        self.installed.iter().zip(0..).map(|(engine, number)| engine.any().description(number)).collect()
    }

    /// Returns the descriptions for protocols.
    pub fn infos(&self) -> Vec<EngineInfo> {
        self.descriptions().into_iter().map(|engine| engine.info).collect()
    }

    /// Adds a stage, which is offered to all engines.
    pub fn add_stage<S: NamedStage>(&mut self) {
        self.stages = core::mem::take(&mut self.stages).with::<S>();
    }

    /// Converts the list into a device's engines, and gives the stages to each engine.
    pub fn into_installed(mut self) -> Vec<InstalledEngine> {
        // Done last, so that stages work in any engine no matter in which order both were added.
        for engine in &mut self.installed {
            engine.any_mut().take_stages(&self.stages);
        }
        self.installed
    }
}
