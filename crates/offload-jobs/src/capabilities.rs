//! The capabilities of an accelerator, available before a session is opened.

use offload_transforms::{Aead, Transform};

/// The transforms of an engine. Accelerators differ in their AEADs only; all other transforms are always available.
///
/// ```
/// use offload_jobs::{CpuConfig, CpuQueue, OpenTransform, TransformCapabilities};
/// use offload_transforms::Aead;
///
/// let mut queue = CpuQueue::new(CpuConfig::default());
/// assert_eq!(queue.capabilities(), Some(TransformCapabilities::ALL));
/// let qat = TransformCapabilities::for_driver("qat").expect("it is known");
/// assert!(qat.aeads.contains(&Aead::Aes128Ccm));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformCapabilities {
    /// Available AEADs.
    pub aeads: &'static [Aead],
}

impl TransformCapabilities {
    /// All transforms.
    pub const ALL: TransformCapabilities = TransformCapabilities { aeads: &Aead::ALL };

    /// Returns the capabilities of a DPDK crypto driver, as listed in a thesis on QUIC offload (Karlstad, table 3.1.1).
    /// Returns `None` if the table does not list the driver, or lists no AEAD for it.
    pub fn for_driver(name: &str) -> Option<TransformCapabilities> {
        let found = DRIVERS.iter().find(|(driver, _)| *driver == name);
        found.map(|(_, aeads)| TransformCapabilities { aeads })
    }

    /// Returns the drivers known to [`for_driver`](Self::for_driver).
    pub fn drivers() -> impl Iterator<Item = &'static str> {
        DRIVERS.iter().map(|(name, _)| *name)
    }

    /// Tests whether a transform is available. A chain is available if each of its steps is.
    pub fn include(&self, transform: &Transform) -> bool {
        match transform {
            Transform::Aead { aead, .. } => self.aeads.contains(aead),
            // One missing step makes the whole chain impossible, because an engine runs it as a unit.
            Transform::Chain(all) => all.iter().all(|one| self.include(one)),
            _ => true,
        }
    }
}

/// All transforms.
impl Default for TransformCapabilities {
    fn default() -> TransformCapabilities {
        TransformCapabilities::ALL
    }
}

const GCM: [Aead; 2] = [Aead::Aes128Gcm, Aead::Aes256Gcm];
const GCM_AND_CCM: [Aead; 4] = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::Aes128Ccm, Aead::Aes256Ccm];
const GCM_AND_CHACHA: [Aead; 3] = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305];

const DRIVERS: [(&str, &[Aead]); 8] = [
    ("aesni-gcm", &GCM),
    ("aesni-mb", &Aead::ALL),
    ("bcmfs", &GCM_AND_CCM),
    ("chacha20-poly1305", &[Aead::ChaCha20Poly1305]),
    ("cn9k", &GCM_AND_CHACHA),
    ("cn10k", &GCM_AND_CHACHA),
    ("openssl", &GCM_AND_CCM),
    ("qat", &Aead::ALL),
];

#[cfg(test)]
mod tests {
    use super::*;
    use offload_transforms::SecretBytes;

    /// CCM: aesni-mb, bcmfs, openssl, qat. ChaCha20-Poly1305: aesni-mb, the driver of that name, both of Marvell's, and
    /// qat.
    #[test]
    fn drivers_differ_as_published() {
        let having = |aead| {
            let has =
                |name: &&str| TransformCapabilities::for_driver(name).is_some_and(|all| all.aeads.contains(&aead));
            TransformCapabilities::drivers().filter(has).collect::<Vec<_>>()
        };
        assert_eq!(having(Aead::Aes128Ccm), ["aesni-mb", "bcmfs", "openssl", "qat"]);
        assert_eq!(having(Aead::ChaCha20Poly1305), ["aesni-mb", "chacha20-poly1305", "cn9k", "cn10k", "qat"]);
        assert_eq!(having(Aead::Aes256Gcm).len(), 7);
        assert_eq!(TransformCapabilities::for_driver("abacus"), None);
    }

    #[test]
    fn chain_needs_all_of_its_steps() {
        let aead = |aead: Aead| Transform::Aead { aead, key: SecretBytes::new(vec![1; aead.key_len()]) };
        let chain = |last| Transform::Chain(vec![Transform::Copy, aead(last)]);
        let openssl = TransformCapabilities::for_driver("openssl").unwrap();
        assert!(openssl.include(&chain(Aead::Aes128Ccm)) && !openssl.include(&chain(Aead::ChaCha20Poly1305)));
    }
}
