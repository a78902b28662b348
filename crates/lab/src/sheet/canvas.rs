//! A picture of pixels: rectangles, discs, lines and text, smooth at their edges, written as PNG.
//!
//! As much as figures need, and no more: a library that draws SVG brings fonts, text shaping and a renderer of its own.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

/// Red, green, blue.
pub(super) type Color = [u8; 3];

/// Which end of a text, or its middle, stands at the given place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How tall text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Small,
    Large,
    Bold,
}

impl Text {
    fn font(self) -> (FontWeight, RasterHeight) {
        match self {
            Self::Small => (FontWeight::Regular, RasterHeight::Size20),
            Self::Large => (FontWeight::Regular, RasterHeight::Size24),
            Self::Bold => (FontWeight::Bold, RasterHeight::Size24),
        }
    }
}

/// Pixels, row by row from the top.
pub(super) struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<Color>,
}

impl Canvas {
    pub(super) fn new(width: usize, height: usize, paper: Color) -> Self {
        Self { width, height, pixels: vec![paper; width * height] }
    }

    /// Mixes a colour into a pixel; `part` is from 0 (nothing) to 1.
    fn mix(&mut self, x: usize, y: usize, color: Color, part: f64) {
        if x >= self.width || y >= self.height || part <= 0.0 {
            return;
        }
        let pixel = &mut self.pixels[y * self.width + x];
        for (there, new) in pixel.iter_mut().zip(color) {
            *there = (f64::from(*there) + (f64::from(new) - f64::from(*there)) * part.min(1.0)).round() as u8;
        }
    }

    /// Pixels that a span may touch.
    fn touched(from: f64, to: f64, most: usize) -> std::ops::Range<usize> {
        (from.floor().max(0.0) as usize)..(to.ceil().max(0.0) as usize).min(most)
    }

    pub(super) fn rect(&mut self, [x, y, width, height]: [f64; 4], color: Color, part: f64) {
        let share =
            |pixel: usize, from: f64, to: f64| (to.min(pixel as f64 + 1.0) - from.max(pixel as f64)).clamp(0.0, 1.0);
        for row in Self::touched(y, y + height, self.height) {
            for column in Self::touched(x, x + width, self.width) {
                let covered = share(column, x, x + width) * share(row, y, y + height);
                self.mix(column, row, color, part * covered);
            }
        }
    }

    pub(super) fn disc(&mut self, [x, y]: [f64; 2], radius: f64, color: Color, part: f64) {
        self.line([x, y], [x, y], 2.0 * radius, color, part);
    }

    /// A line with round ends.
    pub(super) fn line(&mut self, from: [f64; 2], to: [f64; 2], thick: f64, color: Color, part: f64) {
        let radius = thick / 2.0;
        let span = |axis: usize| (from[axis].min(to[axis]) - radius - 1.0, from[axis].max(to[axis]) + radius + 1.0);
        let (columns, rows) = (span(0), span(1));
        let way = [to[0] - from[0], to[1] - from[1]];
        let length2 = way[0] * way[0] + way[1] * way[1];
        for row in Self::touched(rows.0, rows.1, self.height) {
            for column in Self::touched(columns.0, columns.1, self.width) {
                let at = [column as f64 + 0.5 - from[0], row as f64 + 0.5 - from[1]];
                let along =
                    if length2 > 0.0 { ((at[0] * way[0] + at[1] * way[1]) / length2).clamp(0.0, 1.0) } else { 0.0 };
                let distance = (at[0] - along * way[0]).hypot(at[1] - along * way[1]);
                self.mix(column, row, color, part * (radius + 0.5 - distance).clamp(0.0, 1.0));
            }
        }
    }

    /// Text whose middle line is at `y`. What the font lacks is a question mark.
    pub(super) fn text(&mut self, [x, y]: [f64; 2], text: &str, (font, anchor): (Text, Anchor), color: Color) {
        let (weight, height) = font.font();
        let wide = get_raster_width(weight, height);
        let all = wide * text.chars().count();
        let left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - all as f64 / 2.0,
            Anchor::End => x - all as f64,
        };
        let top = (y - height.val() as f64 / 2.0).round().max(0.0) as usize;
        for (number, letter) in text.chars().enumerate() {
            let left = (left.round() + (number * wide) as f64).max(0.0) as usize;
            let letter = if matches!(letter, '\u{2018}' | '\u{2019}') { '\'' } else { letter };
            let Some(raster) = get_raster(letter, weight, height).or_else(|| get_raster('?', weight, height)) else {
                continue;
            };
            for (row, line) in raster.rows().enumerate() {
                for (column, strength) in line.iter().enumerate() {
                    self.mix(left + column, top + row, color, f64::from(*strength) / 255.0);
                }
            }
        }
    }

    /// As a PNG file (ISO 15948): 8 bits a channel, no interlacing, rows unfiltered.
    pub(super) fn png(&self) -> Vec<u8> {
        let mut rows = Vec::with_capacity(self.height * (1 + 3 * self.width));
        for row in self.pixels.chunks(self.width.max(1)) {
            rows.push(0);
            rows.extend(row.iter().flatten());
        }
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut head = Vec::new();
        head.extend((self.width as u32).to_be_bytes());
        head.extend((self.height as u32).to_be_bytes());
        head.extend([8, 2, 0, 0, 0]);
        chunk(&mut file, *b"IHDR", &head);
        chunk(&mut file, *b"IDAT", &miniz_oxide::deflate::compress_to_vec_zlib(&rows, 6));
        chunk(&mut file, *b"IEND", &[]);
        file
    }
}

fn chunk(file: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let from = file.len();
    file.extend(kind);
    file.extend(data);
    let sum = crc32(&file[from..]);
    file.extend(sum.to_be_bytes());
}

/// ISO 15948, annex D.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_png_files_whose_parts_are_whole() {
        // The check value of this sum, and of an empty IEND.
        assert_eq!((crc32(b"123456789"), crc32(b"IEND")), (0xcbf4_3926, 0xae42_6082));
        let mut canvas = Canvas::new(40, 30, [255; 3]);
        canvas.rect([1.0, 1.0, 2.5, 1.0], [0; 3], 1.0);
        assert_eq!([canvas.pixels[41], canvas.pixels[43], canvas.pixels[44]], [[0; 3], [128; 3], [255; 3]]);
        // Beyond the edge nothing is drawn, and nothing breaks.
        canvas.text([39.0, 0.0], "wide \u{4e2d}", (Text::Bold, Anchor::End), [9; 3]);
        canvas.disc([-3.0, 500.0], 4.0, [9; 3], 0.5);
        canvas.line([-5.0, 10.0], [90.0, 10.0], 2.0, [0; 3], 1.0);
        assert_eq!(canvas.pixels[10 * 40 + 20], [0; 3]);
        let file = canvas.png();
        assert!(file.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x28\0\0\0\x1e\x08\x02"));
        assert!(file.ends_with(b"\0\0\0\0IEND\xae\x42\x60\x82"));
    }
}
