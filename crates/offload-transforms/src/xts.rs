//! AES-XTS (IEEE 1619, NIST SP 800-38E) for stored data, in units with a tweak each.

use crate::pieces::OutputBuffer;
use crate::{Fault, Parameters, SecretBytes, SpecError, TransformDirection};
use bytes::Bytes;
use resumable_aead::{DataUnits, NotWholeUnits, XtsKey, XtsKeyError};

/// The increment of the tweak from unit to unit. The IV is the tweak of the first unit, a little-endian number.
///
/// ```
/// use offload_transforms::Tweak;
///
/// assert_eq!(Tweak::Unit.step(4096), 1);
/// assert_eq!(Tweak::Sectors512.step(4096), 8);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tweak {
    /// One per unit, as for an LBA, or for dm-crypt's `plain64` with sectors of 512 bytes or with `--iv-large-sectors`.
    #[default]
    Unit,
    /// One per 512 bytes of the unit, as for dm-crypt's `plain64` with larger sectors.
    Sectors512,
}

impl Tweak {
    /// Returns the increment for units of `unit` bytes.
    pub const fn step(self, unit: u32) -> u128 {
        match self {
            Tweak::Unit => 1,
            Tweak::Sectors512 => (unit / 512) as u128,
        }
    }
}

/// The two expanded keys, with the size of the units.
pub(crate) struct XtsUnits {
    key: XtsKey,
    unit: u32,
    /// Increment of the tweak.
    step: u64,
    /// Fast path for units of whole blocks, which the cipher processes many at a time. `None` for other units.
    whole: Option<DataUnits>,
}

impl XtsUnits {
    pub(crate) fn new(key: &SecretBytes, unit: u32, tweak: Tweak) -> Result<XtsUnits, SpecError> {
        let found = key.bytes().len();
        if !(16..=MAX_UNIT_BYTES).contains(&unit) {
            return Err(SpecError::Unit { name: "AES-XTS", found: unit, takes: "16 to 1,048,576" });
        }
        if tweak == Tweak::Sectors512 && !unit.is_multiple_of(512) {
            return Err(SpecError::Unit { name: "AES-XTS", found: unit, takes: "a multiple of 512" });
        }
        let key = XtsKey::new(key.bytes()).map_err(|error| match error {
            XtsKeyError::EqualHalves => SpecError::EqualHalves,
            _ => SpecError::KeyLength { name: "AES-XTS", found, takes: "32 or 64" },
        })?;
        let whole = match tweak {
            Tweak::Unit => DataUnits::new(unit as usize),
            Tweak::Sectors512 => DataUnits::counting_512(unit as usize),
        };
        Ok(XtsUnits { key, unit, step: tweak.step(unit) as u64, whole: whole.ok() })
    }

    pub(crate) fn run(
        &self,
        way: TransformDirection,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut OutputBuffer<'_>,
    ) -> Result<(), Fault> {
        room.append_all(source)?;
        let (found, unit) = (room.written(), self.unit as usize);
        let length = |takes| Fault::SourceLength { name: "AES-XTS", found, takes };
        if !found.is_multiple_of(unit) {
            return Err(length("whole units"));
        }
        let first = u128::from_le_bytes(with.iv);
        // The fast path fails, before it changes anything, if the numbers exceed 64 bits on the way.
        if let (Some(units), Ok(first)) = (self.whole, u64::try_from(first)) {
            let done = match way {
                TransformDirection::Apply => self.key.encrypt(units, first, room.result()),
                TransformDirection::Undo => self.key.decrypt(units, first, room.result()),
            };
            if done.is_ok() {
                return Ok(());
            }
        }
        // The slow path: units that end with a partial block, or tweaks beyond 64 bits.
        let mut number = first;
        for unit in room.result().chunks_exact_mut(unit) {
            let done = match way {
                TransformDirection::Apply => self.encrypt(number, unit),
                TransformDirection::Undo => self.decrypt(number, unit),
            };
            done.map_err(|_| length("units of at most 2^20 blocks"))?;
            number = number.wrapping_add(self.step.into());
        }
        Ok(())
    }

    fn encrypt(&self, number: u128, unit: &mut [u8]) -> Result<(), NotWholeUnits> {
        let (blocks, rest) = (unit.len() / 16, unit.len() % 16);
        // The partial block reuses the last full block's ciphertext, so the full blocks come first.
        self.key.encrypt_blocks(number, 0, &mut unit[..16 * blocks])?;
        if rest > 0 {
            // Ciphertext stealing: the partial block takes the first bytes of the last full block's ciphertext, and the
            // rest of that block pads it.
            let last = &mut unit[16 * (blocks - 1)..];
            exchange(last);
            self.key.encrypt_blocks(number, blocks as u32, &mut last[..16])?;
        }
        Ok(())
    }

    fn decrypt(&self, number: u128, unit: &mut [u8]) -> Result<(), NotWholeUnits> {
        let (blocks, rest) = (unit.len() / 16, unit.len() % 16);
        if rest == 0 {
            return self.key.decrypt_blocks(number, 0, unit);
        }
        let before = blocks - 1;
        self.key.decrypt_blocks(number, 0, &mut unit[..16 * before])?;
        // Encryption processed the last full block last, with the tweak after its own, so decryption starts with it.
        let last = &mut unit[16 * before..];
        self.key.decrypt_blocks(number, blocks as u32, &mut last[..16])?;
        exchange(last);
        self.key.decrypt_blocks(number, before as u32, &mut last[..16])
    }
}

/// Swaps the partial block with the first bytes of the block before.
fn exchange(block_and_part: &mut [u8]) {
    let (block, part) = block_and_part.split_at_mut(16);
    block[..part.len()].swap_with_slice(part);
}

/// Maximum size of a unit in bytes.
const MAX_UNIT_BYTES: u32 = 1 << 20;
