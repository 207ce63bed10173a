//! Numbers for people.

/// Three significant digits, thousands as K, M, G.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let (divisor, unit) = match size {
        s if s >= 1e9 => (1e9, "G"),
        s if s >= 1e6 => (1e6, "M"),
        s if s >= 1e4 => (1e3, "K"),
        _ => (1.0, ""),
    };
    let scaled = value / divisor;
    let digits = match scaled.abs() {
        0.0 => 0,
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s => (2.0 - s.log10().floor()).clamp(0.0, 8.0) as usize,
    };
    let text = format!("{scaled:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

/// A ratio: two significant digits or three.
pub fn ratio(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 0.095 => format!("{v:.2}"),
        v => short(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (2.345, "2.35"),
            (1024.0, "1024"),
            (16_000_000.0, "16M"),
            (131_072.0, "131K"),
            (0.000_4, "0.0004"),
            (-0.25, "-0.25"),
            (99.99, "100"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!([ratio(1.234), ratio(25.0), ratio(0.01)], ["1.23", "25", "0.01"]);
    }
}
