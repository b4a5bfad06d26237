//! Commands shown in shell blocks on pages, and the options of programs.

use std::collections::BTreeSet;

/// Returns the lines of blocks marked `sh`, without comments, with continued lines joined.
pub(crate) fn commands(text: &str) -> impl Iterator<Item = String> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    let lines: Vec<String> =
        blocks.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let uncommented =
        lines.into_iter().map(|line| format!(" {line}").split(" #").next().unwrap_or_default().to_owned());
    uncommented.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|line| !line.is_empty())
}

/// Returns the options that a help text names.
pub(crate) fn options_in(help: &str) -> BTreeSet<String> {
    let words = help.split(|c: char| !c.is_alphanumeric() && c != '-');
    words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn commands_are_read_from_shell_blocks_only() {
    let text = "cargo run\n```sh\ncargo run --example a  # why\n# nothing\na \\\n  b\n```\n```text\ncargo test\n```\n";
    assert_eq!(commands(text).collect::<Vec<_>>(), ["cargo run --example a", "a b"]);
}
