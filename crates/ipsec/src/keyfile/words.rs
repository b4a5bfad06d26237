//! Splits a text into statements of words. A statement begins at a line that begins with `state`, `policy` or `ip`.

use super::{KeyFileError, KeyFileProblem};
use std::collections::VecDeque;
use zeroize::Zeroizing;

/// The words of a statement. Any word may be a key, so all words are wiped when dropped.
pub(super) struct StatementWords {
    words: VecDeque<(usize, Zeroizing<String>)>,
    /// The line of the last word taken.
    pub(super) line: usize,
}

impl StatementWords {
    /// Takes the next word, if any.
    pub(super) fn take(&mut self) -> Option<Zeroizing<String>> {
        let (line, word) = self.words.pop_front()?;
        self.line = line;
        Some(word)
    }

    /// Takes the next word. `what` describes it in the error if it is missing.
    pub(super) fn expect(&mut self, what: &'static str) -> Result<Zeroizing<String>, KeyFileError> {
        self.take().ok_or(self.error(KeyFileProblem::Missing(what)))
    }

    /// Takes the next word and parses it. `what` describes the expected value.
    pub(super) fn value<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, KeyFileError> {
        let word = self.expect(what)?;
        read(&word).ok_or_else(|| self.error(KeyFileProblem::Expected { found: printable(&word), expected: what }))
    }

    /// Takes and parses a word that is, or may be, part of a key. An error does not show the word.
    pub(super) fn secret<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, KeyFileError> {
        let word = self.expect(what)?;
        read(&word).ok_or_else(|| self.error(KeyFileProblem::Secret(what)))
    }

    /// Returns the next word without taking it.
    pub(super) fn peek(&self) -> Option<&str> {
        self.words.front().map(|(_, word)| &word[..])
    }

    /// Returns an error at the last word taken.
    pub(super) fn error(&self, problem: KeyFileProblem) -> KeyFileError {
        KeyFileError { line: self.line, problem }
    }
}

/// Formats a word for an error: without keys and control characters, and cut to a line's length.
pub(super) fn printable(word: &str) -> String {
    if longest_run(word, |c| c.is_ascii_hexdigit()) >= DIGITS_OF_A_KEY {
        return format!("{} characters that may be a key", word.chars().count());
    }
    let mut shown = String::new();
    for (number, character) in word.chars().enumerate() {
        if number == MAX_PRINTED {
            return shown + "...";
        }
        match character {
            '\'' | '"' | '\\' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// Returns the length of the longest run of characters that satisfy `such`.
fn longest_run(word: &str, such: impl Fn(char) -> bool) -> usize {
    word.split(|c| !such(c)).map(str::len).max().unwrap_or(0)
}

/// Splits a text into statements.
pub(super) fn statements(text: &str) -> Result<Vec<StatementWords>, KeyFileError> {
    let mut statements: Vec<StatementWords> = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let words = split_words(content).map_err(|problem| KeyFileError { line, problem })?;
        let Some(first) = words.first() else { continue };
        if matches!(&first[..], "state" | "policy" | "ip") || statements.is_empty() {
            statements.push(StatementWords { words: VecDeque::new(), line });
        }
        if let Some(statement) = statements.last_mut() {
            statement.words.extend(words.into_iter().map(|word| (line, word)));
        }
    }
    Ok(statements)
}

/// Splits a line into words, without quotation marks and comment.
fn split_words(line: &str) -> Result<Vec<Zeroizing<String>>, KeyFileProblem> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, behind) = match first {
            '#' => break,
            '\'' | '"' => rest[1..].split_once(first).ok_or(KeyFileProblem::Quote)?,
            '\\' if rest.trim_end() == "\\" => break,
            _ => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        words.push(Zeroizing::new(word.to_string()));
        rest = behind.trim_start();
    }
    Ok(words)
}

const MAX_PRINTED: usize = 64;
/// Such words with as many hexadecimal digits in a row may be keys: the shortest key has 40, and no known word has so many.
const DIGITS_OF_A_KEY: usize = 16;
