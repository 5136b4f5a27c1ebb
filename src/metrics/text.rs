//! [`Text`]: numbers in the text format of Prometheus.
//!
//! **Invariant:** each metric has one type and one help, and all its samples stand together. Whatever a label holds, the
//! text can be read.

use std::fmt::Write;

use crate::meter::{BOUNDS_US, Histogram};

/// A page of metrics that is being written.
pub(super) struct Text {
    page: String,
    fleet: String,
}

/// Labels, beside the one that names the fleet.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text {
    pub(super) fn new(fleet: &str) -> Text {
        Text { page: String::new(), fleet: escaped(fleet) }
    }

    pub(super) fn into_page(self) -> String {
        self.page
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.page, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, more: Option<(&str, &str)>, value: f64) {
        let _ = write!(self.page, "{name}{{fleet=\"{}\"", self.fleet);
        for (label, text) in labels.iter().copied().chain(more) {
            let _ = write!(self.page, ",{label}=\"{}\"", escaped(text));
        }
        let _ = writeln!(self.page, "}} {value}");
    }

    /// A number that only grows.
    pub(super) fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, u64)>,
    ) {
        self.head(name, "counter", help);
        for (labels, value) in samples {
            self.sample(name, &labels, None, value as f64);
        }
    }

    /// A number that goes up and down.
    pub(super) fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, f64)>,
    ) {
        self.head(name, "gauge", help);
        for (labels, value) in samples {
            self.sample(name, &labels, None, value);
        }
    }

    /// Durations.
    pub(super) fn histogram<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'a str, &'a str)>, &'a Histogram)>,
    ) {
        self.head(name, "histogram", help);
        for (labels, histogram) in samples {
            let (counts, sum) = histogram.read();
            let (bucket, mut below) = (format!("{name}_bucket"), 0);
            for (count, bound) in counts.iter().zip(BOUNDS_US) {
                below += count;
                let bound = (bound as f64 / 1e6).to_string();
                self.sample(&bucket, &labels, Some(("le", &bound)), below as f64);
            }
            let all = counts.iter().sum::<u64>() as f64;
            self.sample(&bucket, &labels, Some(("le", "+Inf")), all);
            self.sample(&format!("{name}_sum"), &labels, None, sum);
            self.sample(&format!("{name}_count"), &labels, None, all);
        }
    }
}

/// Several pages as one: a metric that is on more than one of them has one head.
pub(super) fn joined(pages: Vec<String>) -> String {
    let mut metrics: Vec<(String, String)> = Vec::new();
    for page in pages {
        for metric in page
            .split_inclusive('\n')
            .collect::<Vec<_>>()
            .chunk_by(|_, next| !next.starts_with("# HELP "))
        {
            let heads = metric.iter().take_while(|line| line.starts_with('#')).count();
            let (head, samples) = (metric[..heads].concat(), metric[heads..].concat());
            match metrics.iter_mut().find(|(known, _)| *known == head) {
                Some((_, known)) => known.push_str(&samples),
                None => metrics.push((head, samples)),
            }
        }
    }
    metrics.into_iter().map(|(head, samples)| head + &samples).collect()
}

/// The text of a label, as the format wants it. Control characters are of no use to anybody.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(200) {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_metric_of_two_pages_has_one_head() {
        let page = |fleet: &str, more: bool| {
            let mut text = Text::new(fleet);
            text.gauge("a", "A.", [(vec![], 1.0)]);
            text.gauge("b", "B.", [(vec![], 2.0), (vec![("lane", "low")], 3.0)]);
            if more {
                text.gauge("c", "C.", [(vec![], 4.0)]);
            }
            text.into_page()
        };
        let both = joined(vec![page("x", false), page("y", true)]);
        let lines: Vec<&str> = both.lines().filter(|line| !line.contains("TYPE")).collect();
        assert_eq!(
            lines,
            [
                "# HELP a A.",
                "a{fleet=\"x\"} 1",
                "a{fleet=\"y\"} 1",
                "# HELP b B.",
                "b{fleet=\"x\"} 2",
                "b{fleet=\"x\",lane=\"low\"} 3",
                "b{fleet=\"y\"} 2",
                "b{fleet=\"y\",lane=\"low\"} 3",
                "# HELP c C.",
                "c{fleet=\"y\"} 4",
            ]
        );
    }

    #[test]
    fn buckets_are_sums_and_labels_are_harmless() {
        let histogram = Histogram::default();
        for ms in [1, 2, 7_200_000] {
            histogram.add(Duration::from_millis(ms));
        }
        let mut text = Text::new("a\"b");
        text.histogram("x_seconds", "Help.", [(vec![("kind", "a\nb\x1b\\")], &histogram)]);
        let page = text.into_page();
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[..2], ["# HELP x_seconds Help.", "# TYPE x_seconds histogram"]);
        let labels = r#"fleet="a\"b",kind="a\nb?\\""#;
        assert_eq!(lines[4], format!("x_seconds_bucket{{{labels},le=\"0.001\"}} 1"));
        assert_eq!(lines[5], format!("x_seconds_bucket{{{labels},le=\"0.005\"}} 2"));
        assert_eq!(lines[17], format!("x_seconds_bucket{{{labels},le=\"+Inf\"}} 3"));
        assert_eq!(lines[18], format!("x_seconds_sum{{{labels}}} 7200.003"));
        assert_eq!(lines[19], format!("x_seconds_count{{{labels}}} 3"));
    }
}
