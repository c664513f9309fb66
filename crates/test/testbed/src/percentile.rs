//! Percentiles.

/// The least of `sorted` values that at least `part` of all, from 0 to 1, do not exceed (nearest rank); 0 if
/// there is none.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.max(1) - 1)
        .or(sorted.last())
        .map_or(0.0, |&value| value)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=150).map(f64::from).collect();
        let found = [0.0, 0.5, 0.9, 0.99, 0.999, 1.0].map(|part| percentile(&values, part));
        assert_eq!(found, [1.0, 75.0, 135.0, 149.0, 150.0, 150.0]);
        assert_eq!(percentile(&[7.0], 0.5), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
