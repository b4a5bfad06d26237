//! Plain English, measured: each place keeps to the limits of `limits.txt`, and a limit only falls.

use crate::prose::Prose;
use crate::{files, page, pages, program, root};
use std::collections::BTreeMap;

/// Limits of every place that `limits.txt` does not name: words per 1,000 words by column, and the percentage of
/// documentation blocks with a bad opening.
const GOAL: [f64; 5] = [1.0, 0.5, 1.2, 10.0, 0.5];

/// Pronouns per 1,000 words of all places together.
const PRONOUNS_OVERALL: f64 = 9.0;

/// Places with fewer words are measured together.
const SMALL: usize = 3000;

/// Type names that may be defined more than once, because they are terms of the field.
const FIELD_WORDS: [&str; 22] = [
    "Error",
    "Config",
    "Options",
    "Builder",
    "Packet",
    "Header",
    "Repr",
    "Counters",
    "Command",
    "Stats",
    "Session",
    "Connection",
    "Frame",
    "Message",
    "Key",
    "Server",
    "Client",
    "Host",
    "Target",
    "Stream",
    "Request",
    "Response",
];

#[test]
fn prose_keeps_to_its_limits() {
    let (measured, limits) = (places(), WordLimits::read());
    let mut faults = Vec::new();
    let mut rows = String::new();
    for (place, prose) in &measured {
        let now = [prose.rate(0), prose.rate(1), prose.rate(2), prose.rate(3), prose.opening_rate()];
        let limit = limits.places.get(place);
        let is_over = |limit: &[f64; 5]| now.iter().zip(limit).any(|(now, limit)| (now * 10.0).round() > limit * 10.0);
        if is_over(limit.unwrap_or(&GOAL)) {
            faults.push(format!("{place} has {now:.1?}, its limit is {:.1?}", limit.unwrap_or(&GOAL)));
        } else if limit.is_some_and(|_| !is_over(&GOAL)) {
            faults.push(format!("{place} meets the goal: take its row out of limits.txt"));
        }
        if is_over(&GOAL) {
            let row: Vec<String> = now.iter().zip(GOAL).map(|(now, goal)| format!("{:.1}", now.max(goal))).collect();
            rows += &format!("{place} {}\n", row.join(" "));
        }
    }
    let names = repeated_types(&measured).len();
    if names > limits.repeated_types {
        faults.push(format!("{names} type names are used more than once, {} before", limits.repeated_types));
    }
    let bad_tests: Vec<String> = measured.values().flat_map(|prose| prose.bad_tests.clone()).collect();
    if bad_tests.len() > limits.bad_tests {
        faults.push(format!("{} test names are too long or hide their subject: {bad_tests:?}", bad_tests.len()));
    }
    let overall = measured.into_values().fold(Prose::default(), |mut sum, prose| {
        sum += prose;
        sum
    });
    if (overall.rate(3) * 10.0).round() > limits.pronouns_overall * 10.0 {
        faults.push(format!("all places have {:.1} pronouns per 1,000 words", overall.rate(3)));
    }
    assert!(overall.words > 100_000 && overall.blocks > 10_000, "only {} words were found", overall.words);
    assert!(
        faults.is_empty(),
        "{}\nRows that the measured text would need (a limit may rise only when files move):\n{rows}all {:.1} {} {}",
        faults.join("\n"),
        overall.rate(3),
        names,
        bad_tests.len(),
    );
}

#[test]
fn help_of_programs_hides_no_noun() {
    for name in PROGRAMS {
        let output = program(name).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && help.contains("Usage:"), "{name}: {help}");
        let prose = Prose::of_page(&help);
        assert_eq!(prose.hits[..2], [0, 0], "{name} --help has {:?} of `what` and `who`: name the thing", prose.hits);
    }
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

/// Measures every place: a crate, a folder at the root, or a page at the root. Small places are one.
fn places() -> BTreeMap<String, Prose> {
    let mut places: BTreeMap<String, Prose> = BTreeMap::new();
    let sources = files(&root(), &|path| path.ends_with(".rs") && !path.starts_with("target"));
    let measured = sources.into_iter().map(|path| (Prose::of_source(&page(&path)), path));
    let pages = pages().into_iter().map(|path| (Prose::of_page(&page(&path)), path));
    for (prose, path) in measured.chain(pages) {
        let parts: Vec<&str> = path.split('/').collect();
        let place = match parts[..] {
            ["crates", name, _, ..] => format!("crates/{name}"),
            [folder, _, ..] => folder.to_owned(),
            _ => path,
        };
        *places.entry(place).or_default() += prose;
    }
    let (mut large, mut small) = (BTreeMap::new(), Prose::default());
    for (place, prose) in places {
        if prose.words < SMALL {
            small += prose;
        } else {
            large.insert(place, prose);
        }
    }
    large.insert("small".to_owned(), small);
    large
}

/// Returns the type names that are defined more than once, field words left out.
fn repeated_types(places: &BTreeMap<String, Prose>) -> Vec<&str> {
    let mut definitions: BTreeMap<&str, usize> = BTreeMap::new();
    for name in places.values().flat_map(|prose| &prose.types) {
        *definitions.entry(name).or_default() += 1;
    }
    definitions.retain(|name, count| *count > 1 && !FIELD_WORDS.contains(name));
    definitions.into_keys().collect()
}

/// The rows of `limits.txt`.
struct WordLimits {
    /// Limits of the places that do not meet the goal yet, as in [`GOAL`].
    places: BTreeMap<String, [f64; 5]>,
    pronouns_overall: f64,
    repeated_types: usize,
    bad_tests: usize,
}

impl WordLimits {
    fn read() -> Self {
        let mut limits =
            Self { places: BTreeMap::new(), pronouns_overall: PRONOUNS_OVERALL, repeated_types: 0, bad_tests: 0 };
        for row in page("examples/tests/front_door/limits.txt").lines().filter(|row| !row.starts_with('#')) {
            let mut cells = row.split_whitespace();
            let place = cells.next().expect("limits.txt has no empty rows");
            let values: Vec<f64> =
                cells.map(|cell| cell.parse().unwrap_or_else(|_| panic!("limits.txt: {row}"))).collect();
            if place == "all" {
                limits.pronouns_overall = values[0];
                (limits.repeated_types, limits.bad_tests) = (values[1] as usize, values[2] as usize);
            } else {
                limits
                    .places
                    .insert(place.to_owned(), values.try_into().unwrap_or_else(|_| panic!("limits.txt: {row}")));
            }
        }
        limits
    }
}
