//! A NIC with a switch for virtual machines of other processes: its functions' frames come and go by sockets.
//!
//! - `options`: machines and protected networks, a word each; `setup`: rules and functions from a file;
//! - `manager`: tells the switch what the file says, which way tunnels go, and which SAs there are;
//! - `steering`: a Linux that has the representors, and whose filters are the rules;
//! - `report`: what was counted, in words and as JSON.

mod manager;
mod options;
mod report;
mod setup;
mod steering;

pub use manager::Manager;
pub use options::{MachineAt, ProtectedNetwork};
pub use report::Report;
pub use setup::Setup;
pub use steering::{RepresentorAt, RepresentorCounters, Steering, SteeringCounters};
