//! A V4L2 camera.

use super::error::SourceError;
use super::next::{Next, Source};
use super::queue::{Feed, Keep, Queue};
use crate::frame::{BrokenFrame, Geometry, MAX_SIDE, PixelFormat, Size};
use linuxvideo::format::{PixFormat, PixelFormat as FourCc};
use linuxvideo::stream::ReadStream;
use linuxvideo::{Device, Fract};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// A camera, as a source that delivers the newest frame. If several frames arrive within one period of the loop, only
/// the last frame is kept.
pub struct Camera(Queue);

impl Camera {
    /// Starts the camera `path`, for instance `/dev/video0`, with frames of `size` in `format`. If the camera's frame
    /// rate can be set, it is set to `rate` frames per second.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened or does not support the requested mode, or if the system refuses
    /// memory or a thread.
    pub fn open(
        path: &Path,
        size: Size,
        format: PixelFormat,
        rate: f64,
        patience: Duration,
    ) -> Result<Camera, SourceError> {
        let fault = |source| SourceError::Camera { path: path.to_owned(), source };
        let device = Device::open(path).map_err(fault)?;
        // Both sides are at most MAX_SIDE (see `Size`).
        let side = |n: usize| u32::try_from(n.min(MAX_SIDE)).unwrap_or(u32::MAX);
        let wanted = PixFormat::new(side(size.width), side(size.height), code(format));
        let device = device.video_capture(wanted).map_err(fault)?;
        let got = device.format();
        let same = got.width() == side(size.width) && got.height() == side(size.height);
        if !same || got.pixel_format() != code(format) {
            let name = |code: FourCc| String::from_utf8_lossy(&code.as_fourcc()).into_owned();
            return Err(SourceError::Mode {
                path: path.to_owned(),
                asked: format!("{size} {}", name(code(format))),
                offered: format!("{}x{} {}", got.width(), got.height(), name(got.pixel_format())),
            });
        }
        let dense = Geometry::dense(size, format);
        let geometry = Geometry { stride: dense.stride.max(got.bytes_per_line() as usize), ..dense };
        // Many cameras have only one rate. The denominator must not be zero.
        let interval = Fract::new(1000, ((rate * 1000.0) as u32).max(1));
        if let Err(error) = device.set_frame_interval(interval) {
            log::info!("camera: {}: keeps its own rate: {error}", path.display());
        }
        let stream = device.into_stream().map_err(fault)?;
        let read = move |feed| copy(&feed, stream);
        Ok(Camera(Queue::start(geometry, Keep::Newest, Some(patience), read)?))
    }
}

fn code(format: PixelFormat) -> FourCc {
    match format {
        PixelFormat::Grey => FourCc::from_fourcc(*b"GREY"),
        PixelFormat::Rgb8 => FourCc::RGB3,
        PixelFormat::Yuyv => FourCc::YUYV,
    }
}

/// Copies frames from `stream` to the queue until the camera fails or the loop stops.
fn copy(feed: &Feed, mut stream: ReadStream) {
    while let Some(mut buffer) = feed.take() {
        let needed = buffer.len();
        let got = loop {
            let got = stream.dequeue(|view| {
                let bytes = view.len().min(needed);
                buffer[..bytes].copy_from_slice(&view[..bytes]);
                Ok((bytes, view.is_error()))
            });
            match got {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                got => break got,
            }
        };
        match got {
            Ok((_, true)) => feed.broken(buffer, BrokenFrame::Damaged),
            Ok((found, false)) if found < needed => {
                feed.broken(buffer, BrokenFrame::Short { found, needed });
            }
            Ok(_) => feed.frame(buffer),
            Err(error) => return feed.end(Err(SourceError::Lost(error))),
        }
    }
}

impl Source for Camera {
    fn next(&mut self) -> Result<Next<'_>, SourceError> {
        self.0.next()
    }

    fn replaced(&self) -> u64 {
        self.0.replaced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_camera_is_refused() {
        let size = Size { width: 640, height: 480 };
        for path in ["/dev/null", "/dev/no-such-camera", "/"] {
            let camera = Camera::open(Path::new(path), size, PixelFormat::Yuyv, 30.0, Duration::from_secs(1));
            let error = camera.err().unwrap();
            assert!(error.is_request() && error.to_string().contains(path), "{error}");
        }
    }
}
