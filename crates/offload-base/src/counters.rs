//! Counters under the names that hardware and Linux use.
//!
//! A component owns a plain struct of `u64` fields and increments them. A report reads the values by name.
//! [`CounterSet`] adds up many such structs in one sorted list.

use core::fmt;
use std::collections::BTreeMap;

/// Declares a struct of counters. Each field states the name under which its value is reported.
///
/// ```
/// offload_base::counters! {
///     /// Counters of a port.
///     pub struct PortCounters {
///         /// Frames sent.
///         pub frames: "tx_packets",
///         /// Bytes sent.
///         pub octets: "tx_bytes",
///     }
/// }
///
/// let port = PortCounters { frames: 2, ..Default::default() };
/// let mut set = offload_base::counters::CounterSet::default();
/// set.add(&port);
/// assert_eq!(set.value("tx_packets"), 2);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $reported:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $visibility struct $name {
            $($(#[$field_meta])* pub $field: u64,)*
        }

        impl core::ops::AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$field += other.$field;)*
            }
        }

        impl $crate::counters::Counters for $name {
            fn visit(&self, visitor: &mut dyn FnMut(&'static str, u64)) {
                $(visitor($reported, self.$field);)*
            }
        }
    };
}

/// A struct of named counters, declared by [`counters!`](crate::counters!).
///
/// ```
/// use offload_base::counters::Counters;
///
/// offload_base::counters! {
///     /// Counters of a port.
///     struct Port {
///         /// Frames.
///         pub frames: "tx_packets",
///     }
/// }
///
/// let mut seen = Vec::new();
/// Port { frames: 9 }.visit(&mut |name, value| seen.push((name, value)));
/// assert_eq!(seen, [("tx_packets", 9)]);
/// ```
pub trait Counters {
    /// Calls `visitor` with the reported name and the value of every counter, in the order of declaration.
    fn visit(&self, visitor: &mut dyn FnMut(&'static str, u64));
}

/// Counters of many components, added up by name.
///
/// See [`counters!`](crate::counters!) for an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSet {
    values: BTreeMap<&'static str, u64>,
}

impl CounterSet {
    /// Adds every counter of `counters` to the value under its name.
    pub fn add(&mut self, counters: &dyn Counters) {
        counters.visit(&mut |name, value| *self.values.entry(name).or_default() += value);
    }

    /// Adds every counter of another set.
    pub fn add_set(&mut self, other: &CounterSet) {
        other.iter().for_each(|(name, value)| *self.values.entry(name).or_default() += value);
    }

    /// Returns the value under `name`, or zero if no counter of that name was ever added.
    pub fn value(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// Returns the counters that are not zero, in the order of their names.
    pub fn moved(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.values.iter().map(|(name, value)| (*name, *value)).filter(|(_, value)| *value != 0)
    }

    /// Formats the counters called `names`, in that order, like a file under `/proc/net`: the name padded to 32
    /// columns, a tab, the value. A counter that was never added is zero.
    ///
    /// ```
    /// use offload_base::counters::CounterSet;
    ///
    /// let text = CounterSet::default().proc_net(&["TlsTxSw"]).to_string();
    /// assert_eq!(text, "TlsTxSw                         \t0\n");
    /// ```
    pub fn proc_net<'a>(&'a self, names: &'a [&'a str]) -> impl fmt::Display + 'a {
        FormattedCounters { set: self, names, padded: true }
    }

    /// Formats all counters with one of `prefixes`, like `ethtool -S`.
    ///
    /// ```
    /// use offload_base::counters::CounterSet;
    ///
    /// offload_base::counters! {
    ///     /// Counters of a port.
    ///     struct Port {
    ///         /// Frames.
    ///         pub frames: "tx_packets",
    ///         /// Contexts.
    ///         pub contexts: "tx_tls_ctx",
    ///     }
    /// }
    /// let mut set = CounterSet::default();
    /// set.add(&Port { frames: 9, contexts: 2 });
    /// assert_eq!(set.ethtool(&["tx_tls_", "rx_tls_"]).to_string(), "NIC statistics:\n     tx_tls_ctx: 2\n");
    /// ```
    pub fn ethtool<'a>(&'a self, prefixes: &'a [&'a str]) -> impl fmt::Display + 'a {
        FormattedCounters { set: self, names: prefixes, padded: false }
    }

    /// Returns all counters, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.values.iter().map(|(name, value)| (*name, *value))
    }
}

/// Counters as text, one per line.
struct FormattedCounters<'a> {
    set: &'a CounterSet,
    names: &'a [&'a str],
    /// Format: like `/proc/net`, selected by name, or else like `ethtool`, selected by prefix.
    padded: bool,
}

impl fmt::Display for FormattedCounters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.padded {
            // A file under `/proc/net` lists every counter, so names that were never counted are printed as zero.
            return self.names.iter().try_for_each(|name| writeln!(f, "{name:<32}\t{}", self.set.value(name)));
        }
        writeln!(f, "NIC statistics:")?;
        // `ethtool -S` also lists counters that are zero, so no counter is filtered out by its value.
        let mut named = self.set.iter().filter(|(name, _)| self.names.iter().any(|prefix| name.starts_with(prefix)));
        named.try_for_each(|(name, value)| writeln!(f, "     {name}: {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// For the test.
        struct PairCounters {
            /// One.
            pub one: "one",
            /// Two.
            pub two: "two",
        }
    }

    #[test]
    fn sets_add_counters_and_omit_zeros() {
        let mut set = CounterSet::default();
        set.add(&PairCounters { one: 1, two: 0 });
        set.add(&PairCounters { one: 4, two: 0 });
        assert_eq!(set.moved().collect::<Vec<_>>(), [("one", 5)]);
        assert_eq!(set.iter().count(), 2);
        assert_eq!(set.value("three"), 0);
    }
}
