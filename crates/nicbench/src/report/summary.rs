//! The first screen of the page: the saving by offload, in three sentences and two plots.
//!
//! The screen is about the first study that compares TLS in software with TLS by the NIC, and about its first two
//! fields. A page without such a study has no first screen.

use super::page::short;
use super::{Curves, StudyRows, label, plot};

/// Returns three sentences and two plots as HTML, or an empty text if no study compares TLS in software with TLS by the
/// NIC.
pub(crate) fn first_screen(studies: &[StudyRows<'_>]) -> String {
    let compared = |study: &&StudyRows<'_>| {
        let fields = study.plot.y.iter().take(2);
        // Both fields must be comparable, because the screen has room for exactly two plots.
        fields.filter(|field| Saving::between_curves(&Curves::from_study(study, field)).is_some()).count() == 2
    };
    let Some(study) = studies.iter().find(compared) else { return String::new() };
    let runs: usize = studies.iter().map(|study| study.rows.len()).sum();
    let plural = if studies.len() == 1 { "study" } else { "studies" };
    let mut sentences = vec![format!(
        "This page compares {runs} runs of {} {plural}, in which hosts did the work themselves or handed it to an emulated NIC.",
        studies.len()
    )];
    let mut figures = String::new();
    for field in study.plot.y.iter().take(2) {
        let curves = Curves::from_study(study, field);
        sentences.extend(Saving::between_curves(&curves).map(|saving| saving.sentence(&curves)));
        if let Ok(svg) = plot::svg(&curves, &[], Some(&label::field(field))) {
            figures += &format!("<figure>{svg}</figure>\n");
        }
    }
    format!("<p class=\"lead\">{}</p>\n<div class=\"first\">\n{figures}</div>\n", sentences.join(" "))
}

/// The values of a field at the last position of the axis.
struct Saving {
    plain: Option<f64>,
    software: f64,
    nic: f64,
}

impl Saving {
    fn between_curves(curves: &Curves) -> Option<Saving> {
        let last = |name: &str| {
            let line = curves.lines.iter().find(|line| line.name == name)?;
            line.values.last().copied().flatten().map(|value| value.median)
        };
        Some(Saving { plain: last("tcp"), software: last("tls-cpu")?, nic: last("tls-nic")? })
    }

    fn sentence(&self, curves: &Curves) -> String {
        let (what, option) = (label::field(&curves.field), label::option(&curves.x_name));
        let at = curves.x.last().map_or(String::new(), |x| format!(" ({option}: {x})"));
        let plain = self.plain.map_or(String::new(), |plain| format!(", where plain TCP takes {}", short(plain)));
        // The minimum keeps a NIC cost of zero from dividing by zero.
        let ratio = self.software.max(self.nic) / self.software.min(self.nic).max(f64::MIN_POSITIVE);
        let word = if self.nic <= self.software { "less" } else { "more" };
        format!(
            "The {what}, is {} with TLS in software and {} with TLS by the NIC{plain}{at}: {ratio:.1} times {word}.",
            short(self.software),
            short(self.nic)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::studies;
    use crate::results::{ResultRow, read_rows};

    fn rows(modes: &[(&str, f64)]) -> Vec<ResultRow> {
        let row = |mode: &str, ns: f64| {
            serde_json::json!({
                "study": "a", "title": "", "plot": { "x": "record-size", "series": "mode",
                    "y": ["tx_host_ns_per_byte.total", "rx_host_ns_per_byte.total"] },
                "settings": { "record-size": 16384, "mode": mode }, "arguments": [], "seed": 1, "clock": "virtual",
                "version": "0", "machine": { "processor": "", "cores": 1, "system": "" },
                "run": { "tx_host_ns_per_byte": { "total": ns }, "rx_host_ns_per_byte": { "total": 2.0 * ns } }
            })
            .to_string()
                + "\n"
        };
        read_rows(&modes.iter().map(|(mode, ns)| row(mode, *ns)).collect::<String>()).unwrap().rows
    }

    #[test]
    fn first_screen_has_three_sentences_and_two_plots() {
        let rows = rows(&[("tcp", 0.05), ("tls-cpu", 0.25), ("tls-nic", 0.0625)]);
        let screen = first_screen(&studies(&rows));
        assert_eq!(screen.matches("<svg").count(), 2);
        assert!(screen.contains(
            "The CPU time of the sending host, ns a byte, is 0.25 with TLS in software and 0.0625 with TLS by the NIC, \
             where plain TCP takes 0.05 (content of a TLS record, bytes: 16384): 4.0 times less."
        ), "{screen}");
        assert!(screen.contains("receiving host, ns a byte, is 0.5 ") && screen.contains("compares 3 runs of 1 study"));
    }

    #[test]
    fn without_a_comparison_there_is_no_first_screen() {
        assert_eq!(first_screen(&studies(&rows(&[("tcp", 0.05), ("tls-nic", 0.06)]))), "");
    }

    #[test]
    fn without_studies_there_is_no_first_screen() {
        assert_eq!(first_screen(&[]), "");
    }
}
