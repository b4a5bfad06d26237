//! The story of a lost and an overtaken packet: the files in `docs/` show the actual events, and the events are the
//! intended ones.

use core::time::Duration;
use offload_api::ResyncMode;
use offload_demos::story::course::Script;
use offload_demos::story::reading::PacketResult;
use offload_demos::story::{Opened, StateRebuild, Story, StoryStep, picture, table};

#[test]
fn docs_show_the_current_story() {
    let story = Script::default().run().unwrap();
    for (shown, told) in [
        (include_str!("../../../docs/resync-story.txt"), table::format_story(&story)),
        (include_str!("../../../docs/resync-story.svg"), picture::draw_story(&story)),
    ] {
        assert!(
            shown == told,
            "docs/ tells another story than the stacks do now:\n{told}\nIf the new one is right: \
             cargo run --example resync_story -- --svg docs/resync-story.svg > docs/resync-story.txt"
        );
    }
}

#[test]
fn a_gap_inside_a_record_costs_that_record_and_the_next() {
    let story = Script { lose: None, ..Script::default() }.run().unwrap();
    // Packet 4 is overtaken, so packet 5 arrives first and leaves a gap inside a record.
    assert_eq!(
        made_of(&story, 4..=7),
        [PacketResult::Early, PacketResult::Decrypted, PacketResult::Found, PacketResult::Decrypted]
    );
    let opened = opened(&story);
    assert_eq!(opened[..4], [Opened::ByNic, Opened::InPart, Opened::InPart, Opened::ByNic]);
    assert!(opened[4..].iter().all(|by| *by == Opened::ByNic));
    assert!(story.events.iter().all(|event| !matches!(event.what, StoryStep::Posted { rebuilt: Some(_), .. })));
}

#[test]
fn lost_header_causes_a_question_and_dumps() {
    let story = Script { hold_back: None, ..Script::default() }.run().unwrap();
    let asked = story.events.iter().position(|event| matches!(event.what, StoryStep::Asked { .. })).unwrap();
    let answer = story.events[asked..].iter().find_map(|event| match event.what {
        StoryStep::Answered { header, number, .. } => Some((header, number)),
        _ => None,
    });
    assert_eq!(answer, Some((story.records[5].from, Some(5))), "the first header behind the one that is missing");
    let rebuilt: Vec<StateRebuild> = story
        .events
        // The retransmitted packet is not at a record's start, so the NIC must encrypt the record's beginning again.
        .iter()
        .filter_map(|event| match event.what {
            StoryStep::Posted { rebuilt, .. } => rebuilt,
            _ => None,
        })
        .collect();
    let prefix = story.packets[11].from - story.records[3].from;
    assert_eq!(rebuilt[0].dumped_bytes, u64::from(prefix), "the NIC reads the record's bytes before the packet again");
    assert_eq!(
        rebuilt[1],
        StateRebuild { dumps: 0, dumped_bytes: 0 },
        "the next record begins with the packet after it"
    );
    assert_eq!(opened(&story).last(), Some(&Opened::ByNic));
}

#[test]
fn each_way_to_find_the_place_again_leads_back() {
    for resync in [ResyncMode::DriverRequest, ResyncMode::CoreHint, ResyncMode::Asynchronous] {
        let story = Script { more: 40, resync, ..Script::default() }.run().unwrap();
        let opened = opened(&story);
        assert_eq!(opened.len(), 46, "{resync:?}");
        assert!(opened.contains(&Opened::InSoftware), "{resync:?}");
        // In the end every record must be decrypted by the NIC again.
        assert!(opened[40..].iter().all(|by| *by == Opened::ByNic), "{resync:?}: {opened:?}");
        // Hints come without a question.
        let asks = story.events.iter().any(|event| matches!(event.what, StoryStep::Asked { .. }));
        assert_eq!(asks, resync != ResyncMode::CoreHint, "{resync:?}");
    }
}

#[test]
fn late_question_is_answered_from_noted_headers() {
    let late =
        |resync| Script { resync, question_delay: Duration::from_micros(40), ..Script::default() }.run().unwrap();
    let story = late(ResyncMode::Asynchronous);
    let at = |wanted: &dyn Fn(StoryStep) -> bool| story.events.iter().position(|event| wanted(event.what));
    let header = story.records[5].from;
    // The steps in the order in which they must happen.
    let steps = [
        at(&|what| matches!(what, StoryStep::Announced(bytes) if bytes == story.packets[13])),
        at(&|what| what == StoryStep::Noted { header, number: 5 }),
        at(&|what| matches!(what, StoryStep::Opened { number: 5, .. })),
        at(&|what| what == StoryStep::Asked { header }),
        at(&|what| what == StoryStep::Answered { header, number: Some(5), noted: true }),
        at(&|what| matches!(what, StoryStep::Arrived { made: PacketResult::Found, bytes } if bytes.from > header)),
    ];
    assert!(steps.is_sorted() && steps[0].is_some(), "{steps:?}\n{}", table::format_story(&story));
    assert_eq!(opened(&story).last(), Some(&Opened::ByNic));
    // A driver that asks at once announces nothing, and TLS finds the answer in its own memory.
    let plain = late(ResyncMode::DriverRequest);
    assert!(!plain.events.iter().any(|event| matches!(event.what, StoryStep::Announced(_) | StoryStep::Noted { .. })));
    let answer = StoryStep::Answered { header, number: Some(5), noted: false };
    assert!(plain.events.iter().any(|event| event.what == answer));
}

#[test]
fn story_contains_the_requested_packets_or_is_refused() {
    let check = |course: Script| course.check(&course.run().unwrap());
    assert_eq!(check(Script::default()), Ok(()));
    assert!(
        check(Script { hold_back: Some(27), ..Script::default() })
            .unwrap_err()
            .starts_with("--hold-back 27: the story has")
    );
    assert!(check(Script { records: 100, more: 100, record_size: 16_384, ..Script::default() }).is_err());
}

/// Returns the results of the packets that arrived at the client's NIC, counted from 1 in the order of arrival.
fn made_of(story: &Story, which: core::ops::RangeInclusive<usize>) -> Vec<PacketResult> {
    let made: Vec<PacketResult> = story
        .events
        .iter()
        .filter_map(|event| match event.what {
            StoryStep::Arrived { made, .. } => Some(made),
            _ => None,
        })
        .collect();
    made[*which.start() - 1..*which.end()].to_vec()
}

fn opened(story: &Story) -> Vec<Opened> {
    let by = |what| match what {
        StoryStep::Opened { by, .. } => Some(by),
        _ => None,
    };
    story.events.iter().filter_map(|event| by(event.what)).collect()
}
