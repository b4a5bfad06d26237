//! Legacy mode: forwarding by learned addresses, and flooding to unknown ones.

use super::Switch;
use super::passage::{ID, SwitchOutput};
use crate::addresses::VlanAddress;
use crate::edit;
use crate::frame::Frame;
use crate::function::FunctionConfig;
use crate::matching::Mac;
use crate::police::TokenBucket;
use crate::port::Vport;
use offload_base::Instant;

impl Switch {
    /// Forwards a frame by its destination address.
    pub(super) fn forward(&mut self, now: Instant, from: Vport, frame: &Frame, out: &mut SwitchOutput) {
        let vlan = edit::outermost_tag(&frame.bytes).map_or(0, |(_, control)| control & ID);
        // Only a trusted function may choose its VLAN by a tag.
        let sender = self.functions.get(&from).map(|function| function.config);
        if sender.is_some_and(|config| config.vlan.is_none() && !config.trust && vlan != 0) {
            self.counters.wrong_vlan += 1;
            return;
        }
        let (destination, source) = (mac_at(&frame.bytes, 0), mac_at(&frame.bytes, 6));
        match self.function_at(&(vlan, source)) {
            Some(port) if port != from => {
                // Only the function itself may send from its address.
                self.counters.spoofed += 1;
                return;
            }
            Some(_) => {}
            None => self.addresses.learn(now, from, (vlan, source)),
        }
        let station = (vlan, destination);
        match self.function_at(&station).or_else(|| self.addresses.find(now, &station)) {
            // Sending a frame back to its own port would duplicate the frame there.
            Some(port) if destination.is_multicast() || port == from => self.counters.same_port += 1,
            Some(port) => self.deliver(port, frame.clone(), out),
            None => self.flood(now, from, &station, frame, out),
        }
    }

    fn flood(
        &mut self,
        now: Instant,
        from: Vport,
        (vlan, destination): &VlanAddress,
        frame: &Frame,
        out: &mut SwitchOutput,
    ) {
        let storm = self.storms.entry(from).or_insert_with(|| TokenBucket::new(self.config.storm));
        if !storm.take(now, frame.bytes.len()) {
            self.counters.storm += 1;
            return;
        }
        // Unknown unicast goes to trusted functions only, so that other functions cannot eavesdrop.
        let takes = |config: &FunctionConfig| {
            let is_in = config.vlan.map_or(*vlan == 0 || config.trust, |id| id == *vlan);
            is_in && (destination.is_multicast() || config.trust)
        };
        let functions = self.functions.iter().filter(|(_, function)| takes(&function.config)).map(|(port, _)| *port);
        let ports: Vec<Vport> = [Vport::Uplink].into_iter().chain(functions).filter(|port| *port != from).collect();
        ports.into_iter().for_each(|port| self.deliver(port, frame.clone(), out));
    }

    /// Returns the function with this address in this VLAN.
    fn function_at(&self, (vlan, mac): &VlanAddress) -> Option<Vport> {
        let has = |config: &FunctionConfig| config.mac == *mac && config.vlan.unwrap_or(0) == *vlan;
        self.functions.iter().find(|(_, function)| has(&function.config)).map(|(port, _)| *port)
    }
}

fn mac_at(frame: &[u8], at: usize) -> Mac {
    let mut mac = Mac::default();
    mac.0.copy_from_slice(&frame[at..at + 6]);
    mac
}
