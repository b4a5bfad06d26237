//! Figures that others published, with their source: data files of this crate, to set ours beside.

use serde::Deserialize;
use std::collections::BTreeMap;

/// A figure or a table of numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// What studies call it.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Where it was published.
    pub source: String,
    /// On what it was measured.
    pub setup: String,
    /// The unit of its values.
    pub unit: String,
    /// Why ours may differ.
    pub differs: String,
    /// Values along the horizontal axis, as our sweeps name them.
    pub x: Vec<f64>,
    /// A line of values each, by our name for it, as long as `x`; `nan` where nothing was published.
    pub series: BTreeMap<String, Vec<f64>>,
}

impl Figure {
    /// The value of a series at `x`.
    pub fn value(&self, series: &str, x: f64) -> Option<f64> {
        let at = self.x.iter().position(|known| (known - x).abs() <= 1e-9 * known.abs().max(1.0))?;
        self.series.get(series)?.get(at).copied().filter(|value| value.is_finite())
    }
}

/// All of them.
///
/// ```
/// use offload_bench::published;
///
/// let figure = published::figures().into_iter().find(|figure| figure.id == "asplos21-rx-loss-full").unwrap();
/// assert_eq!(figure.value("loss", 0.01), Some(89.0));
/// ```
pub fn figures() -> Vec<Figure> {
    FILES.iter().flat_map(|text| parse(text).expect("a test reads every file")).collect()
}

fn parse(text: &str) -> Result<Vec<Figure>, toml::de::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        figure: Vec<Figure>,
    }
    toml::from_str::<File>(text).map(|file| file.figure)
}

const FILES: [&str; 4] = [
    include_str!("../published/autonomous-nic-offloads.toml"),
    include_str!("../published/linux-ktls-connectx.toml"),
    include_str!("../published/secure-data-reservoir.toml"),
    include_str!("../published/xfrm-one-cpu.toml"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_can_be_read_and_every_line_is_as_long_as_its_axis() {
        for text in FILES {
            parse(text).unwrap();
        }
        let figures = figures();
        for (number, figure) in figures.iter().enumerate() {
            assert!(figures[..number].iter().all(|other| other.id != figure.id), "{} is there twice", figure.id);
            assert!(!figure.x.is_empty() && !figure.series.is_empty() && !figure.source.is_empty());
            for (name, values) in &figure.series {
                assert_eq!(values.len(), figure.x.len(), "{}: {name}", figure.id);
            }
        }
    }
}
