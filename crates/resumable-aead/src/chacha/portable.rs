//! The ChaCha20 keystream in safe Rust, from RustCrypto.

use chacha20::cipher::{Block, KeyIvInit, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R20};
use zeroize::Zeroize;

use crate::NONCE_LEN;
use crate::gcm::xor;

// The core is used, because the stream cipher around it refuses the last of the 2^32 blocks.
type ChaChaBlocks = ChaChaCore<R20, Ietf>;

/// Returns one block of keystream.
pub(crate) fn keystream_block(key: &[u8; 32], nonce: &[u8; NONCE_LEN], counter: u32) -> [u8; 64] {
    let mut core = ChaChaBlocks::new(key.into(), nonce.into());
    core.set_block_pos(counter);
    let mut block = Block::<ChaChaBlocks>::default();
    core.write_keystream_block(&mut block);
    block.into()
}

/// XORs the keystream from message position `position` on.
pub(crate) fn apply_keystream(key: &[u8; 32], nonce: &[u8; NONCE_LEN], position: u64, data: &mut [u8]) {
    // RFC 8439 2.8: the message begins at block 1.
    let counter = (position / 64 + 1) as u32;
    let used = (position % 64) as usize;
    let mut core = ChaChaBlocks::new(key.into(), nonce.into());
    core.set_block_pos(counter);
    let mut keystream = Block::<ChaChaBlocks>::default();

    let (head, rest) = data.split_at_mut(data.len().min((64 - used) % 64));
    if !head.is_empty() {
        core.write_keystream_block(&mut keystream);
        xor(head, &keystream[used..]);
    }
    let (body, tail) = Block::<ChaChaBlocks>::slice_as_chunks_mut(rest);
    core.apply_keystream_blocks(body);
    if !tail.is_empty() {
        core.write_keystream_block(&mut keystream);
        xor(tail, &keystream);
    }
    keystream.zeroize();
}
