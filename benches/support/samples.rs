//! Samples and their percentiles, by nearest rank: each is a value that was measured.

use std::time::Duration;

#[derive(Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn push_ms(&mut self, took: Duration) {
        self.push(ms(took));
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `percent` of the values are not larger.
    pub fn percentile(&self, percent: usize) -> f64 {
        assert!(!self.0.is_empty(), "nothing was measured");
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
    }

    pub fn median(&self) -> f64 {
        self.percentile(50)
    }
}

impl Extend<f64> for Samples {
    fn extend<T: IntoIterator<Item = f64>>(&mut self, values: T) {
        self.0.extend(values);
    }
}

pub fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}
