//! What a bench found, written to `target/bench/parts/` for the bench `report`, which prints all of it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One number.
#[derive(Serialize, Deserialize)]
pub struct Row {
    pub bench: String,
    pub scenario: String,
    pub metric: String,
    pub value: f64,
    pub unit: String,
}

/// A number that somebody asked for, and the limit for it.
#[derive(Serialize, Deserialize)]
pub struct Asked {
    #[serde(flatten)]
    pub row: Row,
    pub limit: f64,
    pub at_least: bool,
}

impl Asked {
    pub fn is_met(&self) -> bool {
        if self.at_least { self.row.value >= self.limit } else { self.row.value <= self.limit }
    }
}

/// Everything one bench found.
#[derive(Serialize, Deserialize)]
pub struct Report {
    pub bench: String,
    pub rows: Vec<Row>,
    pub asked: Vec<Asked>,
}

impl Report {
    pub fn new(bench: &str) -> Self {
        Self { bench: bench.into(), rows: Vec::new(), asked: Vec::new() }
    }

    pub fn row(&mut self, scenario: &str, metric: &str, value: f64, unit: &str) {
        let row = self.make(scenario, metric, value, unit);
        eprintln!("  {scenario}: {metric} {value:.2} {unit}");
        self.rows.push(row);
    }

    pub fn at_least(&mut self, limit: f64, scenario: &str, metric: &str, value: f64, unit: &str) {
        let row = self.make(scenario, metric, value, unit);
        self.asked.push(Asked { row, limit, at_least: true });
    }

    pub fn at_most(&mut self, limit: f64, scenario: &str, metric: &str, value: f64, unit: &str) {
        let row = self.make(scenario, metric, value, unit);
        self.asked.push(Asked { row, limit, at_least: false });
    }

    fn make(&self, scenario: &str, metric: &str, value: f64, unit: &str) -> Row {
        let [bench, scenario, metric, unit] = [&self.bench, scenario, metric, unit].map(ToOwned::to_owned);
        Row { bench, scenario, metric, value, unit }
    }

    /// Also when a later bench panics, this one has been kept.
    pub fn write(&self) {
        let folder = folder().join("parts");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(&self.bench).with_extension("json"), serde_json::to_vec(self).unwrap()).unwrap();
    }

    /// What the last run of a bench found, if there was one.
    pub fn read(bench: &str) -> Option<Self> {
        let text = std::fs::read(folder().join("parts").join(bench).with_extension("json")).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench")
}
