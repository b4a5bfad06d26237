//! The counters of rules, of machines and of the host.

use crate::outside::listed;
use nic_sim::Vport;
use nic_sim::switch::RuleReport;
use offload_base::counters::CounterSet;
use offload_testbed::attach::AttachCounters;
use serde_json::{Map, Value, json};

/// Counters at the end of a program.
#[derive(Debug)]
pub struct Report {
    /// The rules with their counters.
    pub rules: Vec<RuleReport>,
    /// Frames from and to each machine.
    pub machines: Vec<(Vport, AttachCounters)>,
    /// All other counters.
    pub counters: CounterSet,
}

impl Report {
    /// Returns a line for each counter that moved, each machine and each rule.
    pub fn text(&self) -> String {
        let mut text = listed(&self.counters);
        for (port, counters) in &self.machines {
            let (from, to) = ((counters.rx_frames, counters.rx_bytes), (counters.tx_frames, counters.tx_bytes));
            text += &format!(
                "{port}: {} frames ({} bytes) from the machine, {} ({} bytes) to it, {} lost on the way there\n",
                from.0,
                from.1,
                to.0,
                to.1,
                counters.tx_queue_drops + counters.tx_unreachable
            );
        }
        // Rules are printed as tc commands, so that they can be copied.
        for RuleReport { rule, counters, .. } in &self.rules {
            text += &format!("{} frames, {} bytes: tc filter add {rule}\n", counters.packets, counters.bytes);
        }
        text
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        let counters: Map<String, Value> =
            self.counters.moved().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let machines: Map<String, Value> = self
            .machines
            .iter()
            .map(|(port, counters)| {
                let mut set = CounterSet::default();
                set.add(counters);
                let moved: Map<String, Value> =
                    set.moved().map(|(name, value)| (name.to_owned(), value.into())).collect();
                (port.to_string(), moved.into())
            })
            .collect();
        let rules: Vec<Value> = self.rules.iter().map(|RuleReport { rule, handle, counters }| {
            json!({ "rule": rule.to_string(), "handle": handle, "packets": counters.packets, "bytes": counters.bytes })
        }).collect();
        format!("{}\n", json!({ "counters": counters, "machines": machines, "rules": rules }))
    }
}
