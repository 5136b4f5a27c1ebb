//! The rates as a picture: plain SVG, with a logarithmic scale.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 60.0;
const ROW: f64 = 40.0;
const BAR: f64 = 14.0;
/// The scale begins here, at a hundred messages a second.
const LEAST: f64 = 2.0;
const MOST: f64 = 7.0;
const IN: &str = "#8fbbd9";
const OUT: &str = "#1f77b4";

/// Bars for each peer: messages in and out per second.
pub(crate) fn svg(title: &str, rows: &[(&str, f64, f64)]) -> String {
    let height = TOP + ROW * rows.len() as f64 + 30.0;
    let x = |rate: f64| {
        let share = (rate.max(1.0).log10() - LEAST).clamp(0.0, MOST - LEAST) / (MOST - LEAST);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">{title}</text>\n\
         <text x=\"10\" y=\"44\"><tspan fill=\"{IN}\">■</tspan> in \
         <tspan fill=\"{OUT}\">■</tspan> out</text>\n"
    );
    // Writing to a text cannot fail.
    for power in LEAST as i32..=MOST as i32 {
        let (at, bottom) = (x(10f64.powi(power)), height - 30.0);
        let _ = writeln!(
            text,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            short(10f64.powi(power))
        );
    }
    for (index, (name, into, out)) in rows.iter().enumerate() {
        let y = TOP + ROW * index as f64 + 5.0;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0,
            y + BAR + 4.0
        );
        for (rate, top, colour) in [(into, y, IN), (out, y + BAR + 1.0, OUT)] {
            let _ = writeln!(
                text,
                "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"11\">{}</text>",
                x(*rate) - LEFT,
                x(*rate) + 5.0,
                top + BAR - 3.0,
                short(*rate)
            );
        }
    }
    text.push_str("</svg>\n");
    text
}

fn short(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.1} M/s", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.0} k/s", rate / 1e3),
        rate if rate >= 1e3 => format!("{:.1} k/s", rate / 1e3),
        rate => format!("{rate:.0}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_its_bars() {
        let text = svg("Rates", &[("one", 3_700_000.0, 12_345.0), ("two", 1_234.0, 20.0)]);
        assert_eq!(text.matches("fill=\"#1f77b4\"/>").count(), 2);
        for label in [">3.7 M/s<", ">12 k/s<", ">1.2 k/s<", ">20/s<"] {
            assert!(text.contains(label), "{label}");
        }
    }
}
