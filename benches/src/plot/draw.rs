//! Where everything stands: panels in rows of two, each with axes, lines and a legend below.

use super::scale::Scale;
use super::series::{Height, Line, Panel, Point};
use super::svg::{Anchor, Picture, Stroke};
use crate::table::size;

/// The frame of a panel, in pixels at 96 to the inch: a column of a paper, once scaled.
const FRAME: (f64, f64) = (400.0, 250.0);

/// Around it: left for the ticks and the title of the axis, and so on.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 40.0;
/// Ticks and the title of the axis; the legend follows.
const BOTTOM: f64 = 56.0;

/// A line of the legend.
const LEGEND: f64 = 18.0;

/// Names longer than this take a line of the legend for themselves.
const SHORT_NAME: usize = 24;

const TEXT: f64 = 12.0;
const TITLE: f64 = 14.0;

const GRID: Stroke = Stroke { colour: "#ddd", width: 0.8, dashed: false };

/// Told apart by those who see colours differently, too (Okabe and Ito, 2008); without its yellow,
/// which fades on white.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];

/// The picture of all panels.
pub(super) fn page(panels: &[Panel]) -> String {
    let columns = panels.len().min(2);
    let rows: Vec<&[Panel]> = panels.chunks(2).collect();
    let row_height = |row: &[Panel]| row.iter().map(height).fold(0.0, f64::max);
    let (width, total) = (LEFT + FRAME.0 + RIGHT, rows.iter().map(|row| row_height(row)).sum());
    let mut picture = Picture::new(width * columns as f64, total);
    let mut y = 0.0;
    for row in rows {
        for (column, panel) in row.iter().enumerate() {
            let at = (width * column as f64 + LEFT, y + TOP);
            Drawing { picture: &mut picture, at }.panel(panel);
        }
        y += row_height(row);
    }
    picture.finish()
}

fn height(panel: &Panel) -> f64 {
    TOP + FRAME.1 + BOTTOM + LEGEND * legend_rows(panel).len() as f64 + 12.0
}

/// Which lines stand in each row of the legend: two, where both have short names.
fn legend_rows(panel: &Panel) -> Vec<Vec<usize>> {
    let is_short = |line: &Line| line.name.chars().count() <= SHORT_NAME;
    let most = if panel.lines.iter().all(is_short) { 2 } else { 1 };
    let numbers: Vec<usize> = (0..panel.lines.len()).collect();
    numbers.chunks(most).map(<[usize]>::to_vec).collect()
}

/// A colour for each line: the floor has that of the line before it, whose floor it is.
fn colours(panel: &Panel) -> Vec<&'static str> {
    let mut next = 0;
    let mut colours: Vec<&'static str> = Vec::new();
    for line in &panel.lines {
        let colour = match colours.last() {
            Some(last) if line.is_floor => *last,
            _ => {
                next += 1;
                COLOURS[(next - 1) % COLOURS.len()]
            }
        };
        colours.push(colour);
    }
    colours
}

/// A panel in the making, its frame's upper left corner at `at`.
struct Drawing<'a> {
    picture: &'a mut Picture,
    at: (f64, f64),
}

impl Drawing<'_> {
    fn panel(&mut self, panel: &Panel) {
        let points = || panel.lines.iter().flat_map(|line| &line.points);
        let x = Scale::octaves(points().map(|point| point.x));
        let y = Scale::decades(points().flat_map(|point| [point.low, point.high]));
        // A panel without points is not made.
        let (Some(x), Some(y)) = (x, y) else { return };
        let (left, top) = self.at;
        self.picture.bold((left + FRAME.0 / 2.0, top - 14.0), &panel.title, Anchor::Middle, TITLE);
        self.axes(x, y, panel.height);
        let colours = colours(panel);
        let count = panel.lines.len() as f64;
        for (number, (line, colour)) in panel.lines.iter().zip(&colours).enumerate() {
            // Ranges at one place stand beside each other.
            let aside = (number as f64 - (count - 1.0) / 2.0) * 5.0;
            self.line(line, x, y, colour, aside);
        }
        self.legend(panel, &colours);
    }

    fn axes(&mut self, x: Scale, y: Scale, height: Height) {
        let (left, top) = self.at;
        let bottom = top + FRAME.1;
        for tick in x.binary_ticks(9) {
            let at = left + x.place(tick) * FRAME.0;
            self.picture.line((at, top), (at, bottom), GRID);
            self.picture.text((at, bottom + 17.0), &bytes(tick), Anchor::Middle, TEXT);
        }
        for tick in y.decade_ticks() {
            let at = bottom - y.place(tick) * FRAME.1;
            self.picture.line((left, at), (left + FRAME.0, at), GRID);
            self.picture.text((left - 7.0, at + 4.0), &figure(tick), Anchor::End, TEXT);
        }
        self.picture.frame((left, top), FRAME.0, FRAME.1);
        let middle = (left + FRAME.0 / 2.0, bottom + 38.0);
        self.picture.text(middle, "block size [bytes]", Anchor::Middle, TEXT);
        let beside = (left - 52.0, top + FRAME.1 / 2.0);
        self.picture.upwards(beside, height.title(), TEXT);
    }

    fn line(&mut self, line: &Line, x: Scale, y: Scale, colour: &'static str, aside: f64) {
        let (left, top) = self.at;
        let bottom = top + FRAME.1;
        let place = |value: f64| bottom - y.place(value) * FRAME.1;
        let across = |point: &Point| left + x.place(point.x) * FRAME.0;
        let thin = Stroke { colour, width: 1.1, dashed: false };
        for point in line.points.iter().filter(|point| point.low < point.high) {
            let at = across(point) + aside;
            let (low, high) = (place(point.low), place(point.high));
            self.picture.line((at, low), (at, high), thin);
            for end in [low, high] {
                self.picture.line((at - 2.5, end), (at + 2.5, end), thin);
            }
        }
        let path: Vec<_> =
            line.points.iter().map(|point| (across(point) + aside, place(point.y))).collect();
        self.picture.path(&path, Stroke { colour, width: 1.8, dashed: line.is_floor });
        for at in path {
            self.picture.dot(at, colour, !line.is_floor);
        }
    }

    fn legend(&mut self, panel: &Panel, colours: &[&'static str]) {
        let (left, top) = self.at;
        for (row, numbers) in (1_u16..).zip(legend_rows(panel)) {
            let y = top + FRAME.1 + BOTTOM + f64::from(row) * LEGEND - 6.0;
            for (column, number) in numbers.into_iter().enumerate() {
                let x = left + column as f64 * FRAME.0 / 2.0;
                let (line, colour) = (&panel.lines[number], colours[number]);
                let stroke = Stroke { colour, width: 1.8, dashed: line.is_floor };
                self.picture.line((x, y), (x + 30.0, y), stroke);
                self.picture.dot((x + 15.0, y), colour, !line.is_floor);
                self.picture.text((x + 38.0, y + 4.0), &line.name, Anchor::Start, TEXT);
            }
        }
    }
}

/// A power of two, in the largest unit that divides it.
fn bytes(tick: f64) -> String {
    // Powers of two are whole, and ticks come from sizes of 64 bits.
    format!("{tick:.0}").parse().map_or_else(|_| String::new(), size)
}

/// A tick without digits that mean nothing.
fn figure(tick: f64) -> String {
    if tick >= 1000.0 {
        format!("{tick:.0}")
    } else {
        let text = format!("{tick:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::{panels, tests::run};
    use super::*;

    #[test]
    fn a_page_has_its_axes_lines_and_legend() {
        let page = page(&panels(&[run(r#","floor_gbps":4.5,"gbps_min":2.0,"gbps_max":4.0"#)]));
        for words in ["kvferry", "floor", "4KiB", "GB/s", "block size", "stroke-dasharray"] {
            assert!(page.contains(words), "{words} is not in {page}");
        }
        assert!(page.starts_with("<?xml") && page.ends_with("</svg>\n"));
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn ticks_have_no_digits_that_mean_nothing() {
        let texts: Vec<String> = [0.05, 1.0, 20.0, 5000.0].map(figure).into();
        assert_eq!(texts, ["0.05", "1", "20", "5000"]);
        assert_eq!(bytes(65_536.0), "64KiB");
    }

    #[test]
    fn a_floor_has_the_colour_of_what_it_is_the_floor_of() {
        let line = |is_floor| Line { name: String::new(), is_floor, points: Vec::new() };
        let lines = [false, true, false, true].map(line).into();
        let panel = Panel { title: String::new(), height: Height::Rate, lines };
        let colours = colours(&panel);
        assert_eq!((colours[0], colours[2]), (colours[1], colours[3]));
        assert_ne!(colours[0], colours[2]);
    }
}
