//! Tunnel networks protected by IPsec, with their SAs.
//!
//! Invariants: a packet of a protected network is accepted only if one of the network's own SAs opened it; an SA of a
//! network carries only that network's packets; an outgoing packet of a protected network names one of its SAs, or is
//! dropped. If all networks are protected, no tunnel packet is accepted in plaintext.

use crate::port::TunnelDevice;
use offload_api::Handle;
use std::collections::HashMap;

/// The SAs of a tunnel network.
///
/// ```
/// use nic_switch::{TunnelProtection, Switch, SwitchConfig, TunnelDevice, TunnelKind};
///
/// let mut switch = Switch::new(SwitchConfig::default());
/// let vxlan0 = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };
/// // There are no SAs yet: until there are, nothing leaves by network 77 or comes from it.
/// switch.protect(vxlan0, Some(77), Some(TunnelProtection::default()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelProtection {
    /// SAs for outgoing packets; a hash of the inner flow selects one.
    pub send: Vec<Handle>,
    /// SAs through which packets may arrive.
    pub receive: Vec<Handle>,
}

/// A tunnel network: the tunnel device with its VXLAN or Geneve network id, or its GRE key.
pub(crate) type TunnelNetwork = (TunnelDevice, Option<u32>);

/// The protected networks.
#[derive(Debug, Default)]
pub(crate) struct Protections {
    networks: HashMap<TunnelNetwork, TunnelProtection>,
    /// Number of networks that name a receiving SA.
    receiving: HashMap<Handle, usize>,
    /// Whether unlisted networks require protection too, by any SA.
    pub(crate) all: bool,
}

/// The reason against a tunnel packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TunnelRejection {
    /// The packet arrived in plaintext.
    Plain,
    /// The packet arrived through an SA of another network.
    OtherSa,
}

impl Protections {
    /// Sets or removes the SAs of a network.
    pub(crate) fn set(&mut self, network: TunnelNetwork, protection: Option<TunnelProtection>) {
        if let Some(before) = self.networks.remove(&network) {
            for sa in before.receive {
                if let Some(count) = self.receiving.get_mut(&sa) {
                    *count -= 1;
                }
            }
            self.receiving.retain(|_, count| *count > 0);
        }
        if let Some(protection) = protection {
            protection.receive.iter().for_each(|sa| *self.receiving.entry(*sa).or_default() += 1);
            self.networks.insert(network, protection);
        }
    }

    /// Tests whether packets of this SA must belong to a tunnel network.
    pub(crate) fn binds(&self, sa: Option<Handle>) -> bool {
        sa.is_some_and(|sa| self.receiving.contains_key(&sa))
    }

    /// Checks a packet of a network that arrived through this SA, or in plaintext.
    pub(crate) fn check(&self, network: &TunnelNetwork, sa: Option<Handle>) -> Result<(), TunnelRejection> {
        match (self.networks.get(network), sa) {
            (Some(protection), Some(sa)) if protection.receive.contains(&sa) => Ok(()),
            (Some(_), Some(_)) => Err(TunnelRejection::OtherSa),
            (Some(_), None) => Err(TunnelRejection::Plain),
            // An SA of one network must not carry packets of another, not even of an unprotected one.
            (None, sa) if self.binds(sa) => Err(TunnelRejection::OtherSa),
            (None, None) if self.all => Err(TunnelRejection::Plain),
            (None, _) => Ok(()),
        }
    }

    /// Returns the SA for an outgoing packet with this hash; `None` if the network is not protected. `Err` if the
    /// network has no SA.
    pub(crate) fn choose(&self, network: &TunnelNetwork, hash: u64) -> Result<Option<Handle>, TunnelRejection> {
        let Some(protection) = self.networks.get(network) else { return Ok(None) };
        let count = protection.send.len() as u64;
        // A protected network without an SA must not send.
        let place = hash.checked_rem(count).ok_or(TunnelRejection::Plain)?;
        Ok(protection.send.get(place as usize).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::TunnelKind;

    const fn sa(generation: u32) -> Handle {
        Handle { index: 1 << 24, generation }
    }

    const DEVICE: TunnelDevice = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };

    #[test]
    fn an_sa_serves_only_the_networks_that_name_it() {
        let mut protections = Protections::default();
        let of = |receive: &[Handle]| Some(TunnelProtection { send: vec![sa(1), sa(2)], receive: receive.to_vec() });
        let [one, two, plain] = [77, 78, 79].map(|key| (DEVICE, Some(key)));
        protections.set(one, of(&[sa(3)]));
        protections.set(two, of(&[sa(3), sa(4)]));
        assert_eq!(protections.check(&one, Some(sa(3))), Ok(()));
        assert_eq!(protections.check(&one, Some(sa(4))), Err(TunnelRejection::OtherSa));
        assert_eq!(protections.check(&one, None), Err(TunnelRejection::Plain));
        assert_eq!(protections.check(&plain, Some(sa(4))), Err(TunnelRejection::OtherSa));
        assert_eq!(protections.check(&plain, Some(sa(5))), Ok(()), "an SA of no network");
        assert_eq!(protections.check(&plain, None), Ok(()));
        assert_eq!([0, 1, 2].map(|hash| protections.choose(&one, hash).unwrap()), [sa(1), sa(2), sa(1)].map(Some));
        assert_eq!(protections.choose(&plain, 0), Ok(None));
        protections.set(one, Some(TunnelProtection::default()));
        assert!(protections.choose(&one, 0).is_err());
        assert!(protections.binds(Some(sa(3))), "the other network names it");
        protections.set(two, None);
        assert!(!protections.binds(Some(sa(3))) && !protections.binds(Some(sa(4))));
        assert_eq!(protections.check(&two, None), Ok(()));
        protections.all = true;
        assert_eq!(protections.check(&two, None), Err(TunnelRejection::Plain));
        assert_eq!(protections.check(&two, Some(sa(9))), Ok(()), "any SA suffices");
    }
}
