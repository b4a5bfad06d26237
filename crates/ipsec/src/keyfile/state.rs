//! Parses statements about SAs (RFC 4301 4.4.2).

use super::value::{self, number, once};
use super::words::{StatementWords, printable};
use super::{KeyFileError, KeyFileProblem, SaIdentity, Statement};
use core::net::IpAddr;
use core::time::Duration;
use offload_api::{
    Direction, DontFragment, EspKey, EspSuite, Lifetime, Limits, OffloadKind, SaParams, UdpEncapsulation,
};

/// Parses `state add` after these words.
pub(super) fn add(mut words: StatementWords) -> Result<Statement, KeyFileError> {
    let (mut id, mut key) = (SaIdentityWords::default(), None);
    let mut settings: Vec<ParamChange> = Vec::new();
    let (mut high, mut low) = (0u32, 0u32);
    while let Some(word) = words.take() {
        match &word[..] {
            "aead" => once(&mut words, &word, &mut key, aead)?,
            "replay-seq" | "replay-oseq" => low = words.value("a sequence number", number)?,
            "replay-seq-hi" | "replay-oseq-hi" => high = words.value("a number", number)?,
            "offload" => {
                settings.push(offload(&mut words)?);
                if words.peek() == Some("dir") {
                    words.take();
                    id.direction = Some(value::direction(&mut words)?);
                }
            }
            _ if id.takes(&word, &mut words)? => {}
            _ => settings.push(setting(&word, &mut words)?),
        }
    }
    let name = id.name(&words)?;
    let key = key.ok_or_else(|| words.error(KeyFileProblem::Missing("aead")))?;
    // The direction is provisional; applying the file replaces it by the local addresses if the file gives none.
    let direction = name.direction.unwrap_or(Direction::Transmit);
    // Settings are applied at the end, because an SA's parameters need its key, which may be the last word.
    let params = SaParams::new(direction, name.spi, name.source, name.destination, key);
    let mut params = settings.into_iter().fold(params, |params, set| set(params));
    params.last_number = u64::from(low) | u64::from(high) << 32;
    if high > 0 && !params.esn {
        return Err(words.error(KeyFileProblem::Mismatch("the upper half of a sequence number without `flag esn`")));
    }
    Ok(Statement::Add { params, directed: name.direction.is_some() })
}

/// Parses `state update` after these words: a new lifetime and no other parameter.
pub(super) fn update(mut words: StatementWords) -> Result<Statement, KeyFileError> {
    let (mut id, mut lifetime) = (SaIdentityWords::default(), None);
    while let Some(word) = words.take() {
        match &word[..] {
            "limit" => limit(&mut words)?(lifetime.get_or_insert_default()),
            _ if id.takes(&word, &mut words)? => {}
            _ => return Err(words.error(KeyFileProblem::Unknown(printable(&word)))),
        }
    }
    let name = id.name(&words)?;
    // A missing limit is an error and does not mean "no limits": the author may have forgotten it. `INF` removes a
    // limit.
    let lifetime = lifetime.ok_or_else(|| words.error(KeyFileProblem::Missing("limit")))?;
    Ok(Statement::Update { name, lifetime })
}

/// Parses `state rekey` after these words.
pub(super) fn rekey(mut words: StatementWords) -> Result<Statement, KeyFileError> {
    let (mut id, mut key, mut successor) = (SaIdentityWords::default(), None, None);
    while let Some(word) = words.take() {
        match &word[..] {
            "aead" => once(&mut words, &word, &mut key, aead)?,
            "new-spi" => once(&mut words, &word, &mut successor, value::spi)?,
            _ if id.takes(&word, &mut words)? => {}
            _ => return Err(words.error(KeyFileProblem::Unknown(printable(&word)))),
        }
    }
    let name = id.name(&words)?;
    let spi = successor.ok_or_else(|| words.error(KeyFileProblem::Missing("new-spi")))?;
    let key = key.ok_or_else(|| words.error(KeyFileProblem::Missing("aead")))?;
    Ok(Statement::Rekey { name, spi, key })
}

/// Parses `state delete` after these words.
pub(super) fn delete(mut words: StatementWords) -> Result<Statement, KeyFileError> {
    let mut id = SaIdentityWords::default();
    while let Some(word) = words.take() {
        if !id.takes(&word, &mut words)? {
            return Err(words.error(KeyFileProblem::Unknown(printable(&word))));
        }
    }
    Ok(Statement::Delete(id.name(&words)?))
}

/// The words that identify an SA.
#[derive(Default)]
struct SaIdentityWords {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    spi: Option<u32>,
    direction: Option<Direction>,
    esp: bool,
}

impl SaIdentityWords {
    /// Parses the value of `word` if the word is part of the identity. Returns whether it is.
    fn takes(&mut self, word: &str, words: &mut StatementWords) -> Result<bool, KeyFileError> {
        match word {
            "src" => once(words, word, &mut self.source, value::address)?,
            "dst" => once(words, word, &mut self.destination, value::address)?,
            "spi" => once(words, word, &mut self.spi, value::spi)?,
            "dir" => once(words, word, &mut self.direction, value::direction)?,
            "proto" => {
                words.value("a protocol that is known here; there is esp", |word| (word == "esp").then_some(()))?;
                self.esp = true;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn name(self, words: &StatementWords) -> Result<SaIdentity, KeyFileError> {
        let missing = |what| move || words.error(KeyFileProblem::Missing(what));
        if !self.esp {
            return Err(missing("proto esp")());
        }
        Ok(SaIdentity {
            source: self.source.ok_or_else(missing("src"))?,
            destination: self.destination.ok_or_else(missing("dst"))?,
            spi: self.spi.ok_or_else(missing("spi"))?,
            direction: self.direction,
        })
    }
}

/// A change of an SA's parameters, applied when all words are read.
type ParamChange = Box<dyn FnOnce(SaParams) -> SaParams>;

/// Parses an optional parameter of an SA, which `word` begins.
fn setting(word: &str, words: &mut StatementWords) -> Result<ParamChange, KeyFileError> {
    Ok(match word {
        "reqid" => {
            let reqid = words.value("a number", number)?;
            Box::new(move |sa| SaParams { reqid, ..sa })
        }
        "mode" => {
            let mode = value::mode(words)?;
            Box::new(move |sa| SaParams { mode, ..sa })
        }
        "replay-window" => {
            let replay_window = words.value("a number of packets", number)?;
            Box::new(move |sa| SaParams { replay_window, ..sa })
        }
        "encap" => {
            let encapsulation = Some(encapsulation(words)?);
            Box::new(move |sa| SaParams { encapsulation, ..sa })
        }
        "nat-keepalive-interval" => {
            let seconds = words.value("a number of seconds", number)?;
            let keep_alive = Some(Duration::from_secs(seconds.into()));
            Box::new(move |sa| SaParams { keep_alive, ..sa })
        }
        // An inner `None` copies the inner DSCP; DSCP values have six bits.
        "dscp" => {
            let dscp = words.value("copy, or a number below 64", |word| match word {
                "copy" => Some(None),
                _ => number(word).and_then(|dscp| u8::try_from(dscp).ok()).filter(|dscp| *dscp < 64).map(Some),
            })?;
            Box::new(move |sa| SaParams { dscp, ..sa })
        }
        "df" => {
            let dont_fragment = words.value("copy, set or clear", |word| match word {
                "copy" => Some(DontFragment::Copy),
                "set" => Some(DontFragment::Set),
                "clear" => Some(DontFragment::Clear),
                _ => None,
            })?;
            Box::new(move |sa| SaParams { dont_fragment, ..sa })
        }
        "flag" => flags(words)?,
        // Linux's name for an outer DSCP of 0.
        "extra-flag" => {
            words.value("an extra-flag that is known here; there is dont-encap-dscp", |word| {
                (word == "dont-encap-dscp").then_some(())
            })?;
            Box::new(|sa| SaParams { dscp: Some(0), ..sa })
        }
        "limit" => {
            let set = limit(words)?;
            Box::new(move |mut sa| {
                set(&mut sa.lifetime);
                sa
            })
        }
        _ => return Err(words.error(KeyFileProblem::Unknown(printable(word)))),
    })
}

fn offload(words: &mut StatementWords) -> Result<ParamChange, KeyFileError> {
    let offload = words.value("crypto or packet", |word| match word {
        "crypto" => Some(OffloadKind::Crypto),
        "packet" => Some(OffloadKind::Packet),
        _ => None,
    })?;
    Ok(Box::new(move |sa| SaParams { offload, ..sa }))
}

fn aead(words: &mut StatementWords) -> Result<EspKey, KeyFileError> {
    let name = words.expect("an algorithm")?;
    // The last four bytes of the key material are the salt.
    let (suites, expected): (&[EspSuite], _) = match &name[..] {
        "rfc4106(gcm(aes))" => (&[EspSuite::Aes128Gcm, EspSuite::Aes256Gcm], "20 or 36"),
        "rfc4543(gcm(aes))" => (&[EspSuite::Aes128Gmac, EspSuite::Aes256Gmac], "20 or 36"),
        "rfc7539esp(chacha20,poly1305)" => (&[EspSuite::ChaCha20Poly1305], "36"),
        _ => return Err(words.error(KeyFileProblem::Unknown(printable(&name)))),
    };
    let material = words.secret("a key in hexadecimal digits, two for each byte behind 0x", value::hexadecimal)?;
    // The word may be the rest of a key with a blank in it, so an error must not show it.
    words.secret("128, the bits of the ICV", |word| (word == "128").then_some(()))?;
    let key = suites.iter().find_map(|suite| EspKey::new(*suite, &material));
    key.ok_or_else(|| words.error(KeyFileProblem::KeyLength { found: material.len(), expected }))
}

/// Parses Linux's flags that affect the wire or the stack. As in Linux, `noecn` clears ECN when a packet enters a
/// tunnel and keeps it unchanged when a packet leaves.
fn flags(words: &mut StatementWords) -> Result<ParamChange, KeyFileError> {
    let mut flags: Vec<fn(SaParams) -> SaParams> = Vec::new();
    while let Some(flag) = words.peek() {
        flags.push(match flag {
            "esn" => |sa| SaParams { esn: true, ..sa },
            "noecn" => |sa| SaParams { ecn: false, ..sa },
            "decap-dscp" => |sa| SaParams { dscp_out: true, ..sa },
            "nopmtudisc" => |sa| SaParams { dont_fragment: DontFragment::Clear, ..sa },
            "af-unspec" => |sa| sa,
            _ => break,
        });
        words.take();
    }
    if flags.is_empty() {
        return words.value("a flag that is known here: esn, noecn, decap-dscp, nopmtudisc, af-unspec", |_| None);
    }
    Ok(Box::new(move |sa| flags.into_iter().fold(sa, |sa, set| set(sa))))
}

fn encapsulation(words: &mut StatementWords) -> Result<UdpEncapsulation, KeyFileError> {
    words.value("espinudp", |word| (word == "espinudp").then_some(()))?;
    let source_port = value::port(words)?;
    let destination_port = value::port(words)?;
    words.value("an original address", |word| word.parse::<IpAddr>().ok())?;
    Ok(UdpEncapsulation { source_port, destination_port })
}

fn limit(words: &mut StatementWords) -> Result<impl FnOnce(&mut Lifetime) + use<>, KeyFileError> {
    let name = words.expect("the name of a limit")?;
    let (what, soft) = match name.split_once('-') {
        Some((what @ ("byte" | "packet" | "time"), end @ ("soft" | "hard"))) => (what, end == "soft"),
        _ => return Err(words.error(KeyFileProblem::Unknown(printable(&name)))),
    };
    // Linux uses the highest number for "no limit".
    let value =
        words.value("a number", |word| if word == "INF" { Some(u64::MAX) } else { word.parse::<u64>().ok() })?;
    let value = Some(value).filter(|value| *value != u64::MAX);
    let set: fn(&mut Limits, Option<u64>) = match what {
        "byte" => |limits, value| limits.bytes = value,
        "packet" => |limits, value| limits.packets = value,
        _ => |limits, value| limits.time = value.map(Duration::from_secs),
    };
    Ok(move |lifetime: &mut Lifetime| set(if soft { &mut lifetime.soft } else { &mut lifetime.hard }, value))
}
