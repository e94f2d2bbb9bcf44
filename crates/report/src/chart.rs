//! Small SVG line charts: a value over time with its spread, and marks for notable points.
//!
//! A chart is static markup in the colours of the page's style; it needs no script and can be printed.

use std::fmt::Write as _;

use super::html::Escaped;
use super::numbers::digits;

/// A chart of lines over a common axis.
#[derive(Debug, Clone)]
pub struct LineChart<'a> {
    pub title: &'a str,
    pub unit: &'a str,
    /// Labels at the ends of the horizontal axis.
    pub ends: [&'a str; 2],
    pub lines: Vec<Line<'a>>,
}

/// A line; points from left to right.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    pub label: &'a str,
    pub points: Vec<Point>,
}

/// A point of a line. Non-finite points are skipped.
#[derive(Debug, Clone)]
pub struct Point {
    /// Position in a unit shared by all lines, such as seconds.
    pub x: f64,
    pub y: f64,
    /// Smallest and largest of the values that `y` represents.
    pub spread: Option<[f64; 2]>,
    pub mark: Mark,
    /// Text shown at the point.
    pub tooltip: String,
}

/// How a point compares to the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Plain,
    Better,
    Worse,
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 190.0;
/// Margins: left, right, top, bottom.
const MARGIN: [f64; 4] = [62.0, 16.0, 14.0, 28.0];

impl LineChart<'_> {
    /// Returns a `figure` element with the chart and, for several lines, a legend.
    pub fn svg(&self) -> String {
        let Some(plot) = Plot::of(&self.lines) else {
            return format!(
                "<figure class=\"chart\"><figcaption>{}</figcaption><p class=\"missing\">n/a: no points</p></figure>\n",
                Escaped(self.title)
            );
        };
        let [left, right, top, bottom] = MARGIN;
        let mut svg = String::new();
        for y in plot.ticks() {
            let at = plot.y(y);
            write_to(
                &mut svg,
                format_args!(
                    "<line class=\"grid\" x1=\"{left}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                    WIDTH - right,
                    left - 8.0,
                    at + 4.0,
                    Escaped(&digits(y)),
                ),
            );
        }
        for (text, x, anchor) in [
            (self.ends[0], left, "start"),
            (self.ends[1], WIDTH - right, "end"),
        ] {
            write_to(
                &mut svg,
                format_args!(
                    "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>\n",
                    HEIGHT - bottom + 20.0,
                    Escaped(text)
                ),
            );
        }
        let mut legend = String::new();
        for (i, line) in self.lines.iter().enumerate() {
            let colour = i % 9;
            write_to(
                &mut svg,
                format_args!("<g class=\"line k{colour}\">\n{}</g>\n", plot.line(line)),
            );
            write_to(
                &mut legend,
                format_args!("<li class=\"k{colour}\">{}</li>", Escaped(line.label)),
            );
        }
        let legend = match self.lines.len() {
            1 => String::new(),
            _ => format!("<ul class=\"legend\">{legend}</ul>"),
        };
        let title = Escaped(self.title);
        format!(
            "<figure class=\"chart\"><figcaption>{title} <small>{}</small></figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n\
             <line class=\"axis\" x1=\"{left}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>\n\
             <line class=\"axis\" x1=\"{left}\" x2=\"{left}\" y1=\"{top}\" y2=\"{y}\"/>\n{svg}</svg>\n{legend}</figure>\n",
            Escaped(self.unit),
            WIDTH - right,
            y = HEIGHT - bottom,
        )
    }
}

/// The scales of the axes.
struct Plot {
    x: [f64; 2],
    y: [f64; 2],
    step: f64,
}

impl Plot {
    /// Computes the scales; `None` without points. The vertical axis covers all values and spreads and ends at round
    /// numbers. It starts at zero only if zero is near, so that changes of some percent are visible.
    fn of(lines: &[Line]) -> Option<Plot> {
        let points = || lines.iter().flat_map(|line| drawable(line));
        let xs: Vec<f64> = points().map(|point| point.x).collect();
        let ys: Vec<f64> = points()
            .flat_map(|point| {
                [point.y]
                    .into_iter()
                    .chain(point.spread.into_iter().flatten())
            })
            .collect();
        let range = |values: &[f64]| {
            let least = values.iter().copied().reduce(f64::min)?;
            let greatest = values.iter().copied().reduce(f64::max)?;
            Some([least, greatest])
        };
        let [least, greatest] = range(&ys)?;
        // Equal values are drawn in the middle.
        let size = match greatest - least {
            0.0 => least.abs().max(1e-9) * 0.2,
            size => size,
        };
        let step = round_step(size * 1.3 / 4.0);
        let low = ((least - size * 0.15) / step).floor() * step;
        let high = ((greatest + size * 0.15) / step).ceil() * step;
        Some(Plot {
            x: range(&xs)?,
            y: [if least >= 0.0 { low.max(0.0) } else { low }, high],
            step,
        })
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let [low, high] = self.y;
        let step = self.step;
        let n = ((high - low) / step).round() as usize;
        (0..=n.min(16)).map(move |i| low + i as f64 * step)
    }

    fn x(&self, x: f64) -> f64 {
        let [left, right, ..] = MARGIN;
        let [low, high] = self.x;
        match high > low {
            true => left + 8.0 + (x - low) / (high - low) * (WIDTH - left - right - 16.0),
            false => (left + WIDTH - right) / 2.0,
        }
    }

    fn y(&self, y: f64) -> f64 {
        let [_, _, top, bottom] = MARGIN;
        let [low, high] = self.y;
        HEIGHT - bottom - (y - low) / (high - low) * (HEIGHT - top - bottom)
    }

    fn line(&self, line: &Line) -> String {
        let mut path = String::new();
        let mut marks = String::new();
        for point in drawable(line) {
            let (x, y) = (self.x(point.x), self.y(point.y));
            let command = if path.is_empty() { 'M' } else { 'L' };
            write_to(&mut path, format_args!("{command}{x:.1} {y:.1}"));
            if let Some([least, greatest]) = point.spread {
                write_to(
                    &mut marks,
                    format_args!(
                        "<line class=\"spread\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                        self.y(least),
                        self.y(greatest)
                    ),
                );
            }
            let tooltip = Escaped(&point.tooltip);
            // A different shape in addition to the colour.
            match point.mark {
                Mark::Plain => write_to(
                    &mut marks,
                    format_args!(
                        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{tooltip}</title></circle>\n"
                    ),
                ),
                Mark::Better | Mark::Worse => {
                    let (class, tip) = match point.mark {
                        Mark::Worse => ("worse", 7.0),
                        _ => ("better", -7.0),
                    };
                    write_to(
                        &mut marks,
                        format_args!(
                            "<path class=\"{class}\" d=\"M{:.1} {:.1}h14l-7 {}z\"><title>{tooltip}</title></path>\n",
                            x - 7.0,
                            y - tip / 2.0,
                            tip * 1.7
                        ),
                    );
                }
            }
        }
        format!("<path class=\"path\" d=\"{path}\"/>\n{marks}")
    }
}

fn drawable<'a>(line: &'a Line) -> impl Iterator<Item = &'a Point> {
    let spread_is_finite = |point: &Point| {
        point
            .spread
            .is_none_or(|spread| spread.iter().all(|x| x.is_finite()))
    };
    line.points
        .iter()
        .filter(move |point| point.x.is_finite() && point.y.is_finite() && spread_is_finite(point))
}

/// Returns the smallest of 1, 2, 5, 10, 20, ... and their tenths that is at least `size`.
fn round_step(size: f64) -> f64 {
    let power = 10f64.powf(size.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= size)
        .unwrap_or(10.0 * power)
}

fn write_to(text: &mut String, args: std::fmt::Arguments<'_>) {
    text.write_fmt(args)
        .expect("writing to a String never fails");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(x: f64, y: f64, mark: Mark) -> Point {
        Point {
            x,
            y,
            spread: Some([y - 1.0, y + 1.0]),
            mark,
            tooltip: format!("<{y}>"),
        }
    }

    fn chart(points: Vec<Point>) -> String {
        let line = Line {
            label: "a & b",
            points,
        };
        LineChart {
            title: "decode <tg64>",
            unit: "tok/s",
            ends: ["May", "June"],
            lines: vec![line.clone(), line],
        }
        .svg()
    }

    #[test]
    fn draws_points_and_marks() {
        let svg = chart(vec![
            point(0.0, 20.0, Mark::Plain),
            point(1.0, 25.0, Mark::Better),
            point(2.0, 18.0, Mark::Worse),
            point(3.0, f64::NAN, Mark::Plain),
        ]);
        let count = |part: &str| svg.matches(part).count();
        assert_eq!(
            (
                count("<circle"),
                count("class=\"better\""),
                count("class=\"worse\"")
            ),
            (2, 2, 2)
        );
        assert_eq!(
            (
                count("class=\"spread\""),
                count("&lt;25&gt;"),
                count("a &amp; b")
            ),
            (6, 2, 2)
        );
        assert!(svg.contains("aria-label=\"decode &lt;tg64&gt;\"") && !svg.contains("NaN"));
    }

    #[test]
    fn all_positions_are_finite() {
        for ys in [
            vec![],
            vec![0.0],
            vec![5.0, 5.0],
            vec![-1.0, 1.0],
            vec![1e-12, 1e-12],
            vec![1e300, 2.0],
            vec![f64::INFINITY],
        ] {
            let points = ys
                .iter()
                .enumerate()
                .map(|(x, y)| point(x as f64, *y, Mark::Plain))
                .collect();
            let svg = chart(points);
            assert!(
                !svg.contains("NaN") && !svg.contains("inf"),
                "{ys:?}: {svg}"
            );
        }
    }

    #[test]
    fn axis_ends_at_round_numbers() {
        for (size, want) in [
            (0.9, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (3.0, 5.0),
            (70.0, 100.0),
            (0.03, 0.05),
        ] {
            let step = round_step(size);
            assert!((step - want).abs() < 1e-9 * want, "{size}: {step}");
        }
    }
}
