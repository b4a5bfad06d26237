//! Arbitrary text as a file of switch rules: the parsed rules are the same after printing and parsing again, or the
//! error names an existing word.

use nic_switch::RuleFile;

/// Runs one input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let file = match RuleFile::parse("rules", &text) {
        Ok(file) => file,
        Err(error) => {
            let line = text.lines().nth(error.line - 1).expect("a line that there is");
            let rest: String = line.chars().skip(error.column - 1).collect();
            assert!(rest.escape_debug().to_string().starts_with(&error.word), "{error}");
            return;
        }
    };
    assert_eq!(RuleFile::parse("printed", &file.to_string()).as_ref(), Ok(&file));
}
