//! The story of a lost and an overtaken packet: what `docs/` shows is what happens, and what happens is what ought to.

use offload_api::TlsResync;
use offload_examples::story::course::Course;
use offload_examples::story::reading::Made;
use offload_examples::story::{Opened, Rebuilt, Story, What, picture, table};

#[test]
fn what_the_docs_show_is_what_happens() {
    let story = Course::default().run().unwrap();
    for (shown, told) in [
        (include_str!("../../docs/resync-story.txt"), table::of(&story)),
        (include_str!("../../docs/resync-story.svg"), picture::of(&story)),
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
    let story = Course { lose: None, ..Course::default() }.run().unwrap();
    assert_eq!(made_of(&story, 4..=7), [Made::Early, Made::Decrypted, Made::Found, Made::Decrypted]);
    let opened = opened(&story);
    assert_eq!(opened[..4], [Opened::ByNic, Opened::InPart, Opened::InPart, Opened::ByNic]);
    assert!(opened[4..].iter().all(|by| *by == Opened::ByNic));
    assert!(story.events.iter().all(|event| !matches!(event.what, What::Posted { rebuilt: Some(_), .. })));
}

#[test]
fn a_lost_header_costs_a_question_and_the_retransmission_its_dumps() {
    let story = Course { hold_back: None, ..Course::default() }.run().unwrap();
    let asked = story.events.iter().position(|event| matches!(event.what, What::Asked { .. })).unwrap();
    let answer = story.events[asked..].iter().find_map(|event| match event.what {
        What::Answered { header, number } => Some((header, number)),
        _ => None,
    });
    assert_eq!(answer, Some((story.records[5].from, Some(5))), "the first header behind the one that is missing");
    let rebuilt: Vec<Rebuilt> = story
        .events
        .iter()
        .filter_map(|event| match event.what {
            What::Posted { rebuilt, .. } => rebuilt,
            _ => None,
        })
        .collect();
    let prefix = story.packets[11].from - story.records[3].from;
    assert_eq!(rebuilt[0].dumped_bytes, u64::from(prefix), "what the record has before the packet is read again");
    assert_eq!(rebuilt[1], Rebuilt { dumps: 0, dumped_bytes: 0 }, "the next record begins with the packet after it");
    assert_eq!(opened(&story).last(), Some(&Opened::ByNic));
}

#[test]
fn each_way_to_find_the_place_again_leads_back() {
    for resync in [TlsResync::DriverRequest, TlsResync::CoreHint, TlsResync::Asynchronous] {
        let story = Course { more: 40, resync, ..Course::default() }.run().unwrap();
        let opened = opened(&story);
        assert_eq!(opened.len(), 46, "{resync:?}");
        assert!(opened.contains(&Opened::InSoftware), "{resync:?}");
        assert!(opened[40..].iter().all(|by| *by == Opened::ByNic), "{resync:?}: {opened:?}");
        let asks = story.events.iter().any(|event| matches!(event.what, What::Asked { .. }));
        assert_eq!(asks, resync != TlsResync::CoreHint, "{resync:?}");
    }
}

/// What the client's NIC made of the packets that arrived, counted from 1 in the order of their arrival.
fn made_of(story: &Story, which: core::ops::RangeInclusive<usize>) -> Vec<Made> {
    let made: Vec<Made> = story
        .events
        .iter()
        .filter_map(|event| match event.what {
            What::Arrived { made, .. } => Some(made),
            _ => None,
        })
        .collect();
    made[*which.start() - 1..*which.end()].to_vec()
}

fn opened(story: &Story) -> Vec<Opened> {
    let by = |what| match what {
        What::Opened { by, .. } => Some(by),
        _ => None,
    };
    story.events.iter().filter_map(|event| by(event.what)).collect()
}
