//! Graphs: the services that a packet passes, and the number of blocks at each.
//!
//! A description is a list of services separated by `>`. Options follow a colon if a service does not work on one block
//! for each 16 bytes:
//!
//! ```text
//! key-expansion:once,blocks=1 > counter:extra=1 > aes-128:extra=1 > ghash:extra=1 > compare:blocks=1
//! ```
//!
//! - `once`: only for packets that arrive before the flow's key is expanded, usually the first packet; again after the
//!   fabric has forgotten the flow;
//! - `serial`: each block needs the one before, so that more instances process more packets, but none of these faster;
//! - `extra=N`: N blocks in addition to those of the packet;
//! - `blocks=N`: N blocks for any length of the packet.
//!
//! A step has at most one of `extra` and `blocks`. At least one step is without `once`, so that every packet passes a
//! service.

use crate::Service;
use core::fmt;
use core::str::FromStr;

/// Work of a service on a packet.
///
/// ```
/// use crypto_services::{Service, GraphStep};
///
/// let step = GraphStep { extra: 2, ..GraphStep::for_service(Service::Aes128) };
/// assert_eq!(step.blocks(100), 9, "seven for 100 bytes, and two");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphStep {
    /// The service.
    pub service: Service,
    /// Only needed by packets that arrive before the flow's key is expanded.
    pub once: bool,
    /// Each block needs the one before.
    pub serial: bool,
    /// Whether there is a block for each 16 bytes.
    pub follows_length: bool,
    /// Blocks in addition.
    pub extra: u32,
}

impl GraphStep {
    /// Creates a step with a block for each 16 bytes, in any order.
    pub fn for_service(service: Service) -> GraphStep {
        GraphStep { service, once: false, serial: false, follows_length: true, extra: 0 }
    }

    /// Returns the number of blocks of a packet, at least one.
    pub fn blocks(&self, bytes: u32) -> u32 {
        let of_data = if self.follows_length { bytes.div_ceil(16) } else { 0 };
        of_data.saturating_add(self.extra).max(1)
    }
}

/// A sequence of steps.
///
/// ```
/// use crypto_services::{Graph, Service};
///
/// let graph: Graph = "counter > aes-128:extra=1 > ghash:extra=1".parse()?;
/// assert_eq!(graph.steps()[1].service, Service::Aes128);
/// assert_eq!(graph.to_string(), "counter > aes-128:extra=1 > ghash:extra=1");
/// let wrong = "counter > aes".parse::<Graph>().unwrap_err();
/// assert!(wrong.to_string().starts_with("step 2: there is no service \"aes\""));
/// # Ok::<(), crypto_services::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    steps: Vec<GraphStep>,
}

/// Error in a description of a graph.
///
/// See [`Graph`] for an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The number of steps is zero or more than [`Graph::STEPS_MAX`].
    #[error("{0} steps: a graph has one to {max}", max = Graph::STEPS_MAX)]
    Steps(usize),
    /// The service is unknown.
    #[error("step {step}: there is no service {name:?}; known are {}", ServiceNames)]
    Service {
        /// Number of the step, from 1.
        step: usize,
        /// The name found.
        name: String,
    },
    /// A service occurs twice.
    #[error("step {step}: {} stands in the graph twice; give it more blocks instead (extra=N)", service.name())]
    Twice {
        /// Number of the step, from 1.
        step: usize,
        /// The service.
        service: Service,
    },
    /// Every step is [`GraphStep::once`], so a flow's second packet would pass no service.
    #[error("every step is for a flow's first packet alone: take once from one of them")]
    OnlyOnce,
    /// An option is unknown, its number is invalid, or the step already has a number.
    #[error(
        "step {step}: {option:?} is no option here; there are once, serial and one of extra=N and blocks=N, N up to {max}",
        max = BLOCKS_MAX
    )]
    Option {
        /// Number of the step, from 1.
        step: usize,
        /// The option found.
        option: String,
    },
}

struct ServiceNames;

impl fmt::Display for ServiceNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, service) in Service::ALL.iter().enumerate() {
            write!(f, "{}{}", if place == 0 { "" } else { ", " }, service.name())?;
        }
        Ok(())
    }
}

impl Graph {
    /// Maximum number of steps.
    pub const STEPS_MAX: usize = 16;

    /// Creates a graph of these steps.
    ///
    /// # Errors
    /// [`GraphError::Steps`], [`GraphError::Twice`] or [`GraphError::OnlyOnce`].
    pub fn new(steps: Vec<GraphStep>) -> Result<Graph, GraphError> {
        if steps.is_empty() || steps.len() > Graph::STEPS_MAX {
            return Err(GraphError::Steps(steps.len()));
        }
        for (place, step) in steps.iter().enumerate() {
            if steps[..place].iter().any(|other| other.service == step.service) {
                return Err(GraphError::Twice { step: place + 1, service: step.service });
            }
        }
        // A later packet of the flow would otherwise pass nothing and have no events.
        if steps.iter().all(|step| step.once) {
            return Err(GraphError::OnlyOnce);
        }
        Ok(Graph { steps })
    }

    /// Creates the graph of a suite without checks; a test checks all suites.
    pub(crate) fn from_suite_steps(steps: Vec<GraphStep>) -> Graph {
        Graph { steps }
    }

    /// Returns the steps in order.
    pub fn steps(&self) -> &[GraphStep] {
        &self.steps
    }
}

impl FromStr for Graph {
    type Err = GraphError;

    fn from_str(text: &str) -> Result<Graph, GraphError> {
        let steps = text.split('>').enumerate().map(|(place, step)| parse_step(place + 1, step.trim()));
        Graph::new(steps.collect::<Result<_, _>>()?)
    }
}

fn parse_step(number: usize, text: &str) -> Result<GraphStep, GraphError> {
    let (name, options) = text.split_once(':').map_or((text, None), |(name, options)| (name.trim(), Some(options)));
    let unknown = || GraphError::Service { step: number, name: name.chars().take(NAME_SHOWN).collect() };
    let mut step = GraphStep::for_service(Service::from_name(name).ok_or_else(unknown)?);
    let mut has_number = false;
    for option in options.into_iter().flat_map(|options| options.split(',')).map(str::trim) {
        let wrong = || GraphError::Option { step: number, option: option.chars().take(NAME_SHOWN).collect() };
        let count = |text: &str| text.parse().ok().filter(|count| *count <= BLOCKS_MAX).ok_or_else(wrong);
        match option.split_once('=') {
            None if option == "once" => step.once = true,
            None if option == "serial" => step.serial = true,
            // A second number would silently replace the first one.
            Some(_) if has_number => return Err(wrong()),
            Some(("extra", blocks)) => (step.extra, has_number) = (count(blocks)?, true),
            Some(("blocks", blocks)) => (step.extra, step.follows_length, has_number) = (count(blocks)?, false, true),
            _ => return Err(wrong()),
        }
    }
    Ok(step)
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.steps.iter().enumerate() {
            write!(f, "{}{}", if place == 0 { "" } else { " > " }, step.service.name())?;
            let mut options = Vec::new();
            if step.once {
                options.push("once".to_owned());
            }
            if step.serial {
                options.push("serial".to_owned());
            }
            match (step.follows_length, step.extra) {
                (true, 0) => {}
                (true, extra) => options.push(format!("extra={extra}")),
                (false, blocks) => options.push(format!("blocks={blocks}")),
            }
            if !options.is_empty() {
                write!(f, ":{}", options.join(","))?;
            }
        }
        Ok(())
    }
}

/// Maximum number of additional blocks.
const BLOCKS_MAX: u32 = 4096;
/// Maximum number of characters of a faulty word in an error; escaping may multiply the length by ten.
const NAME_SHOWN: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_round_trips() {
        let text =
            "key-expansion:once,blocks=1 > cbc:serial > aes-256:serial,extra=3 > hmac:blocks=0 > compare:blocks=1";
        let graph: Graph = text.parse().unwrap();
        assert_eq!(graph.to_string(), text);
        assert_eq!(graph, graph.to_string().parse().unwrap());
        let blocks: Vec<u32> = graph.steps().iter().map(|step| step.blocks(33)).collect();
        assert_eq!(blocks, [1, 3, 6, 1, 1]);
        assert_eq!(GraphStep::for_service(Service::Zuc).blocks(0), 1, "an empty packet has one block");
        assert_eq!(
            GraphStep { extra: BLOCKS_MAX, ..GraphStep::for_service(Service::Zuc) }.blocks(u32::MAX),
            (1 << 28) + BLOCKS_MAX
        );
    }

    #[test]
    fn invalid_descriptions_are_refused() {
        let wrong = |text: &str| text.parse::<Graph>().unwrap_err();
        assert!(matches!(wrong(""), GraphError::Service { step: 1, .. }));
        assert!(matches!(wrong("ghash > "), GraphError::Service { step: 2, .. }));
        assert_eq!(wrong("ghash > zuc > ghash"), GraphError::Twice { step: 3, service: Service::Ghash });
        for option in ["twice", "", "extra", "extra=", "extra=-1", "extra=4097", "blocks=1x", "once=1"] {
            let found = wrong(&format!("ghash:{option}"));
            assert_eq!(found, GraphError::Option { step: 1, option: option.into() });
        }
        assert_eq!(Graph::new(Vec::new()), Err(GraphError::Steps(0)));
        assert_eq!(Graph::new(vec![GraphStep::for_service(Service::Zuc); 17]), Err(GraphError::Steps(17)));
        assert!(wrong(&"x".repeat(1000)).to_string().len() < 400, "errors are short");
    }
}
