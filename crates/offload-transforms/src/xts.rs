//! AES-XTS (IEEE 1619, NIST SP 800-38E): data at rest in units, each under a tweak of its own.

use crate::pieces::Room;
use crate::{Fault, Parameters, Secret, SpecError, Way};
use bytes::Bytes;
use resumable_aead::{DataUnits, NotWholeUnits, XtsKey, XtsKeyError};

/// How the tweak counts from one unit to the next. The IV is the tweak of the first, a little-endian number.
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
    /// By one a unit: the LBA; dm-crypt's `plain64` with sectors of 512 bytes, or with `--iv-large-sectors`.
    #[default]
    Unit,
    /// By the 512-byte sectors in a unit: dm-crypt's `plain64` with larger sectors.
    Sectors512,
}

impl Tweak {
    /// What is added from one unit of so many bytes to the next.
    pub const fn step(self, unit: u32) -> u128 {
        match self {
            Tweak::Unit => 1,
            Tweak::Sectors512 => (unit / 512) as u128,
        }
    }
}

/// The two keys, expanded, and the units they are for.
pub(crate) struct Xts {
    key: XtsKey,
    unit: u32,
    /// From one unit's number to the next.
    step: u64,
    /// For units of whole blocks, which the cipher takes many at a time.
    whole: Option<DataUnits>,
}

impl Xts {
    pub(crate) fn new(key: &Secret, unit: u32, tweak: Tweak) -> Result<Xts, SpecError> {
        let found = key.bytes().len();
        if !(16..=MOST).contains(&unit) {
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
        Ok(Xts { key, unit, step: tweak.step(unit) as u64, whole: whole.ok() })
    }

    pub(crate) fn run(
        &self,
        way: Way,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut Room<'_>,
    ) -> Result<(), Fault> {
        room.append_all(source)?;
        let (found, unit) = (room.written(), self.unit as usize);
        let length = |takes| Fault::SourceLength { name: "AES-XTS", found, takes };
        if !found.is_multiple_of(unit) {
            return Err(length("whole units"));
        }
        let first = u128::from_le_bytes(with.iv);
        if let (Some(units), Ok(first)) = (self.whole, u64::try_from(first)) {
            let done = match way {
                Way::Apply => self.key.encrypt(units, first, room.result()),
                Way::Undo => self.key.decrypt(units, first, room.result()),
            };
            if done.is_ok() {
                return Ok(());
            }
        }
        // Units with a part of a block at their end, or with numbers beyond 64 bits.
        let mut number = first;
        for unit in room.result().chunks_exact_mut(unit) {
            let done = match way {
                Way::Apply => self.encrypt(number, unit),
                Way::Undo => self.decrypt(number, unit),
            };
            done.map_err(|_| length("units of at most 2^20 blocks"))?;
            number = number.wrapping_add(self.step.into());
        }
        Ok(())
    }

    fn encrypt(&self, number: u128, unit: &mut [u8]) -> Result<(), NotWholeUnits> {
        let (blocks, rest) = (unit.len() / 16, unit.len() % 16);
        self.key.encrypt_blocks(number, 0, &mut unit[..16 * blocks])?;
        if rest > 0 {
            // Ciphertext stealing: the last part takes the place of the last block's first bytes, and is padded with its last.
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
        // The block before the last part was encrypted last.
        let last = &mut unit[16 * before..];
        self.key.decrypt_blocks(number, blocks as u32, &mut last[..16])?;
        exchange(last);
        self.key.decrypt_blocks(number, before as u32, &mut last[..16])
    }
}

/// Exchanges the last part with the first bytes of the block before it.
fn exchange(block_and_part: &mut [u8]) {
    let (block, part) = block_and_part.split_at_mut(16);
    block[..part.len()].swap_with_slice(part);
}

/// Bytes of the largest unit.
const MOST: u32 = 1 << 20;
