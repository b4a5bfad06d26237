//! The common parts of the x86-64 back-ends, for any register width.
//!
//! # Safety of the back-ends
//!
//! Every method is a few instructions on registers. A value is made only from a `Proof` or from other values of the
//! type. A `Proof` is made only by `Proof::detect`, where the processor has the instructions. So the holder of a value
//! may use them. Loads and stores stay within arrays of the same size.
//!
//! `#[inline(always)]` carries the methods into `run`, which enables the instructions. A method that is not inlined is
//! slow, not wrong. A back-end has no closures for this reason: the body of a closure is compiled without the
//! instructions.

/// The type of a back-end, the proof that the processor has its instructions, and the generators compiled with them.
macro_rules! backend {
    ($name:ident($register:ty), $($feature:tt)*) => {
        /// A register full of words or blocks.
        #[derive(Clone, Copy)]
        pub(crate) struct $name($register);

        /// Proof that the processor has the instructions.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Proof(());

        impl Proof {
            pub(crate) fn detect() -> Option<Proof> {
                ($(is_x86_feature_detected!($feature))&&*).then_some(Proof(()))
            }
        }

        /// Runs at most [`Words::LANES`] messages.
        pub(crate) fn run(proof: Proof, stream: GeneratorKind, lanes: &mut [Lane<'_>]) {
            $(#[target_feature(enable = $feature)])*
            fn with_instructions(proof: Proof, stream: GeneratorKind, lanes: &mut [Lane<'_>]) {
                run::run::<$name>(proof, stream, lanes);
            }
            // SAFETY: the proof shows that the processor has the instructions.
            unsafe { with_instructions(proof, stream, lanes) }
        }
    };
}

/// Wraps the bodies in `unsafe` blocks, with one safety argument for all.
macro_rules! methods {
    ($($(#[$attribute:meta])* fn $name:ident $(<const $bits:ident: $number:ty>)? ($($argument:ident: $type:ty),*) -> $result:ty { $($body:tt)* })*) => {$(
        $(#[$attribute])*
        #[inline(always)]
        fn $name $(<const $bits: $number>)? ($($argument: $type),*) -> $result {
            #[allow(unused_unsafe)] // some call only each other
            // SAFETY: the caller passed a value or a proof, so the processor has the instructions. Memory is accessed
            // only in arrays of the size of the load or store.
            unsafe { $($body)* }
        }
    )*};
}

/// The methods of [`Words`](super::Words) that have the same instructions at each width, by their imported names.
macro_rules! words_of_any_width {
    ($name:ident, $lanes:literal) => {
        const LANES: usize = $lanes;
        type Proof = Proof;
        type Wide = Self;

        methods! {
            fn splat(_proof: Proof, word: u32) -> Self { $name(set_32(word as i32)) }
            fn load(_proof: Proof, words: &[u32; 16]) -> Self { $name(load(words.as_ptr().cast())) }
            fn xor(self: Self, other: Self) -> Self { $name(xor(self.0, other.0)) }
            fn add(self: Self, other: Self) -> Self { $name(add_32(self.0, other.0)) }
            // The compiler selects the shift with an immediate count, because the count is constant.
            fn shift_left<const BITS: u32>(self: Self) -> Self { $name(left_32(self.0, set_32(BITS as i32))) }
            fn shift_right<const BITS: u32>(self: Self) -> Self { $name(right_32(self.0, set_32(BITS as i32))) }
            fn add_31(self: Self, other: Self) -> Self {
                let sum = add_32(self.0, other.0);
                $name(min_32(sum, sub_32(sum, set_32(0x7fff_ffff))))
            }
            fn add_31_cell(self: Self, other: Self) -> Self {
                let sum = add_32(self.0, other.0);
                $name(add_32(and(sum, set_32(0x7fff_ffff)), right_32(sum, set_32(31))))
            }
            fn windows(_proof: Proof, previous: u32, block: &Block, message: &[u8; 64]) -> u32 {
                clmul::windows(previous, block, message)
            }
            fn absorb(_proof: Proof, p: u64, blocks: &[u8]) -> u64 { absorb(p, blocks) }
            fn multiply(_proof: Proof, a: u64, b: u64) -> u64 { clmul::multiply(a, b) }
        }
    };
}

/// The methods of [`Wide`](super::Wide) that have the same instructions at each width.
macro_rules! blocks_of_any_width {
    ($name:ident, $lanes:literal) => {
        const LANES: usize = $lanes;
        type Proof = Proof;

        methods! {
            fn load(_proof: Proof, blocks: &[u128; 4]) -> Self { $name(load(blocks.as_ptr().cast())) }
            fn xor(self: Self, other: Self) -> Self { $name(xor(self.0, other.0)) }
            fn add_16(self: Self, other: Self) -> Self { $name(add_16(self.0, other.0)) }
            fn cells_from_7(self: Self, next: Self) -> Self { $name(join_bytes::<14>(next.0, self.0)) }
        }
    };
}
