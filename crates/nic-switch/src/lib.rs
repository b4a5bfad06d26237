//! The switch inside an offload NIC.
//!
//! - [`port`], [`function`], [`frame`]: ports, functions, and frames with their metadata;
//! - [`rule`], [`matching`], [`action`]: the one type of rule, for all front ends;
//! - [`words`]: parser and printer for rules as `tc filter` lines;
//! - [`switch`]: the switch itself. `table` finds the rule for a frame's `key`; `edit`, `police` and [`overlay`]
//!   execute the rule's actions; `addresses` forwards in legacy mode; `protection` lists the tunnel networks that IPsec
//!   protects; `too_big` builds ICMP messages about oversized packets; `neighbours` recognizes neighbour discovery.
//!
//! Sans-IO: the crate has no sockets, rings or clocks.

#![forbid(unsafe_code)]

pub mod action;
mod addresses;
#[cfg(test)]
mod arbitrary;
mod edit;
pub mod frame;
pub mod function;
mod key;
pub mod matching;
mod neighbours;
pub mod overlay;
mod police;
pub mod port;
mod protection;
pub mod rule;
pub mod switch;
mod table;
mod too_big;
pub mod words;

pub use action::{ChecksumSet, Edit, Police, RuleAction, TunnelSet, VlanTag};
pub use frame::Frame;
pub use function::FunctionConfig;
pub use matching::{EtherMatch, Mac, Match, Ports};
pub use neighbours::NeighbourMessage;
pub use overlay::TunnelHop;
pub use port::{Device, Egress, TunnelDevice, TunnelKind, Vport};
pub use protection::TunnelProtection;
pub use rule::{Change, Rule, RuleError, Selection};
pub use switch::{RuleReport, Switch, SwitchConfig, SwitchCounters, SwitchMode, Tunnel};
pub use table::{ChangeError, RuleCounters};
pub use words::{FunctionChange, FunctionFile, FunctionOptions, ParseError, ParseProblem, RuleFile};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
