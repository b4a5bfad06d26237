//! Plain English: turns of phrase that have to be read twice appear in no page, no documentation and no error.

use crate::{files, page, pages, program, root};

#[test]
fn no_page_and_no_error_needs_to_be_read_twice() {
    let mut found = Vec::new();
    for path in pages() {
        for (number, line) in page(&path).lines().enumerate() {
            found.extend(blacklisted(line).map(|phrase| format!("{path}:{}: {phrase:?}: {line}", number + 1)));
        }
    }
    let mut errors = 0;
    for path in
        ["crates", "examples"].into_iter().flat_map(|folder| files(&root().join(folder), &|path| path.ends_with(".rs")))
    {
        for error in page(&path).split("#[error(").skip(1).filter_map(text_of) {
            errors += 1;
            found.extend(blacklisted(&error).map(|phrase| format!("{path}: {phrase:?}: {error}")));
        }
    }
    assert!(errors > 100, "only {errors} errors were found");
    assert!(found.is_empty(), "{} phrases: say it plainly\n{}", found.len(), found.join("\n"));
}

/// Comments that become documentation, of all crates and examples; a phrase may run over the end of a line.
#[test]
fn no_documentation_of_code_needs_to_be_read_twice() {
    let mut found = Vec::new();
    let mut lines = 0;
    for path in
        ["crates", "examples"].into_iter().flat_map(|folder| files(&root().join(folder), &|path| path.ends_with(".rs")))
    {
        let text = page(&path);
        let mut before: &str = "";
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            let said = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!")).unwrap_or("");
            lines += usize::from(!said.is_empty());
            let alone: Vec<&str> = blacklisted(before).collect();
            let phrases =
                blacklisted(&format!("{before} {said}")).filter(|phrase| !alone.contains(phrase)).collect::<Vec<_>>();
            found.extend(phrases.iter().map(|phrase| format!("{path}:{}: {phrase:?}: {comment}", number + 1)));
            before = said;
        }
    }
    assert!(lines > 10_000, "only {lines} lines of documentation were found");
    assert!(found.is_empty(), "{} phrases: say it plainly\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_help_needs_to_be_read_twice() {
    for name in PROGRAMS {
        let output = program(name).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && help.contains("Usage:"), "{name}: {help}");
        let found: Vec<&str> = help.lines().flat_map(blacklisted).collect();
        assert!(found.is_empty(), "{name} --help: say it plainly: {found:?}");
    }
}

#[test]
fn phrases_are_found_as_words() {
    let found = |text| blacklisted(text).count();
    assert_eq!(found("Whoever reads this; what of it is none of ours"), 4);
    assert_eq!(found("If there is none, what offload saves is nonetheless here; no such file"), 0);
    assert_eq!(text_of(r#""a \"word\" {0}", x)] Other"#).as_deref(), Some(r#"a \"word\" {0}"#));
    assert_eq!(text_of("transparent)]"), None);
}

fn blacklisted(line: &str) -> impl Iterator<Item = &'static str> {
    let words: Vec<String> = line.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase).collect();
    let line = format!(" {} ", words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "));
    BLACK_LIST.into_iter().filter(move |phrase| line.contains(&format!(" {phrase} ")))
}

/// The text of an error, which follows `#[error(`.
fn text_of(attribute: &str) -> Option<String> {
    let rest = attribute.trim_start().strip_prefix('"')?;
    let mut escaped = false;
    let end = rest.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    Some(rest[..end].to_owned())
}

const PROGRAMS: [&str; 12] = [
    "eswitch",
    "https_client",
    "h3_server",
    "https_server",
    "ipsec_loopback",
    "ktls_loopback",
    "nvme_host",
    "nvme_loopback",
    "nvme_target",
    "resync_story",
    "tap_server",
    "udp_echo",
];

/// What to write instead: who does it, and what it is called.
const BLACK_LIST: [&str; 14] = [
    "whoever",
    "whomever",
    "what of",
    "it is none",
    "that is none",
    "is none of",
    "is none that",
    "are none of",
    "are none that",
    "what is not what",
    "of which there is none",
    "would not have them",
    "such a one",
    "and the like of",
];
