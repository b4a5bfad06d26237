//! Choices with the same names in options, tables and results.

use core::fmt;

/// A named choice out of a few.
///
/// ```
/// use offload_bench_tls::bulk::Mode;
/// use offload_bench_tls::choice::Choice;
///
/// assert_eq!(Mode::TlsNic.name(), "tls-nic");
/// assert_eq!(Mode::named("tls-cpu"), Some(Mode::TlsCpu));
/// assert_eq!(Mode::named("rot13"), None);
/// ```
pub trait Choice: Copy + fmt::Display + Send + Sync + 'static {
    /// Returns all choices, in the order of the help.
    fn all() -> &'static [Self];

    /// Returns the name in options, tables and results.
    fn name(self) -> &'static str;

    /// Returns the description for help.
    fn about(self) -> &'static str;

    /// Returns the choice with this name.
    fn named(name: &str) -> Option<Self> {
        Self::all().iter().copied().find(|choice| choice.name() == name)
    }
}

/// Defines an enum of named variants that implements [`Choice`](crate::choice::Choice): names and help texts are written once.
///
/// ```
/// use offload_bench_tls::choice::Choice;
///
/// offload_bench_tls::choices! {
///     /// The colour of a cable.
///     pub enum Colour {
///         /// Blue.
///         Blue = "blue",
///     }
/// }
/// assert_eq!(Colour::named("blue"), Some(Colour::Blue));
/// ```
#[macro_export]
macro_rules! choices {
    ($(#[$about:meta])* $visibility:vis enum $Type:ident { $($(#[doc = $doc:literal])+ $Variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $Type { $($(#[doc = $doc])+ $Variant,)+ }

        impl $Type {
            /// All choices.
            $visibility const ALL: [$Type; [$($name),+].len()] = [$($Type::$Variant),+];
        }

        impl $crate::choice::Choice for $Type {
            fn all() -> &'static [$Type] {
                &$Type::ALL
            }

            fn name(self) -> &'static str {
                match self { $($Type::$Variant => $name,)+ }
            }

            fn about(self) -> &'static str {
                match self { $($Type::$Variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }

        impl core::fmt::Display for $Type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad($crate::choice::Choice::name(*self))
            }
        }
    };
}
