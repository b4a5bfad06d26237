//! The identity of a host: name and identifier.

use core::fmt;
use offload_base::Rng;

/// The identity of a host. Controllers treat hosts with the same identifier as one host, and its later connections
/// replace earlier ones. Identifiers must therefore be unique, and a host should keep its identifier while its storage
/// may have commands of it.
///
/// ```
/// use nvme_tcp::host::HostIdentity;
/// use offload_base::Seed;
///
/// // The same in every run; with real peers, draw it from the system's generator instead.
/// let identity = HostIdentity::random(&mut Seed(7).stream("host"));
/// assert_eq!(identity, HostIdentity::random(&mut Seed(7).stream("host")));
/// assert_ne!(identity, HostIdentity::random(&mut Seed(8).stream("host")));
/// assert!(identity.name.starts_with("nqn.2014-08.org.nvmexpress:uuid:"));
/// assert_eq!(identity, HostIdentity::from_uuid(identity.id));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// The host's qualified name (HOSTNQN).
    pub name: String,
    /// The host's identifier (HOSTID), a UUID.
    pub id: [u8; 16],
}

impl HostIdentity {
    /// Draws a random identity.
    pub fn random(rng: &mut Rng) -> HostIdentity {
        let mut id = [0; 16];
        rng.fill(&mut id);
        // RFC 9562 5.4: version 4, variant 10b.
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        HostIdentity::from_uuid(id)
    }

    /// Derives the name from a UUID (NVM Express Base Specification 2.0, 4.5.1).
    pub fn from_uuid(id: [u8; 16]) -> HostIdentity {
        HostIdentity { name: format!("nqn.2014-08.org.nvmexpress:uuid:{}", HostUuid(id)), id }
    }
}

/// A UUID that is displayed as text.
struct HostUuid([u8; 16]);

impl fmt::Display for HostUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    #[test]
    fn name_contains_the_random_uuid() {
        let id = core::array::from_fn(|at| 0x11 * at as u8);
        let name = "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(HostIdentity::from_uuid(id).name, name);
        for seed in 0..50 {
            let id = HostIdentity::random(&mut Seed(seed).stream("host")).id;
            assert_eq!((id[6] >> 4, id[8] >> 6), (4, 0b10), "RFC 9562: version and variant");
        }
    }
}
