//! What received packets show, and contexts are found by.

use crate::unit::Layer;
use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use offload_formats::FlowKey;

/// What finds contexts.
///
/// ```
/// use offload_api::{FlowKey, Key, KeyBytes, Layer, engines};
///
/// let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap());
/// let of_tls = Key::Flow(flow, Layer::FIRST);
/// let of_esp = Key::Engine(engines::ESP, KeyBytes::of_addresses(0x1001, [10, 0, 0, 2].into(), [10, 0, 0, 1].into()));
/// assert_ne!(of_tls, of_esp);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The flow, as its receiver sees it, and the layer there.
    Flow(FlowKey, Layer),
    /// An engine's own, by the engine's number.
    Engine(u8, KeyBytes),
}

/// What an engine finds packets by.
///
/// ```
/// use offload_api::KeyBytes;
///
/// let key = KeyBytes::of_addresses(0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
/// assert_eq!(key, KeyBytes::of(&[&[0, 0, 0x10, 0x01], &[10, 0, 0, 1], &[10, 0, 0, 2]]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyBytes {
    len: u8,
    bytes: [u8; KeyBytes::MAX],
}

/// Of the bytes that are there: most keys are a third of the longest.
impl Hash for KeyBytes {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // What is behind them is zero. Two that differ in how many zeroes they end with alone are told apart by `eq`.
        state.write(&self.bytes[..self.len.into()]);
    }
}

impl KeyBytes {
    /// As many as there can be.
    pub const MAX: usize = 39;

    /// Made of `parts`, one behind the other.
    ///
    /// # Panics
    /// If they are more than [`MAX`](Self::MAX).
    pub fn of(parts: &[&[u8]]) -> KeyBytes {
        let mut key = KeyBytes { len: 0, bytes: [0; KeyBytes::MAX] };
        for part in parts {
            let at = usize::from(key.len);
            key.bytes[at..at + part.len()].copy_from_slice(part);
            key.len += part.len() as u8;
        }
        key
    }

    /// A number, such as a security parameters index, and two addresses.
    pub fn of_addresses(number: u32, source: IpAddr, destination: IpAddr) -> KeyBytes {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                KeyBytes::of(&[&number.to_be_bytes(), &source.octets(), &destination.octets()])
            }
            (source, destination) => {
                let octets = |address| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                KeyBytes::of(&[&number.to_be_bytes(), &octets(source), &octets(destination)])
            }
        }
    }
}
