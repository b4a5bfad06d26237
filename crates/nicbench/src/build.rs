//! The build of a program that made results: its source, its compiler, and how it was compiled.

use core::fmt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A build. Rows of different builds are comparable only with care, even if both are of one commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct Build {
    /// The commit of the source. Empty if it is unknown.
    pub(crate) commit: String,
    /// Whether files differed from that commit.
    pub(crate) dirty: bool,
    /// The compiler, as it names itself.
    pub(crate) rustc: String,
    /// The target of the compiler.
    pub(crate) target: String,
    /// The profile: `release`, `debug`.
    pub(crate) profile: String,
    /// The features of this crate.
    pub(crate) features: Vec<String>,
}

impl Build {
    /// Returns the build of this program.
    pub(crate) fn this() -> Build {
        let features = env!("NICBENCH_FEATURES").split(',').filter(|feature| !feature.is_empty());
        Build {
            commit: env!("NICBENCH_COMMIT").into(),
            dirty: env!("NICBENCH_DIRTY") == "true",
            rustc: env!("NICBENCH_RUSTC").into(),
            target: env!("NICBENCH_TARGET").into(),
            profile: env!("NICBENCH_PROFILE").into(),
            features: features.map(String::from).collect(),
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = if self.commit.is_empty() { "unknown commit" } else { &self.commit };
        let changed = if self.dirty { " with changes" } else { "" };
        write!(f, "{commit}{changed}")?;
        for part in [&self.rustc, &self.profile, &self.target].into_iter().filter(|part| !part.is_empty()) {
            write!(f, ", {part}")?;
        }
        if !self.features.is_empty() {
            write!(f, ", features {}", self.features.join(" "))?;
        }
        Ok(())
    }
}

/// Returns the sentence that warns of several builds. `None` if there are fewer than two.
pub(crate) fn warning<'a>(builds: impl IntoIterator<Item = &'a Build>) -> Option<String> {
    let builds: BTreeSet<&Build> = builds.into_iter().collect();
    let named: Vec<String> = builds.iter().map(|build| build.to_string()).collect();
    (named.len() > 1)
        .then(|| format!("these runs are of {} builds, so compare them with care: {}", named.len(), named.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_differ_by_any_of_their_parts() {
        let this = Build::this();
        assert!(!this.rustc.is_empty() && !this.profile.is_empty() && !this.target.is_empty(), "{this:?}");
        assert_eq!(warning([&this, &this]), None);
        for other in [
            Build { commit: "0123".into(), ..this.clone() },
            Build { dirty: !this.dirty, ..this.clone() },
            Build { features: vec!["x".into()], ..this.clone() },
        ] {
            let told = warning([&this, &other]).unwrap();
            assert!(told.contains("of 2 builds") && told.contains(&other.to_string()), "{told}");
        }
    }
}
