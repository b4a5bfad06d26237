//! Published figures with their sources, in data files of this crate, for comparison with our own.

use serde::Deserialize;
use std::collections::BTreeMap;

/// A figure or a table of numbers.
///
/// See [`figures`] for an example.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Identifier used by studies.
    pub id: String,
    /// The title.
    pub title: String,
    /// The publication.
    pub source: String,
    /// The measured system.
    pub setup: String,
    /// The unit of the values.
    pub unit: String,
    /// Reasons why our values may differ.
    pub differs: String,
    /// Values of the horizontal axis, named as in our sweeps.
    pub x: Vec<f64>,
    /// Curves by our name for the mode, each as long as `x`; `nan` where nothing was published.
    pub series: BTreeMap<String, Vec<f64>>,
}

impl Figure {
    /// Returns the value of a series at `x`.
    pub fn value(&self, series: &str, x: f64) -> Option<f64> {
        // Values of the axis were parsed from text, so they are compared with a tolerance.
        let at = self.x.iter().position(|known| (known - x).abs() <= 1e-9 * known.abs().max(1.0))?;
        self.series.get(series)?.get(at).copied().filter(|value| value.is_finite())
    }
}

/// Returns all published figures.
///
/// ```
/// use offload_bench::published;
///
/// let figure = published::figures().into_iter().find(|figure| figure.id == "asplos21-rx-loss-full").unwrap();
/// assert_eq!(figure.value("loss", 0.01), Some(89.0));
/// ```
pub fn figures() -> Vec<Figure> {
    FILES.iter().flat_map(|text| read(text).expect("a test reads every file")).collect()
}

/// Parses the figures in a file's text.
///
/// ```
/// use offload_bench::published::read;
///
/// let figures = read(r#"
///     [[figure]]
///     id = "mine"
///     title = "Goodput by loss"
///     source = "a paper"
///     setup = "a machine"
///     unit = "Gb/s"
///     differs = "the machine"
///     x = [0.0, 0.01]
///     series = { tcp = [90.0, nan] }
/// "#)?;
/// assert_eq!(figures[0].value("tcp", 0.0), Some(90.0));
/// # Ok::<(), offload_bench::published::InvalidFigures>(())
/// ```
///
/// # Errors
/// [`InvalidFigures`] if the text cannot be parsed, or a curve has more or fewer values than its axis.
pub fn read(text: &str) -> Result<Vec<Figure>, InvalidFigures> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct PublishedFile {
        figure: Vec<Figure>,
    }
    let file: PublishedFile = toml::from_str(text).map_err(|error| InvalidFigures::Toml(toml_error(text, &error)))?;
    for figure in &file.figure {
        if let Some((name, _)) = figure.series.iter().find(|(_, values)| values.len() != figure.x.len()) {
            return Err(InvalidFigures::Length { figure: figure.id.clone(), series: name.clone() });
        }
    }
    Ok(file.figure)
}

/// The error of a file of figures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidFigures {
    /// The text is not a valid TOML file of figures.
    #[error("{0}")]
    Toml(String),
    /// A curve does not match its axis.
    #[error("figure `{figure}`: `{series}` must have as many values as `x`")]
    Length {
        /// The figure.
        figure: String,
        /// The curve.
        series: String,
    },
}

/// Returns the position and the message of a TOML error in one line.
pub fn toml_error(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let place = before.map_or(String::new(), |before| format!("line {}: ", 1 + before.matches('\n').count()));
    place + &error.message().lines().collect::<Vec<_>>().join(", ")
}

const FILES: [&str; 5] = [
    include_str!("../published/autonomous-nic-offloads.toml"),
    include_str!("../published/linux-ktls-connectx.toml"),
    include_str!("../published/lookaside.toml"),
    include_str!("../published/secure-data-reservoir.toml"),
    include_str!("../published/xfrm-one-cpu.toml"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_can_be_read_and_names_nothing_twice() {
        let figures = figures();
        for (number, figure) in figures.iter().enumerate() {
            assert!(figures[..number].iter().all(|other| other.id != figure.id), "{} is there twice", figure.id);
            assert!(!figure.x.is_empty() && !figure.series.is_empty() && !figure.source.is_empty());
        }
    }

    #[test]
    fn a_line_that_does_not_fit_its_axis_is_told() {
        let broken = FILES[0].replacen("x = [2048, ", "x = [1024, 2048, ", 1);
        let error = read(&broken).unwrap_err().to_string();
        assert!(error.contains("`asplos21-tx-record-size`") && error.contains("`tls-cpu`"), "{error}");
        assert!(read("[[figure]]\nid = 1\n").unwrap_err().to_string().starts_with("line 2: "));
    }
}
