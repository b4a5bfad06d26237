//! The words of a line, and errors that point at a word.

use crate::rule::RuleError;
use core::fmt;

/// An error at a word.
///
/// See [`RuleFile`](crate::RuleFile) for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Name of the text.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column of the word, from 1; for a missing word, the column where it is expected.
    pub column: usize,
    /// The word, escaped and limited to 40 characters. Empty if a word is missing.
    pub word: String,
    /// The problem.
    pub problem: ParseProblem,
}

/// The problem with a word.
///
/// See [`RuleFile`](crate::RuleFile) for an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseProblem {
    /// Another word is expected here.
    #[error("is not {0}")]
    Expected(&'static str),
    /// The line ends too early.
    #[error("the line ends where there should be {0}")]
    Missing(&'static str),
    /// The option was given before.
    #[error("is there a second time: say it once")]
    Twice,
    /// A match on connection state.
    #[error(": the switch keeps no connection state: match without it")]
    ConnectionState,
    /// A rule for software only.
    #[error(": the rule is for software only: leave it to tc")]
    SoftwareOnly,
    /// The words are correct, but the rule is invalid.
    #[error(": {0}")]
    Rule(#[from] RuleError),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParseError { file, line, column, word, problem } = self;
        write!(f, "{file}:{line}:{column}: ")?;
        match problem {
            ParseProblem::Missing(_) => write!(f, "{problem}"),
            ParseProblem::ConnectionState | ParseProblem::SoftwareOnly | ParseProblem::Rule(_) => {
                write!(f, "`{word}`{problem}")
            }
            _ => write!(f, "`{word}` {problem}"),
        }
    }
}

impl std::error::Error for ParseError {}

/// The words of one line. Words after `#` are a comment.
pub(super) struct LineWords<'a> {
    file: &'a str,
    line: usize,
    words: Vec<(usize, &'a str)>,
    next: usize,
    /// Column after the last character.
    end: usize,
}

impl<'a> LineWords<'a> {
    pub(super) fn new(file: &'a str, line: usize, text: &'a str) -> LineWords<'a> {
        // Columns stay correct, because a comment only ends the line.
        let text = text.split('#').next().unwrap_or("");
        let mut words = Vec::new();
        let mut column = 1;
        for piece in text.split_inclusive(char::is_whitespace) {
            let word = piece.trim_end();
            if !word.is_empty() {
                words.push((column, word));
            }
            column += piece.chars().count();
        }
        LineWords { file, line, words, next: 0, end: column }
    }

    /// Takes the next word.
    pub(super) fn take(&mut self) -> Option<&'a str> {
        let (_, word) = self.words.get(self.next)?;
        self.next += 1;
        Some(word)
    }

    /// Returns the next word without taking it.
    pub(super) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).map(|(_, word)| *word)
    }

    /// Takes the next word if it is `word`.
    pub(super) fn take_if(&mut self, word: &str) -> bool {
        let is_it = self.peek() == Some(word);
        self.next += usize::from(is_it);
        is_it
    }

    /// Takes the next word; `what` describes the expected word in errors.
    pub(super) fn expect(&mut self, what: &'static str) -> Result<&'a str, ParseError> {
        self.take().ok_or_else(|| self.missing(what))
    }

    /// Takes the next word, which must be `word`.
    pub(super) fn expect_word(&mut self, word: &'static str) -> Result<(), ParseError> {
        self.value(word, |found| (found == word).then_some(()))
    }

    /// Takes the next word as a value; `what` describes the expected value in errors.
    pub(super) fn value<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ParseError> {
        let word = self.expect(what)?;
        read(word).ok_or_else(|| self.wrong(ParseProblem::Expected(what)))
    }

    /// Takes the next word as the value of an option that must not be repeated.
    pub(super) fn once<T>(
        &mut self,
        place: &mut Option<T>,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<(), ParseError> {
        if place.is_some() {
            return Err(self.wrong(ParseProblem::Twice));
        }
        *place = Some(self.value(what, read)?);
        Ok(())
    }

    /// Makes an error at the word taken last.
    pub(super) fn wrong(&self, problem: ParseProblem) -> ParseError {
        self.wrong_at(self.next.saturating_sub(1), problem)
    }

    /// Makes an error at the word with this index.
    pub(super) fn wrong_at(&self, index: usize, problem: ParseProblem) -> ParseError {
        let (column, word) = self.words.get(index).copied().unwrap_or((self.end, ""));
        self.error(column, word.escape_debug().take(MAX_SHOWN).collect(), problem)
    }

    fn missing(&self, what: &'static str) -> ParseError {
        self.error(self.end, String::new(), ParseProblem::Missing(what))
    }

    fn error(&self, column: usize, word: String, problem: ParseProblem) -> ParseError {
        ParseError { file: self.file.into(), line: self.line, column, word, problem }
    }
}

const MAX_SHOWN: usize = 40;
