//! 128-NIA1 (TS 35.215 4): the message's polynomial at one secret point, multiplied by another, and masked.

use crate::words::Words;

/// Computes the MAC from the generator's first five words.
#[inline(always)]
pub(crate) fn mac<W: Words>(proof: W::Proof, keystream: &[u8; 64], message: &[u8], bits: usize) -> [u8; 4] {
    let [p, q, mask, ..] = *keystream.as_chunks::<8>().0 else { unreachable!("64 bytes") };
    let [p, q] = [p, q].map(u64::from_be_bytes);

    let whole = bits / 64 * 8;
    let mut sum = W::absorb(proof, p, &message[..whole]);
    // An incomplete last block is padded with zeros.
    if !bits.is_multiple_of(64) {
        let mut last = [0; 8];
        let rest = &message[whole..bits.div_ceil(8)];
        last[..rest.len()].copy_from_slice(rest);
        sum = W::multiply(proof, sum ^ u64::from_be_bytes(last) & !(u64::MAX >> (bits % 64)), p);
    }
    let product = W::multiply(proof, sum ^ bits as u64, q);
    let mask = u64::from_be_bytes(mask);
    (((product ^ mask) >> 32) as u32).to_be_bytes()
}
