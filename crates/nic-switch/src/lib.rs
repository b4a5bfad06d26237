//! The switch inside an offload NIC.
//!
//! - [`port`], [`function`], [`frame`]: what frames come from and go to, and what is known of a frame;
//! - [`rule`], [`matching`], [`action`]: the one type of rule, for every front end;
//! - [`words`]: rules read from lines of `tc filter`, and printed as such;
//! - [`switch`]: the switch itself. `table` finds the rule for a frame's `key`; `edit`, `police` and [`overlay`] do what it
//!   says; `addresses` decides where there are no rules; `protection` knows which tunnels IPsec protects;
//!   `too_big` tells functions of packets that are too long; `neighbours` knows frames that find those.
//!
//! Sans-IO: nothing here knows a socket, a ring or a clock.

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

pub use action::{Action, Checksums, Edit, Police, TunnelSet, VlanTag};
pub use frame::Frame;
pub use function::FunctionConfig;
pub use matching::{EtherMatch, Mac, Match, Ports};
pub use neighbours::Neighbours;
pub use overlay::NextHop;
pub use port::{Device, Egress, TunnelDevice, TunnelKind, Vport};
pub use protection::Protection;
pub use rule::{Change, Rule, RuleError, Selection};
pub use switch::{Mode, RuleReport, Switch, SwitchConfig, SwitchCounters, Tunnel};
pub use table::{ChangeError, RuleCounters};
pub use words::{FunctionChange, FunctionFile, FunctionWords, ParseError, Problem, RuleFile};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
