//! The text format of OpenMetrics 1.0, line by line.
//!
//! Where there are ten thousand backends, there are some 200,000 lines. So a line is written straight to its place,
//! with no allocation of its own, and labels that many metrics have are put into words once ([`Rows`]).

/// What all names begin with.
const PREFIX: &str = "weir_";
/// Whole numbers below are themselves as floats, and are written without an exponent.
const EXACT: u64 = 1 << 53;

/// Things of each of which many metrics have a series, with the labels of these series as they stand in the text.
pub(super) struct Rows<'a, T> {
    /// Each with the place where its labels end, which is where those of the next one begin.
    things: Vec<(&'a T, usize)>,
    labels: String,
}

impl<'a, T> Rows<'a, T> {
    pub fn new<'l, const N: usize>(
        things: impl IntoIterator<Item = (&'a T, [(&'l str, &'l str); N])>,
    ) -> Self {
        let mut rows = Self { things: Vec::new(), labels: String::new() };
        for (thing, labels) in things {
            write_labels(&mut rows.labels, &labels);
            rows.things.push((thing, rows.labels.len()));
        }
        rows
    }

    fn each(&self) -> impl Iterator<Item = (&'a T, &str)> {
        let mut from = 0;
        self.things.iter().map(move |&(thing, to)| {
            let labels = &self.labels[from..to];
            from = to;
            (thing, labels)
        })
    }
}

/// Writes one metric after the other, each with all its series.
pub(super) struct Writer {
    text: String,
}

impl Writer {
    /// Into memory that may have room for it.
    pub fn new(room: String) -> Self {
        Self { text: room }
    }

    /// All that was written.
    pub fn end(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }

    /// A counter with a series for each of these labels.
    pub fn counters<'s, L: AsRef<[(&'s str, &'s str)]>>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) {
        self.metric((name, help), series, |text, labels| write_labels(text, labels.as_ref()));
    }

    /// A gauge with a series for each of these labels.
    pub fn gauges<'s, L: AsRef<[(&'s str, &'s str)]>>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.metric((name, help), series, |text, labels| write_labels(text, labels.as_ref()));
    }

    /// A counter of each thing that has it.
    pub fn counters_of<T>(
        &mut self,
        name: &str,
        help: &str,
        rows: &Rows<'_, T>,
        value: impl Fn(&T) -> Option<u64>,
    ) {
        let series = rows.each().filter_map(|(thing, labels)| Some((labels, value(thing)?)));
        self.metric((name, help), series, |text, labels| text.push_str(labels));
    }

    /// A gauge of each thing that has it.
    pub fn gauges_of<T>(
        &mut self,
        name: &str,
        help: &str,
        rows: &Rows<'_, T>,
        value: impl Fn(&T) -> Option<f64>,
    ) {
        let series = rows.each().filter_map(|(thing, labels)| Some((labels, value(thing)?)));
        self.metric((name, help), series, |text, labels| text.push_str(labels));
    }

    /// A counter with one series.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric((name, help), [((), value)], |_, ()| {});
    }

    /// A gauge with one series.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.metric((name, help), [((), value)], |_, ()| {});
    }

    fn metric<L, V: Value>(
        &mut self,
        (name, help): (&str, &str),
        series: impl IntoIterator<Item = (L, V)>,
        label: impl Fn(&mut String, L),
    ) {
        let lead = [PREFIX, name, V::SUFFIX].concat();
        let mut begun = false;
        for (labels, value) in series {
            // What nothing is known of is not named.
            if !begun {
                self.describe(name, help, V::KIND);
                begun = true;
            }
            self.text.push_str(&lead);
            label(&mut self.text, labels);
            self.text.push(' ');
            value.write(&mut self.text);
            self.text.push('\n');
        }
    }

    fn describe(&mut self, name: &str, help: &str, kind: &str) {
        for (what, words) in [("# HELP ", help), ("# TYPE ", kind)] {
            self.text.extend([what, PREFIX, name, " ", words, "\n"]);
        }
    }
}

/// A number, and what its type says of the metric.
trait Value {
    const KIND: &'static str;
    /// What names of series end with.
    const SUFFIX: &'static str;

    fn write(self, text: &mut String);
}

impl Value for u64 {
    const KIND: &'static str = "counter";
    const SUFFIX: &'static str = "_total";

    fn write(self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(self));
    }
}

impl Value for f64 {
    const KIND: &'static str = "gauge";
    const SUFFIX: &'static str = "";

    fn write(self, text: &mut String) {
        let whole = self as u64;
        // Most are flags and sizes, and their digits are found sooner than those of a float.
        if whole as f64 == self && whole < EXACT && self.is_sign_positive() {
            text.push_str(itoa::Buffer::new().format(whole));
            text.push_str(".0");
        } else {
            text.push_str(dtoa::Buffer::new().format(self));
        }
    }
}

/// Labels in their braces; without labels there are none.
fn write_labels(text: &mut String, labels: &[(&str, &str)]) {
    let mut before = '{';
    for (name, value) in labels {
        text.push(before);
        text.push_str(name);
        text.push_str("=\"");
        write_escaped(text, value);
        text.push('"');
        before = ',';
    }
    if !labels.is_empty() {
        text.push('}');
    }
}

fn write_escaped(text: &mut String, value: &str) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        text.push_str(&rest[..at]);
        text.push_str(match rest.as_bytes()[at] {
            b'\n' => "\\n",
            b'"' => "\\\"",
            _ => "\\\\",
        });
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
    use prometheus_client::metrics::MetricType;
    use prometheus_client::registry::Registry;
    use std::fmt;

    /// Values of labels, with all that is escaped and some that is not.
    const WORDS: [&str; 8] =
        ["", "plain", "\\", "a\"b\"", "two\nlines\n", "\\\\n\"", "carriage\r, λ 🦀", "\n\\λ\""];
    const COUNTS: [u64; 8] = [0, 1, 7, 10, 100, 65_535, 1 << 53, u64::MAX];
    const SIZES: [f64; 20] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        9.0,
        10.0,
        65_535.0,
        1_790_000_000.0,
        9_007_199_254_740_991.0,
        9_007_199_254_740_992.0,
        1e20,
        1e22,
        1.5,
        0.000_312,
        1e-9,
        0.1 + 0.2,
        12_345.678,
        f64::MAX,
        f64::INFINITY,
        f64::NAN,
    ];

    /// The same by another implementation of the format.
    #[derive(Debug)]
    struct Theirs;

    impl Collector for Theirs {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
            let mut metric = encoder.encode_descriptor("words", "Of words", None, counter)?;
            for (word, count) in WORDS.iter().zip(COUNTS) {
                let labels = [("word", *word), ("other", "x")];
                let mut one = metric.encode_family(&labels)?;
                one.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
            let mut metric = encoder.encode_descriptor("size", "Of words", None, gauge)?;
            for (number, size) in SIZES.iter().enumerate() {
                let number = number.to_string();
                let labels = [("n", number.as_str())];
                metric.encode_family(&labels)?.encode_gauge(size)?;
            }
            let mut metric = encoder.encode_descriptor("alone", "Of words", None, gauge)?;
            metric.encode_gauge(&2.5f64)?;
            let mut metric = encoder.encode_descriptor("many", "Of words", None, counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&3u64, None)
        }
    }

    #[test]
    fn the_text_is_that_of_another_implementation() {
        let mut registry = Registry::with_prefix("weir");
        registry.register_collector(Box::new(Theirs));
        let mut theirs = String::new();
        encode(&mut theirs, &registry).expect("into memory");
        let numbers: Vec<String> = (0..SIZES.len()).map(|number| number.to_string()).collect();
        // Labels each time anew, and once for all.
        for shared in [false, true] {
            let mut out = Writer::new(String::new());
            let labelled = |word| [("word", word), ("other", "x")];
            let words = WORDS.into_iter().zip(COUNTS);
            if shared {
                let words: Vec<(&str, u64)> = words.collect();
                let rows = Rows::new(words.iter().map(|one| (one, labelled(one.0))));
                out.counters_of("words", "Of words", &rows, |(_, count)| Some(*count));
                let sizes: Vec<(&String, f64)> = numbers.iter().zip(SIZES).collect();
                let rows = Rows::new(sizes.iter().map(|one| (one, [("n", one.0.as_str())])));
                out.gauges_of("size", "Of words", &rows, |(_, size)| Some(*size));
                out.gauges_of("nothing", "Of words", &rows, |_| None);
            } else {
                out.counters("words", "Of words", words.map(|(word, n)| (labelled(word), n)));
                let sizes = numbers.iter().zip(SIZES);
                out.gauges("size", "Of words", sizes.map(|(n, size)| ([("n", n.as_str())], size)));
                out.gauges("nothing", "Of words", [([("n", "0")], 1.0)].into_iter().take(0));
            }
            out.gauge("alone", "Of words", 2.5);
            out.counter("many", "Of words", 3);
            assert_eq!(out.end(), theirs, "shared labels: {shared}");
        }
        assert!(theirs.contains(r#"weir_words_total{word="\\\\n\"",other="x"} 65535"#), "{theirs}");
    }

    #[test]
    fn whole_numbers_are_written_as_floats() {
        let mut plain = String::new();
        let powers = (0..53).map(|bit| 1u64 << bit);
        for number in powers.flat_map(|power| [power - 1, power, power + 1]) {
            let value = number as f64;
            plain.clear();
            value.write(&mut plain);
            assert_eq!(plain, dtoa::Buffer::new().format(value), "{number}");
            assert_eq!(plain.parse::<f64>().ok(), Some(value), "{number}");
        }
    }
}
