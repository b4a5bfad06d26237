//! Measures English in sources and pages: comments, messages, test names and type names.

use std::ops::AddAssign;

/// Words that hide the noun they stand for, by column of `limits.txt`.
const COLUMNS: [&[&str]; 4] =
    [&["what", "whatever"], &["who", "whom", "whose", "whoever"], &["none", "those"], &["it", "they", "them"]];

/// First words of a documentation block that is no statement.
const OPENINGS: [&str; 9] = ["What", "Who", "Whose", "Whom", "Of", "Those", "As", "That", "Until"];

/// Counts of one place: a crate, a folder or a page.
#[derive(Clone, Default)]
pub(crate) struct Prose {
    /// Words of running text.
    pub(crate) words: usize,
    /// Words of each column of [`COLUMNS`].
    pub(crate) hits: [usize; 4],
    /// Documentation blocks.
    pub(crate) blocks: usize,
    /// Documentation blocks that open with one of [`OPENINGS`].
    pub(crate) openings: usize,
    /// Test names that are too long or hide their subject.
    pub(crate) bad_tests: Vec<String>,
    /// Names of types that are defined here.
    pub(crate) types: Vec<String>,
}

impl Prose {
    /// Measures a page of Markdown; code blocks are left out.
    pub(crate) fn of_page(text: &str) -> Self {
        let mut prose = Self::default();
        prose.count(text);
        prose
    }

    /// Measures comments and string literals of Rust source. Literals count if they read as text: three words or more.
    pub(crate) fn of_source(source: &str) -> Self {
        let mut prose = Self::default();
        let mut is_test = false;
        let (mut block, mut kind) = (String::new(), "");
        for line in source.lines().map(str::trim_start) {
            let prefix = ["///", "//!", "//"].into_iter().find(|prefix| line.starts_with(prefix)).unwrap_or("");
            if prefix != kind || prefix.is_empty() {
                prose.end_block(&mut block, kind);
                kind = prefix;
            }
            if !prefix.is_empty() {
                block += line[prefix.len()..].trim();
                block.push('\n');
                continue;
            }
            is_test |= line.starts_with("#[test") || line.starts_with("#[tokio::test");
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
            if let Some(item) = words.find(|word| !["pub", "crate", "super", "async"].contains(word)) {
                let name = words.next().unwrap_or_default().to_owned();
                match item {
                    "fn" if is_test => {
                        let hides = name.split('_').any(|word| ["what", "who", "whose", "those"].contains(&word));
                        if hides || name.len() > 60 {
                            prose.bad_tests.push(name);
                        }
                        is_test = false;
                    }
                    // An associated type is named by its trait.
                    "struct" | "enum" | "union" | "trait" => prose.types.push(name),
                    _ => {}
                }
            }
        }
        prose.end_block(&mut block, kind);
        for literal in literals(source) {
            // A placeholder is code.
            let literal: String =
                literal.split('{').map(|part| part.split_once('}').map_or(part, |(_, text)| text)).collect();
            if literal.split_whitespace().filter(|word| word.starts_with(char::is_alphabetic)).count() >= 3 {
                prose.count(&literal);
            }
        }
        prose
    }

    /// Returns the occurrences of column `column` per 1,000 words.
    pub(crate) fn rate(&self, column: usize) -> f64 {
        1000.0 * self.hits[column] as f64 / self.words.max(1) as f64
    }

    /// Returns the percentage of documentation blocks that open with one of [`OPENINGS`].
    pub(crate) fn opening_rate(&self) -> f64 {
        100.0 * self.openings as f64 / self.blocks.max(1) as f64
    }

    fn end_block(&mut self, block: &mut String, kind: &str) {
        let text = std::mem::take(block);
        if text.is_empty() {
            return;
        }
        self.count(&text);
        if kind != "//" {
            self.blocks += 1;
            let first = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
            self.openings += usize::from(OPENINGS.contains(&first));
        }
    }

    /// Counts words outside code blocks, code spans and the targets of links.
    fn count(&mut self, text: &str) {
        let mut is_code = false;
        let mut prose = String::new();
        for line in text.lines() {
            let is_fence = line.trim_start().starts_with("```");
            if !is_code && !is_fence {
                prose += line;
                prose.push(' ');
            }
            is_code ^= is_fence;
        }
        let spans = prose.split('`').step_by(2).collect::<Vec<_>>().join(" X ");
        let shown: String = spans.split("](").enumerate().fold(String::new(), |shown, (number, part)| {
            shown + if number == 0 { part } else { part.split_once(')').map_or(part, |(_, rest)| rest) }
        });
        for word in
            shown.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.starts_with(char::is_alphabetic))
        {
            self.words += 1;
            let word = word.to_lowercase();
            for (hits, column) in self.hits.iter_mut().zip(COLUMNS) {
                *hits += usize::from(column.contains(&word.as_str()));
            }
        }
    }
}

impl AddAssign<Prose> for Prose {
    fn add_assign(&mut self, other: Self) {
        self.words += other.words;
        for (sum, hits) in self.hits.iter_mut().zip(other.hits) {
            *sum += hits;
        }
        self.blocks += other.blocks;
        self.openings += other.openings;
        self.bad_tests.extend(other.bad_tests);
        self.types.extend(other.types);
    }
}

/// Returns the contents of the string literals of Rust source.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let is_raw = rest[..at].trim_end_matches('#').ends_with('r');
        let hashes = rest[..at].len() - rest[..at].trim_end_matches('#').len();
        let after = &rest[at + 1..];
        rest = match &rest[at..at + 1] {
            "/" if after.starts_with('/') => after.split_once('\n').map_or("", |(_, next)| next),
            "/" => after,
            // The character `'"'` opens no string, and neither does a quote after a backslash.
            "'" => ["\"'", "\\\"'", "\\''", "\\\\'"].iter().find_map(|c| after.strip_prefix(c)).unwrap_or(after),
            _ if is_raw => match after.split_once(&("\"".to_owned() + &"#".repeat(hashes))) {
                Some((literal, next)) => {
                    found.push(literal.to_owned());
                    next
                }
                None => "",
            },
            _ => {
                let mut escaped = false;
                let end = after.find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let end = end.unwrap_or(after.len());
                found.push(after[..end].replace("\\n", " "));
                after.get(end + 1..).unwrap_or_default()
            }
        };
    }
    found
}

#[test]
fn prose_is_counted_outside_code() {
    let page = Prose::of_page("What [it](what.md) `what`\n```\nwhat\n```\nnone, those.");
    assert_eq!((page.words, page.hits), (5, [1, 0, 2, 1]));
    let source = "/// Of it.\n// Who.\nfn f() { g(\"tell it so\", '\"', \"it\", r#\"what \"a\" b c\"#) }\n#[test]\nfn what_is() {}\n";
    let source = Prose::of_source(source);
    assert_eq!((source.words, source.hits), (10, [1, 1, 0, 2]));
    assert_eq!((source.blocks, source.openings, source.bad_tests.join(" ")), (1, 1, "what_is".to_owned()));
    assert_eq!(Prose::of_source("pub(crate) struct A;\nenum B {}\n").types, ["A", "B"]);
}
