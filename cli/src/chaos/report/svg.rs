//! The little of SVG that the charts need.

use std::fmt::Write as _;

/// A picture in the making: coordinates in pixels of its own width.
#[derive(Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    content: String,
}

impl Svg {
    /// An empty picture.
    #[must_use]
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, content: String::new() }
    }

    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a String never fails.
        let _infallible = self.content.write_fmt(arguments);
    }

    /// A filled rectangle, with a title that a pointer shows.
    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), title: &str) {
        let title = escape(title);
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{title}</title></rect>",
            width.max(0.0),
            height.max(0.0)
        ));
    }

    /// A line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// A text; `anchor` is start, middle or end.
    pub fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.push(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        ));
    }

    /// A line through points; where one is missing it is broken.
    pub fn path(&mut self, class: &str, points: impl IntoIterator<Item = Option<(f64, f64)>>) {
        let mut steps = String::new();
        let mut is_drawing = false;
        for point in points {
            if let Some((x, y)) = point {
                let _infallible = write!(steps, "{}{x:.1} {y:.1}", if is_drawing { 'L' } else { 'M' });
            }
            is_drawing = point.is_some();
        }
        self.push(format_args!("<path class=\"{class}\" d=\"{steps}\"/>"));
    }

    /// The area between points and a base line.
    pub fn area(&mut self, class: &str, base: f64, points: &[(f64, f64)]) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let mut steps = format!("M{:.1} {base:.1}", first.0);
        for (x, y) in points {
            let _infallible = write!(steps, "L{x:.1} {y:.1}");
        }
        self.push(format_args!("<path class=\"{class}\" d=\"{steps}L{:.1} {base:.1}Z\"/>", last.0));
    }

    /// The finished picture; `label` is read out to who cannot see it.
    #[must_use]
    pub fn finish(self, label: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>\n",
            self.width,
            self.height,
            escape(label),
            self.content
        )
    }
}

/// Text that means nothing to HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
