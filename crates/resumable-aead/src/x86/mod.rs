//! Shared parts of the x86-64 back-ends: instructions by width (`vector.rs`), AES (`aes.rs`), and the bytes of a kernel
//! call. GCM, CCM and XTS have their kernels in folders of their own and take the rest from here, so that unsafe AES
//! is written once.
//!
//! # Safety of this module
//!
//! The maker of a [`KernelSpan`] vouches for its pointers; here they only move forward within its length.
#![allow(unsafe_code)]

pub(crate) mod aes;
pub(crate) mod vector;

use crate::Backend;
use crate::piece::MessagePiece;

/// Tests whether this processor has the instructions that `backend` uses for AES and GHASH.
pub(crate) fn is_available(backend: Backend) -> bool {
    macro_rules! has {
        ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
    }
    let aes_ni = has!("aes" "pclmulqdq" "ssse3");
    let avx2 = aes_ni && has!("avx2" "vaes" "vpclmulqdq");
    match backend {
        Backend::AesNi => aes_ni,
        Backend::Avx2 => avx2,
        Backend::Avx512 => avx2 && has!("avx512f" "avx512bw" "avx512dq" "avx512vl"),
        _ => false,
    }
}

/// Source and destination of a kernel call.
#[derive(Clone, Copy)]
pub(crate) struct KernelSpan {
    pub(crate) source: *const u8,
    pub(crate) destination: *mut u8,
    pub(crate) len: usize,
}

impl KernelSpan {
    pub(crate) fn for_piece(piece: MessagePiece<'_>) -> KernelSpan {
        match piece {
            // Both ends have one pointer, because a shared one would be invalid after the first write.
            MessagePiece::InPlace(data) => {
                let destination = data.as_mut_ptr();
                KernelSpan { source: destination, destination, len: data.len() }
            }
            MessagePiece::Copy(source, destination) => {
                assert_eq!(source.len(), destination.len(), "pieces are checked when made");
                KernelSpan { source: source.as_ptr(), destination: destination.as_mut_ptr(), len: source.len() }
            }
        }
    }

    /// Returns the run without its first `count` bytes.
    ///
    /// # Safety
    /// The run has at least `count` bytes.
    #[inline(always)]
    pub(crate) unsafe fn skip(self, count: usize) -> KernelSpan {
        debug_assert!(count <= self.len);
        // SAFETY: both pointers stay within their allocation, or reach its end.
        unsafe {
            KernelSpan {
                source: self.source.add(count),
                destination: self.destination.add(count),
                len: self.len - count,
            }
        }
    }
}
