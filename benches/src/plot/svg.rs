//! Elements and text of a picture.

use std::fmt::Write as _;

/// Where text stands in relation to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroke {
    pub(super) colour: &'static str,
    pub(super) width: f64,
    pub(super) dashed: bool,
}

/// A picture in the making. Writing to a string does not fail.
#[derive(Debug)]
pub(super) struct Picture {
    elements: String,
    width: f64,
    height: f64,
}

impl Picture {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { elements: String::new(), width, height }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: Stroke) {
        self.path(&[from, to], stroke);
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let mut data = String::new();
        for (at, (x, y)) in points.iter().enumerate() {
            let _ = write!(data, "{}{x:.1} {y:.1}", if at == 0 { "M" } else { " L" });
        }
        let Stroke { colour, width, dashed } = stroke;
        let dashes = if dashed { r#" stroke-dasharray="6 4""# } else { "" };
        let _ = writeln!(
            self.elements,
            r#"<path d="{data}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>"#
        );
    }

    /// A dot, filled or hollow.
    pub(super) fn dot(&mut self, (x, y): (f64, f64), colour: &str, filled: bool) {
        let fill = if filled { colour } else { "white" };
        let _ = writeln!(
            self.elements,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.2" fill="{fill}" stroke="{colour}" stroke-width="1.4"/>"#
        );
    }

    pub(super) fn frame(&mut self, (x, y): (f64, f64), width: f64, height: f64) {
        let _ = writeln!(
            self.elements,
            r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="none" stroke="#333" stroke-width="1"/>"##
        );
    }

    pub(super) fn text(&mut self, at: (f64, f64), text: &str, anchor: Anchor, size: f64) {
        self.label(at, text, anchor, size, "");
    }

    pub(super) fn bold(&mut self, at: (f64, f64), text: &str, anchor: Anchor, size: f64) {
        self.label(at, text, anchor, size, r#" font-weight="bold""#);
    }

    /// Text that reads upwards.
    pub(super) fn upwards(&mut self, (x, y): (f64, f64), text: &str, size: f64) {
        let turn = format!(r#" transform="rotate(-90 {x:.1} {y:.1})""#);
        self.label((x, y), text, Anchor::Middle, size, &turn);
    }

    fn label(&mut self, at: (f64, f64), text: &str, anchor: Anchor, size: f64, more: &str) {
        let ((x, y), anchor, text) = (at, anchor.name(), escape(text));
        let _ = writeln!(
            self.elements,
            r##"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="#222" text-anchor="{anchor}"{more}>{text}</text>"##
        );
    }

    /// The whole document.
    pub(super) fn finish(self) -> String {
        let Self { elements, width, height } = self;
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif">
<rect width="100%" height="100%" fill="white"/>
{elements}</svg>
"#
        )
    }
}

/// Names come from files, too.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            // Not allowed in XML 1.0, however written.
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_not_markup() {
        assert_eq!(escape("a<b>&c\u{1}"), "a&lt;b&gt;&amp;c\u{fffd}");
    }
}
