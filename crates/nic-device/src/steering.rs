//! Steering: from the keys of a received packet to its contexts. Exact matches only.
//!
//! A key is a flow, with contexts in several layers, or an engine's own key. A context can be added or removed in its
//! layer while the contexts above and below stay.
//!
//! Invariant: a look-up finds only contexts that were steered to the key and not removed since.

use core::cell::RefCell;
use offload_api::{FlowKey, Handle, Key, KeyBytes, LAYERS};
use offload_base::QuickHash;
use std::collections::HashMap;

/// The contexts of a flow, lowest layer first.
pub(crate) type Followers = [Option<Handle>; LAYERS];

/// The steering table. Only looked up, never iterated, so the hash order cannot affect a run.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    /// Uses a keyed hash, because peers choose the flows.
    flows: HashMap<FlowKey, Followers>,
    /// Result of the last look-up, negative results included, because packets arrive in bursts.
    last: RefCell<Option<(FlowKey, Followers)>>,
    /// Keys of engines. Attackers cannot choose these, so a fast hash suffices.
    engines: HashMap<(u8, KeyBytes), Handle, QuickHash>,
}

impl Steering {
    /// Steers packets with `key` to `handle` from now on.
    pub(crate) fn insert(&mut self, key: Key, handle: Handle) {
        match key {
            Key::Flow(flow, layer) => {
                *self.last.get_mut() = None;
                self.flows.entry(flow).or_default()[layer.index()] = Some(handle);
            }
            Key::Engine(engine, key) => {
                self.engines.insert((engine, key), handle);
            }
        }
    }

    /// Tests whether no flow is steered.
    pub(crate) fn follows_nothing(&self) -> bool {
        self.flows.is_empty()
    }

    /// Tests whether no engine key is steered.
    pub(crate) fn opens_nothing(&self) -> bool {
        self.engines.is_empty()
    }

    /// Returns the contexts of `flow`.
    pub(crate) fn followers(&self, flow: &FlowKey) -> Followers {
        if let Some((last, found)) = &*self.last.borrow()
            && last == flow
        {
            return *found;
        }
        let found = self.flows.get(flow).copied().unwrap_or_default();
        *self.last.borrow_mut() = Some((*flow, found));
        found
    }

    /// Returns the context for an engine key.
    pub(crate) fn opener(&self, engine: u8, key: KeyBytes) -> Option<Handle> {
        self.engines.get(&(engine, key)).copied()
    }

    /// Removes `key` if it leads to `handle`. A newer context may have replaced the handle.
    pub(crate) fn remove(&mut self, key: Key, handle: Handle) {
        match key {
            Key::Flow(flow, layer) => {
                *self.last.get_mut() = None;
                let Some(followers) = self.flows.get_mut(&flow) else { return };
                let follower = &mut followers[layer.index()];
                if *follower == Some(handle) {
                    *follower = None;
                }
                if followers.iter().all(Option::is_none) {
                    // An empty entry would stay for every closed flow.
                    self.flows.remove(&flow);
                }
            }
            Key::Engine(engine, key) => {
                if self.engines.get(&(engine, key)) == Some(&handle) {
                    self.engines.remove(&(engine, key));
                }
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Steering::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::Layer;

    const BELOW: Handle = Handle { index: 1, generation: 0 };
    const ABOVE: Handle = Handle { index: Handle::PLACES, generation: 0 };
    const NEWER: Handle = Handle { index: 2, generation: 0 };

    fn flow() -> FlowKey {
        FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap())
    }

    #[test]
    fn a_context_comes_and_goes_at_its_layer_alone() {
        let mut steering = Steering::default();
        assert_eq!(steering.followers(&flow()), [None, None]);
        steering.insert(Key::Flow(flow(), Layer::FIRST), BELOW);
        steering.insert(Key::Flow(flow(), Layer::SECOND), ABOVE);
        assert_eq!(steering.followers(&flow()), [Some(BELOW), Some(ABOVE)]);
        // A rekey: the context below is replaced.
        steering.insert(Key::Flow(flow(), Layer::FIRST), NEWER);
        steering.remove(Key::Flow(flow(), Layer::FIRST), BELOW);
        assert_eq!(steering.followers(&flow()), [Some(NEWER), Some(ABOVE)]);
        steering.remove(Key::Flow(flow(), Layer::FIRST), NEWER);
        assert_eq!(steering.followers(&flow()), [None, Some(ABOVE)]);
        assert!(!steering.follows_nothing());
        steering.remove(Key::Flow(flow(), Layer::SECOND), ABOVE);
        assert!(steering.follows_nothing());
    }

    #[test]
    fn keys_of_engines_are_their_own_and_go_with_their_context() {
        let mut steering = Steering::default();
        let address = |text: &str| text.parse().unwrap();
        let key = KeyBytes::from_addresses(0x1001, address("10.0.0.1"), address("10.0.0.2"));
        steering.insert(Key::Engine(1, key), BELOW);
        assert_eq!(steering.opener(1, key), Some(BELOW));
        assert_eq!(steering.opener(2, key), None);
        for other in [
            KeyBytes::from_addresses(0x1002, address("10.0.0.1"), address("10.0.0.2")),
            KeyBytes::from_addresses(0x1001, address("10.0.0.2"), address("10.0.0.1")),
            KeyBytes::from_addresses(0x1001, address("::ffff:10.0.0.1"), address("::ffff:10.0.0.2")),
        ] {
            assert_eq!(steering.opener(1, other), None, "{other:?}");
        }
        steering.remove(Key::Engine(1, key), NEWER);
        assert_eq!(steering.opener(1, key), Some(BELOW));
        steering.remove(Key::Engine(1, key), BELOW);
        assert!(steering.opens_nothing());
    }
}
