//! Rights of users by token: paths, expiry and rates. The file contains only the SHA-256 of each token.

use crate::digest::from_hexadecimal;
use crate::name::Name;
use crate::pace::{Pace, Rate};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::SystemTime;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// All tokens of a server.
///
/// ```
/// use offload_reservoir::tokens::{Right, Tokens};
/// use std::time::SystemTime;
///
/// let tokens = Tokens::read(r#"
///     [[token]]
///     name = "sorter"
///     sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" # printf test | sha256sum
///     path = "/incoming"
///     rights = ["write"]
///     rate = "2G"
///     expires = "2100-01-01T00:00:00Z"
/// "#)?;
/// let grant = tokens.find(b"test", SystemTime::now()).unwrap();
/// assert!(grant.may(Right::Write) && !grant.may(Right::Read));
/// assert!(tokens.find(b"guess", SystemTime::now()).is_none());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Default)]
pub struct Tokens(Vec<Arc<Grant>>);

/// The grant of a token.
///
/// See [`Tokens`] for an example.
#[derive(Debug)]
pub struct Grant {
    name: String,
    sha256: [u8; 32],
    path: Name,
    rights: Vec<Right>,
    expires: Option<SystemTime>,
    pace: Option<Arc<Pace>>,
}

/// A right.
///
/// See [`Tokens`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Reading files and listing folders.
    Read,
    /// Writing files.
    Write,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<TokenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    sha256: String,
    #[serde(default = "everything")]
    path: String,
    rights: Vec<Right>,
    rate: Option<String>,
    expires: Option<String>,
}

fn everything() -> String {
    "/".into()
}

impl Tokens {
    /// Parses a token file.
    ///
    /// # Errors
    /// A text for the user, with the name of the token.
    pub fn read(text: &str) -> Result<Tokens, String> {
        let file: TokenFile = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        if file.token.len() > MAX_TOKENS {
            return Err(format!("there are {} tokens; {MAX_TOKENS} are the most", file.token.len()));
        }
        file.token.into_iter().map(Grant::read).collect::<Result<_, String>>().map(Tokens)
    }

    /// Keeps the pacers of tokens in `before` with unchanged rates.
    #[must_use]
    pub fn after(self, before: &Tokens) -> Tokens {
        let kept = |grant: Arc<Grant>| {
            let old = before.0.iter().find(|old| old.sha256 == grant.sha256)?.pace.clone()?;
            // Requests in progress keep the old pacer, and two pacers would allow twice the rate.
            let same = grant.pace.as_ref().is_some_and(|pace| pace.rate() == old.rate());
            let Grant { name, sha256, path, rights, expires, .. } = &*grant;
            same.then(|| {
                let (name, path, rights) = (name.clone(), path.clone(), rights.clone());
                Arc::new(Grant { name, sha256: *sha256, path, rights, expires: *expires, pace: Some(old) })
            })
        };
        Tokens(self.0.into_iter().map(|grant| kept(grant.clone()).unwrap_or(grant)).collect())
    }

    /// Returns the grant of `token` at the time `now`. The time taken does not depend on the token.
    pub fn find(&self, token: &[u8], now: SystemTime) -> Option<&Arc<Grant>> {
        let shown: [u8; 32] = Sha256::digest(token).into();
        let (mut found, mut at) = (Choice::from(0), 0_u64);
        for (number, grant) in (0_u64..).zip(&self.0) {
            let same = grant.sha256.ct_eq(&shown);
            // No early exit, because the time must not tell the position of a match.
            at.conditional_assign(&number, same);
            found |= same;
        }
        let grant = bool::from(found).then(|| self.0.get(at as usize)).flatten()?;
        // The expiry is not secret, so this comparison need not take constant time.
        grant.expires.is_none_or(|expires| now < expires).then_some(grant)
    }
}

impl Grant {
    fn read(line: TokenEntry) -> Result<Arc<Grant>, String> {
        let about = |error: String| format!("token `{}`: {error}", line.name);
        let sha256 = from_hexadecimal(&line.sha256.to_ascii_lowercase()).and_then(|bytes| bytes.try_into().ok());
        let sha256 = sha256.ok_or_else(|| about("sha256 has 64 hexadecimal digits".into()))?;
        // `printf "$TOKEN" | sha256sum` with an unset variable gives this hash.
        if sha256 == <[u8; 32]>::from(Sha256::digest(b"")) {
            let text = "sha256 is that of an empty token: set the token before you compute its SHA-256";
            return Err(about(text.into()));
        }
        let path = Name::from_url(&line.path).map_err(|error| about(error.to_string()))?;
        let expires = line.expires.as_deref().map(humantime::parse_rfc3339).transpose();
        let expires = expires.map_err(|error| about(format!("expires: {error}: write 2027-01-31T00:00:00Z")))?;
        let rate: Option<Rate> = line.rate.as_deref().map(str::parse).transpose().map_err(about)?;
        let pace = rate.map(|rate| Arc::new(Pace::new(rate)));
        Ok(Arc::new(Grant { sha256, path, expires, pace, rights: line.rights, name: line.name }))
    }

    /// Returns a grant of all rights on all files, for tests and for closed networks.
    pub fn everything() -> Grant {
        let rights = vec![Right::Read, Right::Write];
        Grant { name: "-".into(), sha256: [0; 32], path: Name::root(), rights, expires: None, pace: None }
    }

    /// Returns the name of the token.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the grant includes a right.
    pub fn may(&self, right: Right) -> bool {
        self.rights.contains(&right)
    }

    /// Returns whether the grant covers a name.
    pub fn reaches(&self, name: &Name) -> bool {
        name.is_below(&self.path)
    }

    /// Returns the pacer shared by all requests with this token.
    pub fn pace(&self) -> Option<&Arc<Pace>> {
        self.pace.as_ref()
    }
}

/// Maximum number of tokens. Each request compares all of them.
const MAX_TOKENS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::hexadecimal;
    use core::time::Duration;

    fn line(name: &str, token: &str, more: &str) -> String {
        let sha256 = hexadecimal(&Sha256::digest(token));
        format!("[[token]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\nrights = [\"read\"]\n{more}\n")
    }

    #[test]
    fn each_token_opens_its_own_grant_until_it_expires() {
        let text = line("a", "one", "path = \"/a\"") + &line("b", "two", "expires = \"2030-01-01T00:00:00Z\"");
        let tokens = Tokens::read(&text).unwrap();
        let new_year = humantime::parse_rfc3339("2030-01-01T00:00:00Z").unwrap();
        let found = |token: &str, now| tokens.find(token.as_bytes(), now).map(|grant| grant.name().to_owned());
        let before = new_year - Duration::from_secs(1);
        assert_eq!((found("one", new_year), found("two", before)), (Some("a".into()), Some("b".into())));
        assert_eq!((found("two", new_year), found("three", before), found("", before)), (None, None, None));
        let grant = tokens.find(b"one", before).unwrap();
        let name = |url| Name::from_url(url).unwrap();
        assert!(grant.reaches(&name("/a/b")) && !grant.reaches(&name("/ab")) && !grant.reaches(&Name::root()));
    }

    #[test]
    fn a_bad_file_names_the_token() {
        for (bad, says) in [
            ("[[token]]\nname = \"x\"\nsha256 = \"12\"\nrights = []", "token `x`: sha256 has 64"),
            (&line("x", "", ""), "token `x`: sha256 is that of an empty token: set the token before"),
            (&line("x", "t", "expires = \"tomorrow\""), "token `x`: expires"),
            (&line("x", "t", "rate = \"fast\""), "token `x`: `fast` is no rate"),
            (&line("x", "t", "path = \"/../etc\""), "token `x`: `..` has a component"),
            (&line("x", "t", "colour = 1"), "colour"),
            ("token = 1", "token"),
        ] {
            let error = Tokens::read(bad).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_pace_goes_on_through_a_reload() {
        let read = |rate: &str| Tokens::read(&line("x", "t", &format!("rate = \"{rate}\""))).unwrap();
        let now = SystemTime::now();
        let pace = |tokens: &Tokens| tokens.find(b"t", now).unwrap().pace().unwrap().clone();
        let first = read("1G");
        let again = read("1G").after(&first);
        assert!(Arc::ptr_eq(&pace(&first), &pace(&again)));
        assert!(!Arc::ptr_eq(&pace(&first), &pace(&read("2G").after(&again))));
    }
}
