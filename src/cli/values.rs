//! Values that several commands take.

use std::time::Duration;

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds from 0.1 to 3600".to_owned()),
    }
}
