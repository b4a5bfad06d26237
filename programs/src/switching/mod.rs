//! A NIC with a switch for virtual machines in other processes, which exchange frames with the NIC over sockets.
//!
//! - `options`: machines and protected networks on the command line; `setup`: rules and functions from a file;
//! - `manager`: configures the switch from the file, with next hops and SAs;
//! - `steering`: a Linux machine that has the representors, and supplies the rules;
//! - `report`: counters as text and as JSON.

mod manager;
mod options;
mod report;
mod setup;
mod steering;

pub use manager::Manager;
pub use options::{MachineAt, ProtectedNetwork};
pub use report::Report;
pub use setup::Setup;
pub use steering::{LinuxSteering, RepresentorAt, RepresentorCounters, SteeringCounters};
