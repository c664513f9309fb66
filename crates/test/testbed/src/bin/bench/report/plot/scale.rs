//! Scales: values upwards and places along. A scale is linear from zero, so that what looks twice as high is
//! twice as much, or logarithmic where a linear one would press most of its values together.

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

/// More ticks than this do not help.
const TICKS: usize = 8;

/// Ticks end beneath the panel's title, with which their labels would collide.
const TOP: f64 = 0.95;

/// A contender whose values differ by more than this factor along the axis needs a logarithmic scale.
const FACTOR: f64 = 20.0;

/// Values, upwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    pub(super) logarithmic: bool,
}

impl Scale {
    /// Of values. `first` are those of the contender whose course decides: a peer that breaks down is to be
    /// seen at the bottom.
    pub(super) fn of_values(all: &[f64], first: &[f64]) -> Scale {
        let (low, high) = ends(all);
        let (first_low, first_high) = ends(first);
        let logarithmic = first_low > 0.0 && low > 0.0 && first_high > FACTOR * first_low;
        Scale {
            low: if logarithmic { low / 1.2 } else { 0.0 },
            high: if logarithmic {
                high * 1.2
            } else {
                high.max(1e-9) * 1.08
            },
            logarithmic,
        }
    }

    /// Of ratios: twice as good is as far from 1 as half as good.
    pub(super) fn of_ratios(all: &[f64]) -> Scale {
        let positive: Vec<f64> = all.iter().copied().filter(|ratio| *ratio > 0.0).collect();
        let (low, high) = ends(&positive);
        Scale {
            low: (low / 1.1).min(1.0 / 2.2),
            high: (high * 1.1).max(2.2),
            logarithmic: true,
        }
    }

    /// The nearest value that there is.
    pub(super) const fn within(&self, value: f64) -> f64 {
        value.clamp(self.low, self.high)
    }

    pub(super) const fn ends(&self) -> Range<f64> {
        self.low..self.high
    }

    /// How far up a value is.
    fn part(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        }
    }

    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            let steps = [0.02, 0.05, 0.1, 0.2, 0.5].map(|part| part * 10_f64.powf(self.high.log10().ceil()));
            let fits = |step: &f64| self.high / step < TICKS as f64;
            let step = steps.into_iter().find(fits).unwrap_or(self.high);
            return (0..TICKS)
                .map(|number| number as f64 * step)
                .filter(|tick| self.part(*tick) <= TOP)
                .collect();
        }
        let of = |digits: &[f64]| -> Vec<f64> {
            (-12..=12)
                .flat_map(|power: i32| {
                    digits.iter().map(move |digit| {
                        if power < 0 {
                            digit / 10_f64.powi(-power)
                        } else {
                            digit * 10_f64.powi(power)
                        }
                    })
                })
                .filter(|tick| *tick >= self.low && self.part(*tick) <= TOP)
                .collect()
        };
        let [most, more, few] = [
            of(&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]),
            of(&[1.0, 2.0, 5.0]),
            of(&[1.0]),
        ];
        let mut fit = [most, more].into_iter().filter(|ticks| ticks.len() <= TICKS);
        fit.next().unwrap_or(few)
    }
}

/// The least and the greatest.
fn ends(values: &[f64]) -> (f64, f64) {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(0.0, f64::max);
    (low.min(high), high)
}

/// A tick's label.
pub(super) fn label(tick: f64) -> String {
    let text = format!("{tick:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = self.part(self.within(*value));
        // A place in a picture, whose sides are hundreds of pixels.
        from + (f64::from(to - from) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks()
    }

    fn range(&self) -> Range<f64> {
        self.ends()
    }
}

/// The whole way along, in parts.
pub(super) const WIDE: i32 = 10_000;

/// Places of points along the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Along {
    pub(super) places: Vec<i32>,
}

impl Along {
    /// Names: each in the middle of its share.
    pub(super) fn names(count: usize) -> Along {
        let count = i32::try_from(count).unwrap_or(i32::MAX / WIDE).max(1);
        let places = (0..count).map(|point| (2 * point + 1) * WIDE / (2 * count));
        Along {
            places: places.collect(),
        }
    }

    /// Numbers, which have to rise: each where its value is.
    pub(super) fn numbers(values: &[f64]) -> Along {
        let (low, high) = ends(values);
        let logarithmic = low > 0.0 && high >= 16.0 * low;
        let way = |value: f64| if logarithmic { value.ln() } else { value };
        let (from, all) = (way(low), way(high) - way(low));
        let place =
            |value: &f64| (f64::from(WIDE) * 0.84f64.mul_add((way(*value) - from) / all, 0.08)) as i32;
        Along {
            places: values.iter().map(place).collect(),
        }
    }
}

impl Ranged for Along {
    type FormatOption = DefaultFormatting;
    type ValueType = i32;

    fn map(&self, place: &i32, (low, high): (i32, i32)) -> i32 {
        low + (high - low) * place / WIDE
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<i32> {
        self.places.clone()
    }

    fn range(&self) -> Range<i32> {
        0..WIDE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_begin_at_zero_unless_ours_spans_much() {
        let linear = Scale::of_values(&[0.001, 8.0], &[7.0, 8.0]);
        assert!(!linear.logarithmic && linear.ends().start == 0.0);
        assert_eq!(linear.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        let percent = Scale::of_values(&[0.0, 98.0], &[98.0]);
        assert_eq!(percent.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let logarithmic = Scale::of_values(&[0.02, 5.0], &[0.02, 4.0]);
        assert!(logarithmic.logarithmic);
        assert_eq!(logarithmic.ticks(), [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        assert!(!Scale::of_values(&[0.0, 5.0], &[0.0, 5.0]).logarithmic);
        assert!(!Scale::of_values(&[0.0], &[]).logarithmic);
    }

    #[test]
    fn half_as_good_is_as_far_from_one_as_twice_as_good() {
        let scale = Scale::of_ratios(&[0.9, 1.2]);
        assert_eq!(scale.ticks(), [0.5, 0.7, 1.0, 1.5, 2.0]);
        let [half, one, two] = [0.5, 1.0, 2.0].map(|ratio| scale.map(&ratio, (100, 0)));
        assert_eq!((half, one, two), (94, 50, 6));
        let wide = Scale::of_ratios(&[0.0, 0.8, 1488.0]);
        assert_eq!(wide.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(wide.map(&0.0, (100, 0)), 100);
    }

    #[test]
    fn ticks_read_well() {
        assert_eq!(
            [0.0, 0.05, 1.5, 20.0, 300_000.0].map(label),
            ["0", "0.05", "1.5", "20", "300000"]
        );
    }

    #[test]
    fn numbers_are_where_their_values_are() {
        assert_eq!(Along::numbers(&[10.0, 50.0, 90.0]).places, [800, 5000, 9200]);
        assert_eq!(Along::numbers(&[1.0, 10.0, 100.0]).places, [800, 5000, 9200]);
        assert_eq!(Along::names(2).places, [2500, 7500]);
    }
}
