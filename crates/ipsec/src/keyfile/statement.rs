//! Selects a statement's parser by its first two words.

use super::policy::{self, PolicyVerb};
use super::words::{StatementWords, printable};
use super::{KeyFile, KeyFileError, KeyFileProblem, state};

/// Parses a statement into `file`.
pub(super) fn read(mut words: StatementWords, file: &mut KeyFile) -> Result<(), KeyFileError> {
    let line = words.line;
    let mut first = words.expect("state or policy")?;
    // Lines may be copied from a shell script, with `ip xfrm` in front.
    if *first == "ip" {
        let xfrm = words.expect("xfrm")?;
        if *xfrm != "xfrm" {
            return Err(words.error(KeyFileProblem::Expected { found: printable(&xfrm), expected: "xfrm" }));
        }
        first = words.expect("state or policy")?;
    }
    let second = words.expect("add, update, rekey, delete or setdefault")?;
    let statement = match (&first[..], &second[..]) {
        ("state", "add") => Some(state::add(words)?),
        ("state", "update") => Some(state::update(words)?),
        ("state", "rekey") => Some(state::rekey(words)?),
        ("state", "delete") => Some(state::delete(words)?),
        ("policy", "add") => policy::read(words, PolicyVerb::Add)?,
        ("policy", "update") => policy::read(words, PolicyVerb::Update)?,
        ("policy", "delete") => policy::read(words, PolicyVerb::Delete)?,
        ("policy", "setdefault") => {
            file.defaults.extend(policy::read_defaults(words)?);
            None
        }
        ("state" | "policy", _) => return Err(words.error(KeyFileProblem::Unknown(printable(&second)))),
        _ => {
            return Err(words.error(KeyFileProblem::Expected { found: printable(&first), expected: "state or policy" }));
        }
    };
    // Defaults and forward policies add no statement.
    file.statements.extend(statement.map(|statement| (line, statement)));
    Ok(())
}
