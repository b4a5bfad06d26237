//! A line's words, taken one by one, and errors that point at them.

use crate::rule::RuleError;
use core::fmt;

/// A word that is wrong or missing.
///
/// See [`RuleFile`](crate::RuleFile) for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// What the text is called.
    pub file: String,
    /// The line, from 1 on.
    pub line: usize,
    /// The character in it at which the word begins, from 1 on; if one is missing, where it would.
    pub column: usize,
    /// The word as it may be shown: escaped, and cut after 40 characters. Empty if one is missing.
    pub word: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with a word.
///
/// See [`RuleFile`](crate::RuleFile) for an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Another word can stand there.
    #[error("is not {0}")]
    Expected(&'static str),
    /// The line ends too early.
    #[error("the line ends where there should be {0}")]
    Missing(&'static str),
    /// A word a second time.
    #[error("is there a second time: say it once")]
    Twice,
    /// What looks at connections.
    #[error(": the switch keeps no connection state: match without it")]
    ConnectionState,
    /// A rule that is to stay in software.
    #[error(": the rule is for software only: leave it to tc")]
    SoftwareOnly,
    /// All words are right, but there can be no such rule.
    #[error(": {0}")]
    Rule(#[from] RuleError),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParseError { file, line, column, word, problem } = self;
        write!(f, "{file}:{line}:{column}: ")?;
        match problem {
            Problem::Missing(_) => write!(f, "{problem}"),
            Problem::ConnectionState | Problem::SoftwareOnly | Problem::Rule(_) => write!(f, "`{word}`{problem}"),
            _ => write!(f, "`{word}` {problem}"),
        }
    }
}

impl std::error::Error for ParseError {}

/// The words of one line; those behind `#` are a comment.
pub(super) struct Words<'a> {
    file: &'a str,
    line: usize,
    words: Vec<(usize, &'a str)>,
    next: usize,
    /// The column behind the last character.
    end: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(file: &'a str, line: usize, text: &'a str) -> Words<'a> {
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
        Words { file, line, words, next: 0, end: column }
    }

    /// The next word, if there is one.
    pub(super) fn take(&mut self) -> Option<&'a str> {
        let (_, word) = self.words.get(self.next)?;
        self.next += 1;
        Some(word)
    }

    /// Looks at the next word.
    pub(super) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).map(|(_, word)| *word)
    }

    /// Takes the next word if it is `word`.
    pub(super) fn take_if(&mut self, word: &str) -> bool {
        let is_it = self.peek() == Some(word);
        self.next += usize::from(is_it);
        is_it
    }

    /// The next word, which is to be `what`.
    pub(super) fn expect(&mut self, what: &'static str) -> Result<&'a str, ParseError> {
        self.take().ok_or_else(|| self.missing(what))
    }

    /// The next word, which is to be `word`.
    pub(super) fn expect_word(&mut self, word: &'static str) -> Result<(), ParseError> {
        self.value(word, |found| (found == word).then_some(()))
    }

    /// The next word as a value, which is to be `what`.
    pub(super) fn value<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ParseError> {
        let word = self.expect(what)?;
        read(word).ok_or_else(|| self.wrong(Problem::Expected(what)))
    }

    /// The next word as the value of an option that is given once, which is to be `what`.
    pub(super) fn once<T>(
        &mut self,
        place: &mut Option<T>,
        what: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<(), ParseError> {
        if place.is_some() {
            return Err(self.wrong(Problem::Twice));
        }
        *place = Some(self.value(what, read)?);
        Ok(())
    }

    /// Something is wrong with the word taken last.
    pub(super) fn wrong(&self, problem: Problem) -> ParseError {
        self.wrong_at(self.next.saturating_sub(1), problem)
    }

    /// Something is wrong with the word at `index` of the line.
    pub(super) fn wrong_at(&self, index: usize, problem: Problem) -> ParseError {
        let (column, word) = self.words.get(index).copied().unwrap_or((self.end, ""));
        self.error(column, word.escape_debug().take(MOST_SHOWN).collect(), problem)
    }

    fn missing(&self, what: &'static str) -> ParseError {
        self.error(self.end, String::new(), Problem::Missing(what))
    }

    fn error(&self, column: usize, word: String, problem: Problem) -> ParseError {
        ParseError { file: self.file.into(), line: self.line, column, word, problem }
    }
}

const MOST_SHOWN: usize = 40;
