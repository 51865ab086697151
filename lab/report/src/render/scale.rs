//! Maps values to positions on an axis, and chooses the ticks of the axis.

/// Maps values to positions between two ends. The scale is logarithmic when the largest value is at
/// least ten times the smallest.
pub(crate) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

/// Limits of the values of a scale. Beyond these limits powers of ten become zero or infinite, and
/// the loop over the ticks would not end.
const MIN_VALUE: f64 = 1e-18;
const MAX_VALUE: f64 = 1e18;

impl Scale {
    /// A scale on which all positive `values` fit, from the position `from` to the position `to`.
    pub(crate) fn from_values(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            let value = value.clamp(MIN_VALUE, MAX_VALUE);
            low = low.min(value);
            high = high.max(value);
        }
        if !low.is_finite() {
            (low, high) = (1.0, 10.0);
        }
        let log = high / low >= 10.0;
        if log {
            low = 10_f64.powf((low.log10() * 2.0).floor() / 2.0);
            high = 10_f64.powf((high.log10() * 2.0).ceil() / 2.0);
        } else {
            (low, high) = (0.0, high * 1.1);
        }
        Self {
            low,
            high,
            from,
            to,
            log,
        }
    }

    /// The position of a value. A value outside the scale is moved to the nearer end.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low).log10() - self.low.log10())
                / (self.high.log10() - self.low.log10())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    /// Values for the ticks: powers of ten on a logarithmic scale, multiples of a round step on a
    /// linear scale. There are about `most` ticks.
    pub(crate) fn ticks(&self, most: usize) -> Vec<f64> {
        if self.log {
            let mut all = Vec::new();
            let mut tick = 10_f64.powf(self.low.log10().ceil() - 1.0);
            while tick <= self.high * 1.001 {
                if tick >= self.low * 0.999 {
                    all.push(tick);
                }
                tick *= 10.0;
            }
            let each = all.len().div_ceil(most.max(1)).max(1);
            return all.into_iter().step_by(each).collect();
        }
        let rough = self.high / float(most.max(1));
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let mut ticks = vec![0.0];
        let mut next = step;
        while next <= self.high {
            ticks.push(next);
            next += step;
        }
        ticks
    }
}

/// A small count as a coordinate.
#[expect(clippy::cast_precision_loss, reason = "counts of rows and steps")]
pub(crate) fn float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_logarithmic_from_a_factor_of_ten() {
        let near = Scale::from_values([20.0, 80.0].into_iter(), 0.0, 100.0);
        assert!(!near.log);
        assert_eq!(near.ticks(4), [0.0, 50.0]);
        assert!((near.position(44.0) - 50.0).abs() < 1e-9);
        let far = Scale::from_values([2.0, 4_000.0].into_iter(), 0.0, 100.0);
        assert!(far.log);
        assert_eq!(far.ticks(4), [1.0, 100.0, 10_000.0]);
    }

    #[test]
    fn the_number_of_ticks_is_bounded_for_extreme_values() {
        for values in [
            [5e-324, 1.0],
            [1.0, f64::MAX],
            [5e-324, f64::MAX],
            [5e-324; 2],
        ] {
            let ticks = Scale::from_values(values.into_iter(), 0.0, 100.0).ticks(4);
            assert!((1..10).contains(&ticks.len()), "{values:?}: {ticks:?}");
        }
    }

    #[test]
    fn a_scale_without_values_is_finite() {
        let scale = Scale::from_values(std::iter::empty(), 0.0, 100.0);
        assert!(scale.position(5.0).is_finite());
    }
}
