//! Text to statements of words. A line that begins with `state`, `policy` or `ip` begins a statement.

use super::{KeyFileError, Problem};
use std::collections::VecDeque;
use zeroize::Zeroizing;

/// A statement that is being read. Any word may be a key: all are overwritten when dropped.
pub(super) struct Words {
    words: VecDeque<(usize, Zeroizing<String>)>,
    /// The line of the word taken last.
    pub(super) line: usize,
}

impl Words {
    /// The next word, if there is one.
    pub(super) fn take(&mut self) -> Option<Zeroizing<String>> {
        let (line, word) = self.words.pop_front()?;
        self.line = line;
        Some(word)
    }

    /// The next word, which is to be `what`.
    pub(super) fn expect(&mut self, what: &'static str) -> Result<Zeroizing<String>, KeyFileError> {
        self.take().ok_or(self.error(Problem::Missing(what)))
    }

    /// The next word as a value, which is to be `what`.
    pub(super) fn value<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, KeyFileError> {
        let word = self.expect(what)?;
        read(&word).ok_or_else(|| self.error(Problem::Expected { found: shown(&word), expected: what }))
    }

    /// The same for a word that is part of a secret, or may be: it is told of no one.
    pub(super) fn secret<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, KeyFileError> {
        let word = self.expect(what)?;
        read(&word).ok_or_else(|| self.error(Problem::Secret(what)))
    }

    /// Looks at the next word.
    pub(super) fn peek(&self) -> Option<&str> {
        self.words.front().map(|(_, word)| &word[..])
    }

    /// Something is wrong with the word taken last.
    pub(super) fn error(&self, problem: Problem) -> KeyFileError {
        KeyFileError { line: self.line, problem }
    }
}

/// A word as errors may show it: no key, nothing that a terminal obeys, and no more than fits a line.
pub(super) fn shown(word: &str) -> String {
    if longest_run(word, |c| c.is_ascii_hexdigit()) >= DIGITS_OF_A_KEY {
        return format!("{} characters that may be a key", word.chars().count());
    }
    let mut shown = String::new();
    for (number, character) in word.chars().enumerate() {
        if number == MOST_SHOWN {
            return shown + "...";
        }
        match character {
            '\'' | '"' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// How many characters there are at most beside each other that are `such`.
fn longest_run(word: &str, such: impl Fn(char) -> bool) -> usize {
    word.split(|c| !such(c)).map(str::len).max().unwrap_or(0)
}

/// The statements of a text.
pub(super) fn statements(text: &str) -> Result<Vec<Words>, KeyFileError> {
    let mut statements: Vec<Words> = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let words = words_of(content).map_err(|problem| KeyFileError { line, problem })?;
        let Some(first) = words.first() else { continue };
        if matches!(&first[..], "state" | "policy" | "ip") || statements.is_empty() {
            statements.push(Words { words: VecDeque::new(), line });
        }
        if let Some(statement) = statements.last_mut() {
            statement.words.extend(words.into_iter().map(|word| (line, word)));
        }
    }
    Ok(statements)
}

/// The words of a line, without quotation marks and comment.
fn words_of(line: &str) -> Result<Vec<Zeroizing<String>>, Problem> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, behind) = match first {
            '#' => break,
            '\'' | '"' => rest[1..].split_once(first).ok_or(Problem::Quote)?,
            '\\' if rest.trim_end() == "\\" => break,
            _ => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(Zeroizing::new(word.to_string()));
        rest = behind.trim_start();
    }
    Ok(words)
}

const MOST_SHOWN: usize = 64;
/// No word that is known here has so many hexadecimal digits in a row; the shortest key has 40.
const DIGITS_OF_A_KEY: usize = 16;
