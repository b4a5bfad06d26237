//! Each public type of the published crates has an example that runs.
//!
//! The rule: a code block that runs, in the documentation or the README of the type's crate, names the type; or the
//! type's own documentation refers to a type or function of the crate with such a block ("See [`Device`] for an
//! example"). A public type is a `pub struct`, `enum`, `union` or `trait` at the start of a line: `unreachable_pub` is
//! denied in all crates, so each such type can be reached.

use super::{files, page, root};
use std::collections::BTreeMap;

#[derive(Default)]
struct Crate {
    /// Lines of all code blocks that run.
    examples: String,
    /// The public types.
    types: Vec<Type>,
    /// Functions with a block that runs in their documentation.
    functions: Vec<String>,
}

struct Type {
    name: String,
    at: String,
    docs: String,
    has_block: bool,
}

#[test]
fn each_public_type_has_an_example() {
    let mut wrong = Vec::new();
    for (name, has) in crates() {
        let without: Vec<&Type> = has.types.iter().filter(|one| !has.shows(one)).collect();
        wrong.extend(without.iter().map(|one| format!("{name}: {} has no example ({})", one.name, one.at)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_example_is_a_block_that_runs_and_names_the_type() {
    let mut one = Crate::default();
    one.read("a.rs", "/// Told.\n///\n/// ```\n/// Named::new();\n/// ```\npub struct Named;\n");
    one.read("b.rs", "/// ```ignore\n/// Ignored\n/// ```\npub enum Ignored {}\n/// See [`Named`] for an example.\npub trait Led {}\n");
    one.read("d.rs", "/// ```\n/// ```\npub fn makes() {}\n/// See [`makes`] for an example.\npub struct Made;\n");
    one.read("c.rs", "/// See [`Led`] for an example.\npub union Astray {}\n#[cfg(test)]\npub struct Hidden;\n");
    let shown: Vec<(&str, bool)> = one.types.iter().map(|each| (each.name.as_str(), one.shows(each))).collect();
    assert_eq!(shown, [("Named", true), ("Ignored", false), ("Led", true), ("Made", true), ("Astray", false)]);
}

/// Returns the published crates by folder name.
fn crates() -> BTreeMap<String, Crate> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    let manifests = files(&root().join("crates"), &|path| path.ends_with("/Cargo.toml"));
    let unpublished: Vec<String> =
        manifests.into_iter().filter(|path| page(path).contains("\npublish = false")).collect();
    for path in files(&root().join("crates"), &|path| path.ends_with(".rs") || path.ends_with("/README.md")) {
        let mut parts = path.split('/').skip(1);
        let (Some(name), Some(within)) = (parts.next(), parts.next()) else { continue };
        // Unpublished crates are used only inside this workspace.
        if unpublished.contains(&format!("crates/{name}/Cargo.toml")) {
            continue;
        }
        let has = crates.entry(name.to_owned()).or_default();
        match within {
            "src" => has.read(&path, &page(&path)),
            "README.md" => {
                let commented: String = page(&path).lines().map(|line| format!("//! {line}\n")).collect();
                has.read(&path, &commented);
            }
            _ => {}
        }
    }
    crates
}

impl Crate {
    fn read(&mut self, path: &str, text: &str) {
        let (mut docs, mut in_block, mut runs, mut has_block) = (String::new(), false, false, false);
        // Tests come last in a file, and their types are not public.
        for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
            let trimmed = line.trim_start();
            // Documentation belongs to the next item.
            if let Some(doc) = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!")) {
                let doc = doc.strip_prefix(' ').unwrap_or(doc);
                if let Some(kind) = doc.strip_prefix("```") {
                    // Blocks marked `ignore`, `text` and the like prove nothing.
                    runs = !in_block && matches!(kind, "" | "rust" | "should_panic");
                    has_block |= runs;
                    in_block = !in_block;
                } else if runs {
                    self.examples += doc;
                    self.examples.push('\n');
                } else {
                    docs += doc;
                    docs.push('\n');
                }
            } else if let Some(name) = type_of(line) {
                let docs = std::mem::take(&mut docs);
                self.types.push(Type { name, at: path.to_owned(), docs, has_block });
                has_block = false;
            } else if !trimmed.starts_with("#[") {
                let function =
                    trimmed.strip_prefix("pub ").and_then(|item| item.trim_start_matches("const ").strip_prefix("fn "));
                if has_block && let Some(name) = function.and_then(|function| words(function).next()) {
                    self.functions.push(name.to_owned());
                }
                docs.clear();
                has_block = false;
            }
        }
    }

    fn shows(&self, one: &Type) -> bool {
        let leads_to = |path: &str| {
            let name = path.trim_end_matches("()").rsplit("::").next().unwrap_or(path);
            let of_type = self.types.iter().any(|other| other.has_block && other.name == name);
            of_type || self.functions.iter().any(|function| function == name)
        };
        one.has_block
            || words(&self.examples).any(|word| word == one.name)
            || one.docs.split("See [`").skip(1).any(|rest| {
                rest.split_once("`]").is_some_and(|(name, rest)| {
                    // A link may have an explicit target in parentheses.
                    let behind =
                        rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
                    leads_to(name) && behind.trim_start().starts_with("for an example")
                })
            })
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_')
}

/// Returns the name of the public type that a line defines.
fn type_of(line: &str) -> Option<String> {
    let item = line.strip_prefix("pub ")?;
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let name = ["struct ", "enum ", "union ", "trait "].iter().find_map(|kind| item.strip_prefix(kind))?;
    Some(words(name).next()?.to_owned())
}
