//! Tokens of a client. Each token belongs to one server, and is never sent to another server.

use crate::tls::Host;
use std::collections::{BTreeMap, BTreeSet};

/// A server as (host in lower case, port).
pub type ServerAddress = (String, u16);

/// The tokens of a client, each for one server.
///
/// ```
/// use offload_reservoir::credentials::ServerTokens;
///
/// let server = |host: &str, port| (host.to_owned(), port);
/// let tokens = ServerTokens::read("# HOST:PORT TOKEN\nstore.test:8443 secret\nother.test hidden\n")?;
/// let tokens = tokens.bind(&[server("store.test", 8443), server("public.test", 443)].into())?;
/// assert_eq!(tokens.get("Store.test", 8443), Some("secret"));
/// assert_eq!((tokens.get("store.test", 443), tokens.get("public.test", 443)), (None, None));
///
/// // A token without a host is for a copy that asks one server.
/// let lone = ServerTokens::read("secret")?;
/// assert!(lone.clone().bind(&[server("store.test", 8443), server("public.test", 443)].into()).is_err());
/// assert_eq!(lone.bind(&[server("store.test", 8443)].into())?.get("store.test", 8443), Some("secret"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Default)]
pub struct ServerTokens {
    tokens: BTreeMap<ServerAddress, String>,
    /// A token without a server.
    lone: Option<String>,
}

impl ServerTokens {
    /// Parses lines `HOST[:PORT] TOKEN`; the default port is 443. Empty lines and lines that begin with `#` are
    /// ignored. A text of a single word is a token without a server.
    ///
    /// # Errors
    /// A text for the user, without the token, if a line is malformed.
    pub fn read(text: &str) -> Result<ServerTokens, String> {
        let (mut tokens, mut lone) = (ServerTokens::default(), Vec::new());
        for (at, line) in text.lines().enumerate() {
            let wrong = |what: &str| format!("line {}: {what}: write `HOST:PORT TOKEN`", at + 1);
            let line = line.trim();
            let words: Vec<&str> = line.split_whitespace().filter(|_| !line.starts_with('#')).collect();
            let token = match words[..] {
                [] => continue,
                [token] => {
                    lone.push(token);
                    token
                }
                [host, token] => {
                    // The word may be a misplaced token, so the message does not show it.
                    let host: Host = host.parse().map_err(|_| wrong("the first word is no host"))?;
                    let server = (host.name().to_ascii_lowercase(), host.port().unwrap_or(443));
                    if tokens.tokens.insert(server, token.to_owned()).is_some() {
                        return Err(wrong("there is another token for this server"));
                    }
                    token
                }
                _ => return Err(wrong("there are more than two words")),
            };
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(wrong("the token has characters that HTTP does not carry"));
            }
        }
        match (lone[..].first(), tokens.tokens.is_empty() && lone.len() == 1) {
            (Some(token), true) => tokens.lone = Some((*token).to_owned()),
            // With several tokens, the server of a token without a host would be a guess.
            (Some(_), false) => {
                return Err("a token without its server is to stand alone: write `HOST:PORT TOKEN` in each line".into());
            }
            (None, _) => {}
        }
        Ok(tokens)
    }

    /// Assigns a token without a server to the only server in `servers`.
    ///
    /// # Errors
    /// A text for the user, if there are several servers, because the token would reach unrelated servers.
    pub fn bind(mut self, servers: &BTreeSet<ServerAddress>) -> Result<ServerTokens, String> {
        let Some(token) = &self.lone else { return Ok(self) };
        let mut all = servers.iter();
        match (all.next(), all.next()) {
            (Some(server), None) => {
                self.tokens.insert(server.clone(), token.clone());
            }
            (None, _) => {}
            (Some(_), Some(_)) => {
                let named: Vec<String> = servers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
                return Err(format!(
                    "the token names no server, and this copy asks several ({}): write lines `HOST:PORT TOKEN` into a file \
                     for --token-file; a server without a line is asked without a token",
                    named.join(", ")
                ));
            }
        }
        self.lone = None;
        Ok(self)
    }

    /// Returns the token for a server. `None` if requests to this server carry no token.
    pub fn get(&self, host: &str, port: u16) -> Option<&str> {
        self.tokens.get(&(host.to_ascii_lowercase(), port)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stay_with_their_server_and_out_of_errors() {
        let tokens = ServerTokens::read("\n# c\n[::1]:8443 one\r\nA.test two\n127.0.0.1:1 three").unwrap();
        for (host, port, token) in
            [("::1", 8443, Some("one")), ("a.TEST", 443, Some("two")), ("127.0.0.1", 2, None), ("b.a.test", 443, None)]
        {
            assert_eq!(tokens.get(host, port), token, "{host}");
        }
        for bad in [
            "a/b SECRET",
            "a.test SECRET x",
            "a.test SECRET\nSECRET",
            "SECRET\nSECRET",
            "a SECRET\na SECRET",
            "S\u{e9}CRET",
        ] {
            let told = ServerTokens::read(bad).err().unwrap();
            assert!(!told.contains("CRET"), "{told}");
        }
        let lone = ServerTokens::read(" SECRET\n").unwrap();
        assert_eq!(lone.get("a.test", 443), None, "it is for nobody yet");
        let servers = ["a.test", "b.test"].map(|host| (host.to_owned(), 443)).into();
        assert!(!lone.bind(&servers).err().unwrap().contains("SECRET"));
    }
}
