//! Progress of a copy: a bar on a terminal, otherwise a line every ten seconds.

use core::convert::Infallible;
use core::time::Duration;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use offload_reservoir::copy::CopyProgress;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct ProgressDisplay {
    progress: Arc<CopyProgress>,
    began: Instant,
    bar: ProgressBar,
    how: DisplayMode,
}

#[derive(PartialEq)]
enum DisplayMode {
    Bar,
    Lines,
    Silent,
}

impl ProgressDisplay {
    pub(crate) fn new(progress: Arc<CopyProgress>, silent: bool) -> ProgressDisplay {
        let how = match () {
            () if silent => DisplayMode::Silent,
            () if std::io::stderr().is_terminal() => DisplayMode::Bar,
            () => DisplayMode::Lines,
        };
        let target = if how == DisplayMode::Bar { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {msg}") {
            bar.set_style(style);
        }
        ProgressDisplay { progress, began: Instant::now(), bar, how }
    }

    /// Shows the progress until dropped.
    pub(crate) async fn go_on(&self) -> Infallible {
        let every = if self.how == DisplayMode::Bar { Duration::from_millis(500) } else { Duration::from_secs(10) };
        let mut before = self.progress.streams();
        loop {
            tokio::time::sleep(every).await;
            let now = self.progress.streams();
            let text = self.text(&before, &now, every);
            match self.how {
                DisplayMode::Bar => {
                    self.bar.set_length(self.progress.all_bytes());
                    self.bar.set_position(self.progress.bytes() + self.progress.skipped());
                    self.bar.set_message(text);
                }
                DisplayMode::Lines => {
                    let (done, all) = (self.progress.bytes() + self.progress.skipped(), self.progress.all_bytes());
                    offload_console::say!("{} of {}: {text}", HumanBytes(done), HumanBytes(all));
                }
                DisplayMode::Silent => {}
            }
            before = now;
        }
    }

    fn text(&self, before: &[u64], now: &[u64], span: Duration) -> String {
        let gigabits = |bytes: u64, span: Duration| bytes as f64 * 8.0 / span.as_secs_f64().max(1e-9) / 1e9;
        let was = |stream: usize| before.get(stream).copied().unwrap_or(0);
        let rates: Vec<f64> =
            now.iter().enumerate().map(|(stream, bytes)| gigabits(bytes.saturating_sub(was(stream)), span)).collect();
        let elapsed = self.began.elapsed();
        let mean = gigabits(self.progress.bytes(), elapsed);
        let left = self.progress.all_bytes().saturating_sub(self.progress.bytes() + self.progress.skipped());
        let time = if mean > 0.0 { left as f64 * 8.0 / 1e9 / mean } else { 0.0 };
        let each: Vec<String> = rates.iter().take(MAX_SHOWN).map(|rate| format!("{rate:.1}")).collect();
        format!(
            "now {:.2}, mean {mean:.2} Gb/s, streams {}, {} left, file {} of {}: {}",
            rates.iter().sum::<f64>(),
            each.join(" "),
            HumanDuration(Duration::from_secs_f64(time.min(1e9))),
            self.progress.files() + 1,
            self.progress.all_files(),
            self.progress.file().escape_debug(),
        )
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Maximum number of streams with separate rates.
const MAX_SHOWN: usize = 16;
