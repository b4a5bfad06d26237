//! AES in counter mode, and AES-CMAC.

use crate::aes_key::{ExpandedAesKey, with_aes};
use crate::pieces::OutputBuffer;
use crate::{Fault, TransformDirection};
use aes::cipher::{InnerIvInit, StreamCipher};
use bytes::Bytes;
use cmac::digest::common::InnerInit;
use cmac::{Cmac, Mac};
use ctr::{Ctr128BE, CtrCore};
use subtle::ConstantTimeEq;

/// Encrypts or decrypts, which is the same operation. The IV is the first counter block, incremented as a big-endian
/// number.
pub(crate) fn counter_mode(
    key: &ExpandedAesKey,
    iv: &[u8; 16],
    source: &[Bytes],
    room: &mut OutputBuffer<'_>,
) -> Result<(), Fault> {
    room.append_all(source)?;
    with_aes!(key, aes => {
        let counter = CtrCore::inner_iv_init((**aes).clone(), iv.into());
        Ctr128BE::from_core(counter).apply_keystream(room.result());
    });
    Ok(())
}

/// Appends the MAC to the message, or verifies and removes it.
pub(crate) fn cmac(
    key: &ExpandedAesKey,
    way: TransformDirection,
    source: &[Bytes],
    room: &mut OutputBuffer<'_>,
) -> Result<(), Fault> {
    room.append_all(source)?;
    match way {
        TransformDirection::Apply => {
            let tag = tag(key, room.result());
            room.append(&tag)
        }
        TransformDirection::Undo => {
            let found = room.written();
            let too_short = Fault::SourceLength { name: "AES-CMAC", found, takes: "a message and 16 bytes of MAC" };
            let (message, found) = room.result().split_last_chunk::<16>().ok_or(too_short)?;
            // Constant time: the position of the first difference would help to forge a MAC.
            if !bool::from(tag(key, message).ct_eq(found)) {
                return Err(Fault::NotAuthentic);
            }
            room.shorten(16);
            Ok(())
        }
    }
}

fn tag(key: &ExpandedAesKey, message: &[u8]) -> [u8; 16] {
    with_aes!(key, aes => Cmac::inner_init((**aes).clone()).chain_update(message).finalize().into_bytes().into())
}
