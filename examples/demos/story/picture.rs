//! The story as a sequence diagram in one self-contained SVG file.
//!
//! Time runs down, not to scale: each event has a row. There are lifelines from the server's driver to the client's TLS
//! layer; the client NIC's lifeline is coloured by the NIC's knowledge of its position in the stream.

use crate::story::reading::PacketResult;
use crate::story::table::{in_words, micros, which};
use crate::story::{Opened, Story, StoryStep};
use core::fmt::Write;

/// Draws a story.
///
/// ```
/// use offload_demos::story::{course::Script, picture};
///
/// let svg = picture::draw_story(&Script::default().run()?);
/// assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn draw_story(story: &Story) -> String {
    let mut drawing = Drawing { svg: String::new() };
    let bottom = TOP + ROW * story.events.len() as u32;
    drawing.begin(bottom + LEGEND);
    drawing.lifelines(bottom);
    drawing.knowledge(story, bottom);
    // Rows are equally high, because the times of events differ too much for a scale.
    for (index, event) in story.events.iter().enumerate() {
        let y = TOP + ROW * index as u32 + ROW / 2;
        drawing.text(TIME, y, "end", GREY, &micros(event.at));
        drawing.row(y, event.what, &which(story, index));
    }
    drawing.legend(bottom);
    drawing.svg + "</svg>\n"
}

struct Drawing {
    svg: String,
}

impl Drawing {
    fn begin(&mut self, height: u32) {
        self.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n\
             <title>One TLS connection, a packet lost and one overtaken</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        ));
    }

    fn lifelines(&mut self, bottom: u32) {
        self.text(TIME, TOP - 14, "end", GREY, "us");
        for (x, host, name) in LIFELINES {
            self.text(x, TOP - 28, "middle", BLACK, host);
            self.text(x, TOP - 14, "middle", BLACK, name);
            self.add(format_args!("<line x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#c8c8c8\"/>\n"));
        }
    }

    /// Draws the band along the client NIC's lifeline.
    fn knowledge(&mut self, story: &Story, bottom: u32) {
        let (mut since, mut colour) = (TOP, GREEN);
        for (index, event) in story.events.iter().enumerate() {
            // The colour changes only at events that change the NIC's knowledge.
            let next = match event.what {
                StoryStep::Arrived { made: PacketResult::Early, .. } => AMBER,
                StoryStep::Arrived {
                    made: PacketResult::Lost | PacketResult::Asked | PacketResult::LostAndAsked | PacketResult::Failed,
                    ..
                } => RED,
                StoryStep::Arrived { made: PacketResult::Found | PacketResult::FoundAtOnce, .. } => GREEN,
                StoryStep::Answered { number: Some(_), .. } => AMBER,
                _ => colour,
            };
            if next != colour {
                let y = TOP + ROW * index as u32 + ROW / 2;
                self.band(since, y, colour);
                (since, colour) = (y, next);
            }
        }
        self.band(since, bottom, colour);
    }

    fn band(&mut self, from: u32, to: u32, colour: &str) {
        let (x, height) = (CLIENT_NIC - BAND / 2, to - from);
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{from}\" width=\"{BAND}\" height=\"{height}\" fill=\"{colour}\" fill-opacity=\"0.45\"/>\n"
        ));
    }

    fn row(&mut self, y: u32, what: StoryStep, which: &str) {
        let colour = match what {
            StoryStep::Arrived { made, .. } if made.is_decrypted() => GREEN,
            StoryStep::Opened { by: Opened::ByNic, .. } => GREEN,
            StoryStep::Opened { by: Opened::InPart, .. } | StoryStep::HeldBack(_) => AMBER,
            StoryStep::Arrived { .. } | StoryStep::Opened { by: Opened::InSoftware, .. } | StoryStep::Lost(_) => RED,
            StoryStep::Posted { rebuilt: Some(_), .. } => BLUE,
            StoryStep::Announced(_)
            | StoryStep::Noted { .. }
            | StoryStep::Asked { .. }
            | StoryStep::Answered { .. } => BLUE,
            StoryStep::Posted { .. } => BLACK,
        };
        self.text(NOTES, y, "start", colour, &in_words(what));
        match what {
            StoryStep::Posted { .. } => {
                self.arrow(SERVER_DRIVER, SERVER_NIC, y, colour);
                self.text(SERVER_NIC + 10, y, "start", colour, which);
            }
            StoryStep::Arrived { .. } => {
                self.arrow(SERVER_NIC, CLIENT_NIC, y, colour);
                self.label(y, colour, which);
            }
            StoryStep::Lost(_) | StoryStep::HeldBack(_) => {
                let (x, above, below) = (WIRE_MIDDLE + 80, y - 5, y + 5);
                self.add(format_args!(
                    "<line x1=\"{SERVER_NIC}\" y1=\"{y}\" x2=\"{x}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n"
                ));
                // A cross marks a loss, a double bar a delay.
                let mark = if matches!(what, StoryStep::Lost(_)) {
                    format!("M{} {above}L{} {below}M{} {below}L{} {above}", x - 5, x + 5, x - 5, x + 5)
                } else {
                    format!("M{x} {above}L{x} {below}M{} {above}L{} {below}", x + 4, x + 4)
                };
                self.add(format_args!("<path d=\"{mark}\" stroke=\"{colour}\" stroke-width=\"2\"/>\n"));
                self.label(y, colour, which);
            }
            StoryStep::Announced(_) | StoryStep::Asked { .. } => {
                self.arrow(CLIENT_NIC, CLIENT_DRIVER, y, colour);
                self.arrow(CLIENT_DRIVER, CLIENT_TLS, y, colour);
                self.text(CLIENT_NIC - 10, y, "end", colour, which);
            }
            StoryStep::Answered { .. } => {
                self.arrow(CLIENT_TLS, CLIENT_DRIVER, y, colour);
                self.arrow(CLIENT_DRIVER, CLIENT_NIC, y, colour);
                self.text(CLIENT_NIC - 10, y, "end", colour, which);
            }
            StoryStep::Noted { .. } | StoryStep::Opened { .. } => {
                self.add(format_args!("<circle cx=\"{CLIENT_TLS}\" cy=\"{y}\" r=\"4.5\" fill=\"{colour}\"/>\n"));
                self.text(CLIENT_TLS - 10, y, "end", colour, which);
            }
        }
    }

    fn arrow(&mut self, from: u32, to: u32, y: u32, colour: &str) {
        let back = if from < to { to - 7 } else { to + 7 };
        let (above, below) = (y - 4, y + 4);
        self.add(format_args!(
            "<line x1=\"{from}\" y1=\"{y}\" x2=\"{back}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n\
             <path d=\"M{to} {y}L{back} {above}V{below}Z\" fill=\"{colour}\"/>\n"
        ));
    }

    /// Writes a label on the arrow of a packet.
    fn label(&mut self, y: u32, colour: &str, text: &str) {
        let (width, top) = (text.len() as u32 * 6 + 6, y - 7);
        let left = WIRE_MIDDLE - width / 2;
        self.add(format_args!("<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"14\" fill=\"#ffffff\"/>\n"));
        self.text(WIRE_MIDDLE, y, "middle", colour, text);
    }

    /// Writes a text that is vertically centred at `y`.
    fn text(&mut self, x: u32, y: u32, anchor: &str, colour: &str, text: &str) {
        let y = y + 4;
        self.add(format_args!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>\n"));
    }

    fn legend(&mut self, bottom: u32) {
        let mut x = SERVER_DRIVER - 20;
        let (y, top) = (bottom + LEGEND / 2, bottom + LEGEND / 2 - 6);
        self.text(x, y, "start", BLACK, "The client's NIC:");
        x += 105;
        for (colour, meaning) in MEANINGS {
            self.add(format_args!(
                "<rect x=\"{x}\" y=\"{top}\" width=\"12\" height=\"12\" fill=\"{colour}\" fill-opacity=\"0.45\"/>\n"
            ));
            self.text(x + 18, y, "start", BLACK, meaning);
            x += 18 + meaning.len() as u32 * 6 + 24;
        }
    }

    fn add(&mut self, what: core::fmt::Arguments<'_>) {
        let _ = self.svg.write_fmt(what);
    }
}

const LIFELINES: [(u32, &str, &str); 5] = [
    (SERVER_DRIVER, "server", "driver"),
    (SERVER_NIC, "server", "NIC"),
    (CLIENT_NIC, "client", "NIC"),
    (CLIENT_DRIVER, "client", "driver"),
    (CLIENT_TLS, "client", "TLS"),
];
const MEANINGS: [(&str, &str); 3] =
    [(GREEN, "in step"), (AMBER, "knows where the next record begins"), (RED, "out of step")];

const WIDTH: u32 = 960;
const TOP: u32 = 52;
const ROW: u32 = 20;
const LEGEND: u32 = 44;
const BAND: u32 = 12;
const TIME: u32 = 50;
const SERVER_DRIVER: u32 = 90;
const SERVER_NIC: u32 = 160;
const CLIENT_NIC: u32 = 400;
const CLIENT_DRIVER: u32 = 465;
const CLIENT_TLS: u32 = 525;
const WIRE_MIDDLE: u32 = (SERVER_NIC + CLIENT_NIC) / 2;
const NOTES: u32 = 545;
const BLACK: &str = "#202020";
const GREY: &str = "#808080";
const GREEN: &str = "#1a7f37";
const AMBER: &str = "#b36b00";
const RED: &str = "#c62828";
const BLUE: &str = "#1f5fbf";
