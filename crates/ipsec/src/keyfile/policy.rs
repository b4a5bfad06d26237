//! Parses statements about policies (RFC 4301 4.4.1).

use super::value::{self, number, once};
use super::words::{StatementWords, printable};
use super::{KeyFileError, KeyFileProblem, Statement};
use core::net::IpAddr;
use offload_api::{Action, Direction, EspMode, Policy, Selector, Template};

/// The verb of a statement about a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyVerb {
    Add,
    /// Replaces an existing policy.
    Update,
    Delete,
}

/// Parses a statement after its first two words. Returns `None` for Linux's forward policies, because a host does not
/// forward.
pub(super) fn read(mut words: StatementWords, change: PolicyVerb) -> Result<Option<Statement>, KeyFileError> {
    let (mut selector, mut priority, mut forwards) = (Selector::ANY, 0, false);
    let (mut direction, mut template, mut block) = (None, None, None);
    while let Some(word) = words.take() {
        match &word[..] {
            "src" => once(&mut words, &word, &mut selector.source, value::prefix)?,
            "dst" => once(&mut words, &word, &mut selector.destination, value::prefix)?,
            "proto" => once(&mut words, &word, &mut selector.protocol, value::protocol)?,
            "sport" => once(&mut words, &word, &mut selector.source_port, value::port)?,
            "dport" => once(&mut words, &word, &mut selector.destination_port, value::port)?,
            "dir" if words.peek() == Some("fwd") => {
                words.take();
                forwards = true;
            }
            "dir" => once(&mut words, &word, &mut direction, value::direction)?,
            "priority" => priority = words.value("a number", number)?,
            // Action and template do not identify a policy, so `delete` refuses them.
            "action" if change != PolicyVerb::Delete => once(&mut words, &word, &mut block, read_block)?,
            "tmpl" if change != PolicyVerb::Delete => once(&mut words, &word, &mut template, read_template)?,
            _ => return Err(words.error(KeyFileProblem::Unknown(printable(&word)))),
        }
    }
    let of_two_families = match (selector.source, selector.destination) {
        (Some(source), Some(destination)) => source.address().is_ipv4() != destination.address().is_ipv4(),
        _ => false,
    };
    if of_two_families {
        return Err(words.error(KeyFileProblem::Mismatch("addresses of two families")));
    }
    if forwards {
        return Ok(None);
    }
    let direction = direction.ok_or_else(|| words.error(KeyFileProblem::Missing("dir")))?;
    // A block action wins over a template; without both, the policy means bypass, as in Linux.
    let action = match (block, template) {
        (Some(true), _) => Action::Discard,
        (_, Some(template)) => Action::Protect(template),
        (_, None) => Action::Bypass,
    };
    let policy = Policy { direction, selector, priority, action };
    Ok(Some(match change {
        PolicyVerb::Add => Statement::AddPolicy(policy),
        PolicyVerb::Update => Statement::UpdatePolicy(policy),
        PolicyVerb::Delete => Statement::DeletePolicy(policy),
    }))
}

/// Parses the defaults for packets that match no policy.
pub(super) fn read_defaults(mut words: StatementWords) -> Result<Vec<(Direction, bool)>, KeyFileError> {
    let mut defaults = Vec::new();
    while let Some(word) = words.take() {
        let direction = match &word[..] {
            "in" => Some(Direction::Receive),
            "out" => Some(Direction::Transmit),
            "fwd" => None,
            _ => return Err(words.error(KeyFileProblem::Unknown(printable(&word)))),
        };
        let bypass = words.value("accept or block", |word| match word {
            "accept" => Some(true),
            "block" => Some(false),
            _ => None,
        })?;
        defaults.extend(direction.map(|direction| (direction, bypass)));
    }
    Ok(defaults)
}

fn read_block(words: &mut StatementWords) -> Result<bool, KeyFileError> {
    words.value("allow or block", |word| match word {
        "allow" => Some(false),
        "block" => Some(true),
        _ => None,
    })
}

fn read_template(words: &mut StatementWords) -> Result<Template, KeyFileError> {
    let mut template = Template::transport(0);
    let mut esp = false;
    while let Some(word) = words.peek() {
        match word {
            "src" => {
                words.take();
                template.source = Some(value::address(words)?);
            }
            "dst" => {
                words.take();
                template.destination = Some(value::address(words)?);
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
                template.mode = value::mode(words)?;
            }
            _ => break,
        }
    }
    if !esp {
        return Err(words.error(KeyFileProblem::Missing("proto esp")));
    }
    // An address of zero means "unspecified", which is allowed only in transport mode.
    let is_any = |address: Option<IpAddr>| address.is_none_or(|address| address.is_unspecified());
    match template.mode {
        EspMode::Transport => (template.source, template.destination) = (None, None),
        EspMode::Tunnel if is_any(template.source) || is_any(template.destination) => {
            return Err(words.error(KeyFileProblem::Mismatch("a tunnel without both of its ends")));
        }
        EspMode::Tunnel => {}
    }
    Ok(template)
}
