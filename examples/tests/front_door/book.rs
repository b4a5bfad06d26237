//! Links have targets, and the table of contents lists every chapter.

use crate::{files, page, pages, root};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

#[test]
fn every_link_leads_to_a_file_and_every_anchor_to_a_heading() {
    let mut checked = 0;
    for from in pages() {
        for link in links(&page(&from)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').map_or((&link[..], None), |(path, anchor)| (path, Some(anchor)));
            let to = if path.is_empty() { PathBuf::from(&from) } else { beside(&from, path) };
            // A link without a path refers to the page itself.
            assert!(root().join(&to).exists(), "{from}: {link} leads to nothing");
            if let Some(anchor) = anchor {
                let anchors = anchors(&page(to.to_str().unwrap()));
                assert!(anchors.contains(anchor), "{from}: {link}: there is no such heading among {anchors:?}");
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} links were found");
}

#[test]
fn every_chapter_is_in_the_contents_once() {
    let summary = links(&page("docs/SUMMARY.md"));
    let listed: BTreeSet<String> = summary.iter().map(|link| format!("docs/{link}")).collect();
    assert_eq!(listed.len(), summary.len(), "a chapter is listed twice");
    let mut there: BTreeSet<String> = files(&root().join("docs"), &|path| path.ends_with(".md")).into_iter().collect();
    there.remove("docs/SUMMARY.md");
    assert_eq!(there, listed);
}

#[test]
fn headings_are_anchors_as_sites_make_them() {
    let text = "# A title\n## Linux, curl & QEMU\n```sh\n# no heading\n```\n## `--tap`: no\n## A title\n";
    let expected = ["--tap-no", "a-title", "a-title-1", "linux-curl--qemu"];
    assert_eq!(anchors(text).iter().map(String::as_str).collect::<Vec<_>>(), expected);
    let text = "a [link](to#there), `[no](link)` and ![a picture](of.svg)\n```text\n[no](link)\n```\n";
    assert_eq!(links(text), ["to#there", "of.svg"]);
}

/// Returns the targets of links and pictures outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // Brackets in code spans are no links.
        let plain: String = line.split('`').step_by(2).collect();
        for rest in plain.split("](").skip(1) {
            found.extend(rest.split_once(')').map(|(link, _)| link.to_owned()));
        }
    }
    found
}

/// Returns the anchors of headings: lower case, hyphens for spaces, no punctuation; repeated ones are numbered.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let base: String = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let numbered = (1..).map(|number| format!("{base}-{number}"));
        let mut candidates = core::iter::once(base.clone()).chain(numbered);
        anchors.insert(candidates.find(|anchor| !anchors.contains(anchor)).unwrap());
    }
    anchors
}

/// Returns the lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the path of the file that `path` names on the page `from`.
fn beside(from: &str, path: &str) -> PathBuf {
    let mut to = PathBuf::new();
    for part in Path::new(from).parent().unwrap().join(path).components() {
        match part {
            Component::ParentDir => assert!(to.pop(), "{from}: {path} leads out of the project"),
            part => to.push(part),
        }
    }
    to
}
