//! The parts that back-ends of x86-64 share, whatever the width of their registers.
//!
//! # Safety of the back-ends
//!
//! Every method is a few instructions on registers. A value is made only from a `Proof` or from other values of the type, and a
//! `Proof` only by `Proof::detect` where the processor has the instructions: so a holder of a value may use them. Loads and
//! stores are within arrays that are as long as what is loaded or stored. `#[inline(always)]` carries the methods into `run`, which
//! enables the instructions; a method that is not inlined is slow, not wrong.
//! For that reason there are no closures in a back-end: what is in one is compiled without the instructions.

/// The type of a back-end, the proof that the processor has its instructions, and the generators compiled with them.
macro_rules! backend {
    ($name:ident($register:ty), $($feature:tt)*) => {
        /// Words or blocks that fill a register.
        #[derive(Clone, Copy)]
        pub(crate) struct $name($register);

        /// The processor has the instructions.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Proof(());

        impl Proof {
            pub(crate) fn detect() -> Option<Proof> {
                ($(is_x86_feature_detected!($feature))&&*).then_some(Proof(()))
            }
        }

        /// At most [`Words::LANES`] messages.
        pub(crate) fn run(proof: Proof, stream: Stream, lanes: &mut [Lane<'_>]) {
            $(#[target_feature(enable = $feature)])*
            fn with_instructions(proof: Proof, stream: Stream, lanes: &mut [Lane<'_>]) {
                run::run::<$name>(proof, stream, lanes);
            }
            // SAFETY: the proof says so.
            unsafe { with_instructions(proof, stream, lanes) }
        }
    };
}

/// Wraps the bodies in `unsafe` blocks, all with the same argument.
macro_rules! methods {
    ($($(#[$attribute:meta])* fn $name:ident $(<const $bits:ident: $number:ty>)? ($($argument:ident: $type:ty),*) -> $result:ty { $($body:tt)* })*) => {$(
        $(#[$attribute])*
        #[inline(always)]
        fn $name $(<const $bits: $number>)? ($($argument: $type),*) -> $result {
            #[allow(unused_unsafe)] // some call only each other
            // SAFETY: a value or a proof was given, so the processor has the instructions; memory is touched only in arrays
            // that are as long as what is loaded or stored.
            unsafe { $($body)* }
        }
    )*};
}

/// The methods of [`Words`](super::Words) that are the same instructions at each width, by the names that the back-end imports them under.
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
            // With a count that is known, the compiler takes the instruction that has it inside.
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

/// The same for [`Wide`](super::Wide).
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
