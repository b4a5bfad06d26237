//! Statements to SAs and policies.

use super::words::{Words, shown};
use super::{KeyFile, KeyFileError, Problem, State};
use core::net::IpAddr;
use core::time::Duration;
use offload_api::{
    Action, Direction, DontFragment, EspKey, EspMode, EspSuite, Limits, OffloadKind, Policy, Prefix, SaParams,
    Selector, Template, UdpEncapsulation,
};

/// Reads a statement into `file`.
pub(super) fn read(mut words: Words, file: &mut KeyFile) -> Result<(), KeyFileError> {
    let line = words.line;
    let mut first = words.expect("state or policy")?;
    if first == "ip" {
        let xfrm = words.expect("xfrm")?;
        if xfrm != "xfrm" {
            return Err(words.error(Problem::Expected { found: shown(&xfrm), expected: "xfrm" }));
        }
        first = words.expect("state or policy")?;
    }
    let second = words.expect("add or setdefault")?;
    match (&first[..], &second[..]) {
        ("state", "add") => file.states.push(state(words, line)?),
        ("policy", "add") => {
            if let Some(policy) = policy(words)? {
                file.policies.push((line, policy));
            }
        }
        ("policy", "setdefault") => defaults(words, file)?,
        ("state" | "policy", _) => return Err(words.error(Problem::Unknown(shown(&second)))),
        _ => return Err(words.error(Problem::Expected { found: shown(&first), expected: "state or policy" })),
    }
    Ok(())
}

fn state(mut words: Words, line: usize) -> Result<State, KeyFileError> {
    let (mut source, mut destination, mut spi, mut key) = (None, None, None, None);
    let (mut esp, mut direction) = (false, None);
    let mut settings: Vec<Setting> = Vec::new();
    let (mut high, mut low) = (0u32, 0u32);
    while let Some(word) = words.take() {
        match &word[..] {
            "src" => once(&words, &word, &mut source, words_address)?.read(&mut words)?,
            "dst" => once(&words, &word, &mut destination, words_address)?.read(&mut words)?,
            "spi" => once(&words, &word, &mut spi, |words| words.value("an SPI", number))?.read(&mut words)?,
            "aead" => once(&words, &word, &mut key, aead)?.read(&mut words)?,
            "dir" => once(&words, &word, &mut direction, words_direction)?.read(&mut words)?,
            "proto" => {
                words.value("a protocol that is known here; there is esp", |word| (word == "esp").then_some(()))?;
                esp = true;
            }
            "replay-seq" | "replay-oseq" => low = words.value("a sequence number", number)?,
            "replay-seq-hi" | "replay-oseq-hi" => high = words.value("a number", number)?,
            "offload" => {
                settings.push(offload(&mut words)?);
                if words.peek() == Some("dir") {
                    words.take();
                    direction = Some(words_direction(&mut words)?);
                }
            }
            _ => settings.push(setting(&word, &mut words)?),
        }
    }
    if !esp {
        return Err(words.error(Problem::Missing("proto esp")));
    }
    let source = source.ok_or_else(|| words.error(Problem::Missing("src")))?;
    let destination = destination.ok_or_else(|| words.error(Problem::Missing("dst")))?;
    let spi = spi.ok_or_else(|| words.error(Problem::Missing("spi")))?;
    let key = key.ok_or_else(|| words.error(Problem::Missing("aead")))?;
    let params = SaParams::new(direction.unwrap_or(Direction::Transmit), spi, source, destination, key);
    let mut params = settings.into_iter().fold(params, |params, set| set(params));
    params.last_number = u64::from(low) | u64::from(high) << 32;
    if high > 0 && !params.esn {
        return Err(words.error(Problem::Mismatch("the upper half of a sequence number without `flag esn`")));
    }
    Ok(State { line, params, directed: direction.is_some() })
}

/// What a word says about an SA that there will be, once all of them are read and it has its key.
type Setting = Box<dyn FnOnce(SaParams) -> SaParams>;

/// What `word` and those behind it say, which an SA can do without.
fn setting(word: &str, words: &mut Words) -> Result<Setting, KeyFileError> {
    Ok(match word {
        "reqid" => {
            let reqid = words.value("a number", number)?;
            Box::new(move |sa| SaParams { reqid, ..sa })
        }
        "mode" => {
            let mode = words_mode(words)?;
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
        "flag" => flags(words)?,
        "limit" => limit(words)?,
        _ => return Err(words.error(Problem::Unknown(shown(word)))),
    })
}

fn offload(words: &mut Words) -> Result<Setting, KeyFileError> {
    let offload = words.value("crypto or packet", |word| match word {
        "crypto" => Some(OffloadKind::Crypto),
        "packet" => Some(OffloadKind::Packet),
        _ => None,
    })?;
    Ok(Box::new(move |sa| SaParams { offload, ..sa }))
}

/// A value that may be said once.
struct Once<'a, T, R> {
    place: &'a mut Option<T>,
    reader: R,
}

fn once<'a, T, R: FnOnce(&mut Words) -> Result<T, KeyFileError>>(
    words: &Words,
    word: &str,
    place: &'a mut Option<T>,
    reader: R,
) -> Result<Once<'a, T, R>, KeyFileError> {
    if place.is_some() {
        return Err(words.error(Problem::Twice(shown(word))));
    }
    Ok(Once { place, reader })
}

impl<T, R: FnOnce(&mut Words) -> Result<T, KeyFileError>> Once<'_, T, R> {
    fn read(self, words: &mut Words) -> Result<(), KeyFileError> {
        *self.place = Some((self.reader)(words)?);
        Ok(())
    }
}

fn aead(words: &mut Words) -> Result<EspKey, KeyFileError> {
    let name = words.expect("an algorithm")?;
    // The last four bytes of a key are the salt.
    let (suites, expected): (&[EspSuite], _) = match &name[..] {
        "rfc4106(gcm(aes))" => (&[EspSuite::Aes128Gcm, EspSuite::Aes256Gcm], "20 or 36"),
        "rfc4543(gcm(aes))" => (&[EspSuite::Aes128Gmac, EspSuite::Aes256Gmac], "20 or 36"),
        "rfc7539esp(chacha20,poly1305)" => (&[EspSuite::ChaCha20Poly1305], "36"),
        _ => return Err(words.error(Problem::Unknown(shown(&name)))),
    };
    let material = words.secret("a key in hexadecimal digits, two for each byte behind 0x", hexadecimal)?;
    // What is here may be the rest of a key with a blank in it.
    words.secret("128, the bits of the ICV", |word| (word == "128").then_some(()))?;
    let key = suites.iter().find_map(|suite| EspKey::new(*suite, &material));
    key.ok_or_else(|| words.error(Problem::KeyLength { found: material.len(), expected }))
}

fn flags(words: &mut Words) -> Result<Setting, KeyFileError> {
    let mut flags: Vec<fn(SaParams) -> SaParams> = Vec::new();
    while let Some(flag) = words.peek() {
        flags.push(match flag {
            "esn" => |sa| SaParams { esn: true, ..sa },
            "noecn" => |sa| SaParams { ecn: false, ..sa },
            "nopmtudisc" => |sa| SaParams { dont_fragment: DontFragment::Clear, ..sa },
            "af-unspec" => |sa| sa,
            _ => break,
        });
        words.take();
    }
    if flags.is_empty() {
        return words.value("a flag that is known here: esn, noecn, nopmtudisc, af-unspec", |_| None);
    }
    Ok(Box::new(move |sa| flags.into_iter().fold(sa, |sa, set| set(sa))))
}

fn encapsulation(words: &mut Words) -> Result<UdpEncapsulation, KeyFileError> {
    words.value("espinudp", |word| (word == "espinudp").then_some(()))?;
    let source_port = words.value("a port", port)?;
    let destination_port = words.value("a port", port)?;
    words.value("an original address", |word| word.parse::<IpAddr>().ok())?;
    Ok(UdpEncapsulation { source_port, destination_port })
}

fn limit(words: &mut Words) -> Result<Setting, KeyFileError> {
    let name = words.expect("the name of a limit")?;
    let (what, soft) = match name.split_once('-') {
        Some((what @ ("byte" | "packet" | "time"), end @ ("soft" | "hard"))) => (what, end == "soft"),
        _ => return Err(words.error(Problem::Unknown(shown(&name)))),
    };
    // To Linux, the highest number there is means no limit.
    let value =
        words.value("a number", |word| if word == "INF" { Some(u64::MAX) } else { word.parse::<u64>().ok() })?;
    let value = Some(value).filter(|value| *value != u64::MAX);
    let set: fn(&mut Limits, Option<u64>) = match what {
        "byte" => |limits, value| limits.bytes = value,
        "packet" => |limits, value| limits.packets = value,
        _ => |limits, value| limits.time = value.map(Duration::from_secs),
    };
    Ok(Box::new(move |mut sa| {
        set(if soft { &mut sa.lifetime.soft } else { &mut sa.lifetime.hard }, value);
        sa
    }))
}

/// Linux's policies for what it forwards are about nothing here: a host forwards nothing.
fn policy(mut words: Words) -> Result<Option<Policy>, KeyFileError> {
    let mut policy =
        Policy { direction: Direction::Transmit, selector: Selector::ANY, priority: 0, action: Action::Bypass };
    let (mut direction, mut template, mut block) = (None, None, false);
    let mut forwards = false;
    while let Some(word) = words.take() {
        let selector = &mut policy.selector;
        match &word[..] {
            "src" => once(&words, &word, &mut selector.source, words_prefix)?.read(&mut words)?,
            "dst" => once(&words, &word, &mut selector.destination, words_prefix)?.read(&mut words)?,
            "proto" => once(&words, &word, &mut selector.protocol, words_protocol)?.read(&mut words)?,
            "sport" => once(&words, &word, &mut selector.source_port, words_port)?.read(&mut words)?,
            "dport" => once(&words, &word, &mut selector.destination_port, words_port)?.read(&mut words)?,
            "dir" if words.peek() == Some("fwd") => {
                words.take();
                forwards = true;
            }
            "dir" => once(&words, &word, &mut direction, words_direction)?.read(&mut words)?,
            "priority" => policy.priority = words.value("a number", number)?,
            "action" => {
                block = words.value("allow or block", |word| match word {
                    "allow" => Some(false),
                    "block" => Some(true),
                    _ => None,
                })?;
            }
            "tmpl" => once(&words, &word, &mut template, words_template)?.read(&mut words)?,
            _ => return Err(words.error(Problem::Unknown(shown(&word)))),
        }
    }
    let of_two_families = match (policy.selector.source, policy.selector.destination) {
        (Some(source), Some(destination)) => source.address().is_ipv4() != destination.address().is_ipv4(),
        _ => false,
    };
    if of_two_families {
        return Err(words.error(Problem::Mismatch("addresses of two families")));
    }
    if forwards {
        return Ok(None);
    }
    policy.direction = direction.ok_or_else(|| words.error(Problem::Missing("dir")))?;
    policy.action = match (block, template) {
        (true, _) => Action::Discard,
        (false, Some(template)) => Action::Protect(template),
        (false, None) => Action::Bypass,
    };
    Ok(Some(policy))
}

fn words_template(words: &mut Words) -> Result<Template, KeyFileError> {
    let mut template = Template::transport(0);
    let mut esp = false;
    while let Some(word) = words.peek() {
        match word {
            "src" => {
                words.take();
                template.source = Some(words_address(words)?);
            }
            "dst" => {
                words.take();
                template.destination = Some(words_address(words)?);
            }
            "proto" => {
                words.take();
                words.value("a protocol that is known here; there is esp", |word| (word == "esp").then_some(()))?;
                esp = true;
            }
            "reqid" => {
                words.take();
                template.reqid = words.value("a number", number)?;
            }
            "mode" => {
                words.take();
                template.mode = words_mode(words)?;
            }
            _ => break,
        }
    }
    if !esp {
        return Err(words.error(Problem::Missing("proto esp")));
    }
    let is_any = |address: Option<IpAddr>| address.is_none_or(|address| address.is_unspecified());
    match template.mode {
        EspMode::Transport => (template.source, template.destination) = (None, None),
        EspMode::Tunnel if is_any(template.source) || is_any(template.destination) => {
            return Err(words.error(Problem::Mismatch("a tunnel without both of its ends")));
        }
        EspMode::Tunnel => {}
    }
    Ok(template)
}

fn defaults(mut words: Words, file: &mut KeyFile) -> Result<(), KeyFileError> {
    while let Some(word) = words.take() {
        let direction = match &word[..] {
            "in" => Some(Direction::Receive),
            "out" => Some(Direction::Transmit),
            "fwd" => None,
            _ => return Err(words.error(Problem::Unknown(shown(&word)))),
        };
        let bypass = words.value("accept or block", |word| match word {
            "accept" => Some(true),
            "block" => Some(false),
            _ => None,
        })?;
        file.defaults.extend(direction.map(|direction| (direction, bypass)));
    }
    Ok(())
}

fn words_address(words: &mut Words) -> Result<IpAddr, KeyFileError> {
    words.value("an address", |word| word.parse().ok())
}

fn words_prefix(words: &mut Words) -> Result<Prefix, KeyFileError> {
    words.value("an address, or one with a prefix length", |word| match word.split_once('/') {
        Some((address, bits)) => Prefix::new(address.parse().ok()?, bits.parse().ok()?),
        None => word.parse().ok().map(Prefix::host),
    })
}

fn words_direction(words: &mut Words) -> Result<Direction, KeyFileError> {
    words.value("in or out", |word| match word {
        "in" => Some(Direction::Receive),
        "out" => Some(Direction::Transmit),
        _ => None,
    })
}

fn words_mode(words: &mut Words) -> Result<EspMode, KeyFileError> {
    words.value("transport or tunnel", |word| match word {
        "transport" => Some(EspMode::Transport),
        "tunnel" => Some(EspMode::Tunnel),
        _ => None,
    })
}

fn words_protocol(words: &mut Words) -> Result<u8, KeyFileError> {
    words.value("a protocol's name or number", |word| match word {
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmp" => Some(1),
        "ipv6-icmp" | "icmpv6" => Some(58),
        "sctp" => Some(132),
        _ => word.parse().ok(),
    })
}

fn words_port(words: &mut Words) -> Result<u16, KeyFileError> {
    words.value("a port", port)
}

fn port(word: &str) -> Option<u16> {
    word.parse().ok()
}

/// A number, decimal or hexadecimal.
fn number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

fn hexadecimal(word: &str) -> Option<Vec<u8>> {
    let digits = word.strip_prefix("0x")?.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}
