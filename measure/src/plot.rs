//! The latencies as a picture.
//!
//! **Invariant:** the picture is plain SVG without scripts, and every text in it is our own.

use std::fmt::Write;

use crate::report::{Latency, Report};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 60.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];
/// The percentiles that are marked.
const MARKS: [f64; 5] = [0.0, 90.0, 99.0, 99.9, 99.99];
/// Shares beyond this one are drawn at the edge.
const NINES_MAX: f64 = 4.3;

/// Latency by percentile, both axes logarithmic.
pub fn svg(report: &Report) -> String {
    let all = report.latency.iter().flat_map(|latency| &latency.distribution);
    let times: Vec<f64> = all.map(|point| point.ms.max(0.001)).collect();
    let least = times.iter().copied().fold(f64::INFINITY, f64::min).log10().floor();
    let most = times.iter().copied().fold(f64::NEG_INFINITY, f64::max).log10().ceil();
    let (least, most) = if least < most { (least, most) } else { (-1.0, 1.0) };
    let x = |percent: f64| LEFT + nines(percent) / NINES_MAX * (WIDTH - LEFT - RIGHT);
    let height = HEIGHT - TOP - BOTTOM;
    let y = |ms: f64| TOP + height * (1.0 - (ms.max(0.001).log10() - least) / (most - least));
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"25\" font-size=\"16\">From send to handler start, {}</text>\n",
        report.server
    );
    // Writing to a text cannot fail.
    for percent in MARKS {
        let _ = writeln!(
            text,
            "<line x1=\"{0:.1}\" y1=\"{TOP}\" x2=\"{0:.1}\" y2=\"{1:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{percent} %</text>",
            x(percent),
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 20.0
        );
    }
    for power in least as i32..=most as i32 {
        let ms = 10f64.powi(power);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{0:.1}\" x2=\"{1:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{ms} ms</text>",
            y(ms),
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(ms) + 4.0
        );
    }
    for (latency, colour) in report.latency.iter().zip(COLOURS.iter().cycle()) {
        let _ = writeln!(text, "{}", line(latency, colour, &x, &y));
    }
    for (index, (latency, colour)) in report.latency.iter().zip(COLOURS.iter().cycle()).enumerate()
    {
        let (x, y) = (LEFT + 20.0, TOP + 20.0 + 18.0 * index as f64);
        let _ = writeln!(
            text,
            "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{} messages a second</text>",
            latency.rate
        );
    }
    let (x, y) = (LEFT + (WIDTH - LEFT - RIGHT) / 2.0, HEIGHT - 14.0);
    let _ = writeln!(
        text,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">share of messages that took at most this long</text>\n</svg>"
    );
    text
}

fn line(
    latency: &Latency,
    colour: &str,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) -> String {
    let points = latency.distribution.iter();
    let points: Vec<String> =
        points.map(|point| format!("{:.1},{:.1}", x(point.percent), y(point.ms))).collect();
    format!(
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
        points.join(" ")
    )
}

/// How many nines a share has: 0 for 0 %, 1 for 90 %, 2 for 99 %.
fn nines(percent: f64) -> f64 {
    (-(1.0 - percent / 100.0).max(1e-9).log10()).clamp(0.0, NINES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Point;

    fn report(latency: Vec<Latency>) -> Report {
        Report {
            v: 1,
            server: "Redis 7".to_owned(),
            cores: 2,
            rounds: 1,
            payload_bytes: 100,
            throughput: Vec::new(),
            latency,
            failover: Vec::new(),
            recovery: None,
            wake_up: None,
            lock: None,
            memory: None,
        }
    }

    #[test]
    fn every_point_is_inside_the_picture() {
        let points = [(0.0, 0.0), (50.0, 0.3), (99.999, 70.0), (100.0, 900.0)];
        let distribution = points.map(|(percent, ms)| Point { percent, ms }).to_vec();
        let latency = Latency {
            rate: 200,
            messages: 4,
            p50_ms: 0.3,
            p99_ms: 70.0,
            p999_ms: 70.0,
            max_ms: 900.0,
            distribution,
        };
        let text = svg(&report(vec![latency]));
        let points = text.split("points=\"").nth(1).and_then(|rest| rest.split('"').next());
        for point in points.expect("a line").split(' ') {
            let (x, y) = point.split_once(',').expect("a point");
            let (x, y): (f64, f64) = (x.parse().expect("a number"), y.parse().expect("a number"));
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y));
        }
        assert!(text.contains("200 messages a second"));
    }

    #[test]
    fn without_latencies_there_is_still_a_picture() {
        let text = svg(&report(Vec::new()));
        assert!(text.ends_with("</svg>\n") && !text.contains("NaN"));
    }
}
