//! The story as text, a line for each event.

use crate::story::{Opened, StateRebuild, Story, StoryStep};
use core::fmt::Write;
use offload_base::Instant;

/// Returns the time, the place, the packet or record, and the description of each event, one line each.
///
/// ```
/// use offload_demos::story::{course::Script, table};
///
/// let story = Script::default().run()?;
/// assert!(table::format_story(&story).contains("P12, records 3 and 4      lost"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn format_story(story: &Story) -> String {
    let mut text = format!("{:>6}  {:13}  {:24}  what\n", "us", "where", "which");
    // The index tells whether bytes were posted before.
    for (index, event) in story.events.iter().enumerate() {
        let (micros, place) = (micros(event.at), place_of(event.what));
        let (which, what) = (which(story, index), in_words(event.what));
        let _ = writeln!(text, "{micros:>6}  {place:13}  {which:24}  {what}");
    }
    text
}

/// Returns a time in microseconds.
pub(super) fn micros(at: Instant) -> String {
    format!("{:.1}", at.as_nanos() as f64 / 1000.0)
}

/// Returns the place of an event.
const fn place_of(what: StoryStep) -> &'static str {
    match what {
        StoryStep::Posted { .. } => "server driver",
        StoryStep::Lost(_) | StoryStep::HeldBack(_) => "wire",
        StoryStep::Arrived { .. } => "client NIC",
        StoryStep::Announced(_) | StoryStep::Asked { .. } => "client driver",
        StoryStep::Noted { .. } | StoryStep::Answered { .. } | StoryStep::Opened { .. } => "client TLS",
    }
}

/// Returns the packet, record or byte of the event at `index`.
pub(super) fn which(story: &Story, index: usize) -> String {
    match story.events[index].what {
        StoryStep::Posted { bytes, .. } if story.is_again(index, bytes) => format!("{} again", story.name(bytes)),
        StoryStep::Posted { bytes, .. } => story.name(bytes),
        StoryStep::Lost(bytes)
        | StoryStep::HeldBack(bytes)
        | StoryStep::Announced(bytes)
        | StoryStep::Arrived { bytes, .. } => {
            format!("{}, {}", story.name(bytes), story.records_of(bytes))
        }
        StoryStep::Asked { header } | StoryStep::Noted { header, .. } | StoryStep::Answered { header, .. } => {
            format!("byte {header}")
        }
        StoryStep::Opened { number, .. } => format!("record {number}"),
    }
}

/// Returns the description of an event.
pub(super) fn in_words(what: StoryStep) -> String {
    match what {
        StoryStep::Posted { rebuilt: None, .. } => "posted: what the NIC expects next".into(),
        StoryStep::Posted { rebuilt: Some(StateRebuild { dumps: 0, .. }), .. } => {
            "not the next: parameters and a fence first".into()
        }
        StoryStep::Posted { rebuilt: Some(StateRebuild { dumps, dumped_bytes }), .. } => {
            format!("not the next: parameters, a fence, {dumps} DUMPs of {dumped_bytes} bytes first")
        }
        StoryStep::Lost(_) => "lost".into(),
        StoryStep::HeldBack(_) => "held back".into(),
        StoryStep::Arrived { made, .. } => made.in_words().into(),
        StoryStep::Asked { .. } => "asks TLS for the NIC: does a record begin there?".into(),
        StoryStep::Announced(_) => "tells TLS: note what begins here, a question will come".into(),
        StoryStep::Noted { number, .. } => format!("notes: record {number} begins there"),
        StoryStep::Answered { number: Some(number), noted: true, .. } => {
            format!("tells the NIC what it noted: record {number} begins there")
        }
        StoryStep::Answered { number: Some(number), .. } => format!("tells the NIC: record {number} begins there"),
        StoryStep::Answered { number: None, .. } => "tells the NIC: no record begins there".into(),
        StoryStep::Opened { by: Opened::ByNic, .. } => "decrypted and verified by the NIC".into(),
        StoryStep::Opened { by: Opened::InPart, .. } => "in part by the NIC; the rest, and the tag, in software".into(),
        StoryStep::Opened { by: Opened::InSoftware, .. } => "opened in software".into(),
    }
}
