//! CBC-MAC of many messages side by side.

use std::fmt;

use crate::AesKey;
use crate::block::BlockCipher;
#[cfg(target_arch = "x86_64")]
use crate::block::x86::{LANES, MacLanes};

/// The CBC-MAC of a message of whole blocks. A single MAC is slow, because each block waits for the one before; sixteen together take about
/// the time of one.
///
/// CBC-MAC is safe only if all messages have the same length. CMAC and CCM are built from it.
///
/// ```
/// use resumable_aead::{AesKey, CbcMac};
///
/// let keys = [AesKey::new(&[1; 16])?, AesKey::new(&[2; 16])?];
/// let mut macs = [CbcMac::new(&keys[0], [&[7; 32], b"", &[8; 16]]), CbcMac::new(&keys[1], [b"", b"", &[9; 16]])];
/// CbcMac::run(&mut macs);
/// assert_eq!(macs[1].mac(), keys[1].encrypt_block(&[9; 16]));
/// # Ok::<(), resumable_aead::AesKeyError>(())
/// ```
pub struct CbcMac<'a> {
    key: &'a AesKey,
    parts: [&'a [u8]; 3],
    mac: [u8; 16],
}

impl<'a> CbcMac<'a> {
    /// Makes a MAC over three parts, one after the other. Each part may be empty.
    ///
    /// # Panics
    /// If a part is not whole blocks of 16 bytes.
    pub fn new(key: &'a AesKey, parts: [&'a [u8]; 3]) -> CbcMac<'a> {
        assert!(parts.iter().all(|part| part.len().is_multiple_of(16)), "parts are whole blocks");
        CbcMac { key, parts, mac: [0; 16] }
    }

    /// Returns the MAC after [`run`](Self::run), and zeros before.
    pub fn mac(&self) -> [u8; 16] {
        self.mac
    }

    /// Computes all MACs.
    pub fn run(messages: &mut [CbcMac<'_>]) {
        for rounds in [0, 10, 14] {
            let mut of_kind = messages.iter_mut().filter(|message| message.rounds_in_lanes() == rounds);
            let (first, second) = (of_kind.next(), of_kind.next());
            match (first, second) {
                #[cfg(target_arch = "x86_64")]
                (Some(first), Some(second)) if rounds > 0 => side_by_side([first, second].into_iter().chain(of_kind)),
                (first, second) => first.into_iter().chain(second).chain(of_kind).for_each(CbcMac::run_alone),
            }
        }
    }

    /// Returns the number of rounds; 0 if the key's back-end has no lanes.
    fn rounds_in_lanes(&self) -> usize {
        match &self.key.cipher {
            BlockCipher::Portable(_) => 0,
            #[cfg(target_arch = "x86_64")]
            BlockCipher::X86(aes) => aes.rounds(),
        }
    }

    fn run_alone(&mut self) {
        self.mac = [0; 16];
        for part in self.parts {
            self.key.cipher.cbc_mac(&mut self.mac, part);
        }
    }
}

impl fmt::Debug for CbcMac<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CbcMac({} bytes)", self.parts.iter().map(|part| part.len()).sum::<usize>())
    }
}

/// A message in a lane, and its remaining parts.
#[cfg(target_arch = "x86_64")]
struct LaneMessage<'m, 'a> {
    message: &'m mut CbcMac<'a>,
    parts: [&'a [u8]; 3],
}

/// Computes MACs of keys with the same number of rounds. A lane that finishes its message takes the next one.
#[cfg(target_arch = "x86_64")]
fn side_by_side<'m, 'a: 'm>(mut waiting: impl Iterator<Item = &'m mut CbcMac<'a>>) {
    let mut lanes = MacLanes::boxed();
    let mut under_way: [Option<LaneMessage<'m, 'a>>; LANES] = [const { None }; LANES];
    loop {
        for (lane, place) in under_way.iter_mut().enumerate() {
            while place.as_ref().is_none_or(|message| message.next().is_empty()) {
                if let Some(ended) = place.take() {
                    ended.message.mac = lanes.mac(lane);
                }
                let Some(message) = waiting.next() else { break };
                if let BlockCipher::X86(aes) = &message.key.cipher {
                    aes.begin(&mut lanes, lane);
                }
                let parts = message.parts;
                *place = Some(LaneMessage { message, parts });
            }
        }
        let Some(blocks) = under_way.iter().flatten().map(|message| message.next().len() / 16).min() else { return };
        let Some(any) = under_way.iter().flatten().next() else { return };
        let BlockCipher::X86(aes) = &any.message.key.cipher else { return };
        // A lane without a message repeats another lane's blocks, and its result is discarded.
        let data = std::array::from_fn(|lane| under_way[lane].as_ref().unwrap_or(any).next());
        aes.advance_chains(&mut lanes, &data, blocks);
        under_way.iter_mut().flatten().for_each(|message| message.advance(16 * blocks));
    }
}

#[cfg(target_arch = "x86_64")]
impl<'a> LaneMessage<'_, 'a> {
    /// Returns the current part; empty if all parts are absorbed.
    fn next(&self) -> &'a [u8] {
        self.parts.into_iter().find(|part| !part.is_empty()).unwrap_or_default()
    }

    fn advance(&mut self, bytes: usize) {
        if let Some(part) = self.parts.iter_mut().find(|part| !part.is_empty()) {
            *part = &part[bytes..];
        }
    }
}
