//! Text that becomes markup: escaped once, here.

use std::fmt::{self, Display, Write};

/// Something that prints as text in HTML and SVG, inside elements and double-quoted attributes alike.
pub(crate) struct Escaped<T>(pub T);

/// `text`, safe inside elements and attributes.
pub(crate) fn escape<T: Display>(text: T) -> Escaped<T> {
    Escaped(text)
}

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Filter(f), "{}", self.0)
    }
}

struct Filter<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Filter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '&' => self.0.write_str("&amp;"),
            '<' => self.0.write_str("&lt;"),
            '>' => self.0.write_str("&gt;"),
            '"' => self.0.write_str("&quot;"),
            '\'' => self.0.write_str("&#39;"),
            // No part of a document may hold them (HTML, "control characters"); a line's end in an attribute is kept.
            c if c.is_control() && c != '\n' => self.0.write_char('\u{fffd}'),
            c => self.0.write_char(c),
        })
    }
}

/// Appends formatted markup to a `String`, which does not fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => {{
        use std::fmt::Write as _;
        let _ = write!($out, $($text)*);
    }};
}
pub(crate) use put;

/// A coordinate, to a tenth of a pixel.
pub(crate) struct Px(pub f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round();
        if tenths % 10.0 == 0.0 { write!(f, "{}", tenths / 10.0) } else { write!(f, "{:.1}", tenths / 10.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_text() {
        assert_eq!(
            escape("<b a='\"'>&\u{7}\n</b>").to_string(),
            "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}\n&lt;/b&gt;"
        );
        assert_eq!(escape(7).to_string(), "7");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([1.0, 1.04, 1.06, -0.01].map(|px| Px(px).to_string()), ["1", "1", "1.1", "-0"]);
    }
}
