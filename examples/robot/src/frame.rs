//! Frames: their shapes, pixel formats and borrowed pixels.

use clap::ValueEnum;

/// The order of samples in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PixelFormat {
    /// One byte per pixel.
    Grey,
    /// Red, green, blue: three bytes per pixel.
    Rgb8,
    /// Y0 U Y1 V: four bytes for two pixels. Only the luma is used.
    Yuyv,
}

impl PixelFormat {
    /// Returns the number of bytes from one pixel to the next.
    #[must_use]
    pub const fn pixel_bytes(self) -> usize {
        match self {
            PixelFormat::Grey => 1,
            PixelFormat::Rgb8 => 3,
            PixelFormat::Yuyv => 2,
        }
    }
}

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

/// Largest allowed width or height.
pub const MAX_SIDE: usize = 16_384;

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let side = |text: &str| text.parse().ok().filter(|n| (1..=MAX_SIDE).contains(n));
        text.split_once('x')
            .and_then(|(width, height)| Some(Size { width: side(width)?, height: side(height)? }))
            .ok_or_else(|| format!("allowed: WIDTHxHEIGHT, both from 1 to {MAX_SIDE}"))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// Defect of one frame. The loop skips the frame and continues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenFrame {
    /// The received data are shorter than one frame.
    #[error("frame: {found} bytes; allowed: {needed}")]
    Short {
        /// Number of bytes received.
        found: usize,
        /// Number of bytes in a frame.
        needed: usize,
    },
    /// The picture could not be decoded.
    #[error("{name}: {reason}")]
    Picture {
        /// Name of the file.
        name: String,
        /// Reason that the decoder reports.
        reason: String,
    },
    /// The camera marked the frame as damaged.
    #[error("frame: marked as damaged by the camera")]
    Damaged,
}

/// The shape and format of every frame of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Width and height of the frame.
    pub size: Size,
    /// Pixel format, which is the order of the samples in memory.
    pub format: PixelFormat,
    /// Number of bytes from the start of one row to the start of the next; at least the number of bytes in a row.
    pub stride: usize,
}

impl Geometry {
    /// Creates a geometry without gaps between rows. A YUYV row with an odd number of pixels ends in the middle of a
    /// pair of pixels.
    #[must_use]
    pub const fn dense(size: Size, format: PixelFormat) -> Geometry {
        Geometry { size, format, stride: size.width * format.pixel_bytes() }
    }

    /// Returns the number of bytes in a frame, without padding after its last row.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let row = self.size.width * self.format.pixel_bytes();
        if self.size.height == 0 { 0 } else { (self.size.height - 1) * self.stride + row }
    }
}

/// A borrowed frame whose data are at least as long as its geometry requires.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    geometry: Geometry,
    data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Creates a frame over `data`.
    ///
    /// # Errors
    /// Returns an error if `data` has fewer bytes than the geometry requires.
    pub fn new(geometry: Geometry, data: &'a [u8]) -> Result<Frame<'a>, BrokenFrame> {
        let needed = geometry.bytes();
        if data.len() < needed {
            return Err(BrokenFrame::Short { found: data.len(), needed });
        }
        Ok(Frame { geometry, data })
    }

    /// Returns the shape and format of the frame.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the bytes of the pixels in row `y`.
    ///
    /// # Panics
    /// Panics if `y` is not below the height of the frame.
    #[must_use]
    pub fn row(&self, y: usize) -> &'a [u8] {
        let row = self.geometry.size.width * self.geometry.format.pixel_bytes();
        &self.data[y * self.geometry.stride..][..row]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        assert_eq!("640x480".parse(), Ok(Size { width: 640, height: 480 }));
        for bad in ["640", "0x4", "4x0", "4x-1", "x", "16385x1", "1x1x1", ""] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_frame_needs_its_bytes_and_no_more() {
        let size = Size { width: 3, height: 2 };
        let geometry = Geometry { stride: 10, ..Geometry::dense(size, PixelFormat::Rgb8) };
        let data: Vec<u8> = (0..19).collect();
        let frame = Frame::new(geometry, &data).unwrap();
        assert_eq!(frame.row(1), &data[10..19]);
        assert!(matches!(
            Frame::new(geometry, &data[1..]),
            Err(BrokenFrame::Short { found: 18, needed: 19 })
        ));
    }
}
