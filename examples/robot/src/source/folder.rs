//! A folder of pictures, for replays and tests.

use super::error::SourceError;
use super::next::{Next, Source};
use crate::frame::{BrokenFrame, Frame, Geometry, PixelFormat, Size};
use image::{DynamicImage, ImageReader, Limits};
use std::path::Path;

/// Largest total size of the decoded pixels in bytes.
const LIMIT: usize = 1 << 30;

/// A picture file of the folder, decoded or broken.
enum Picture {
    Decoded { geometry: Geometry, data: Vec<u8> },
    Broken { name: String, reason: String },
}

/// The PNG and JPEG files of a folder, in the order of their names. The files are decoded when the folder is opened, so
/// that reading the next picture neither accesses a disk nor allocates.
pub struct Folder {
    pictures: Vec<Picture>,
    next: usize,
    repeat: bool,
}

impl Folder {
    /// Reads and decodes the pictures of the folder. With `repeat`, the first picture follows the last picture.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read, if it has no readable picture, or if its decoded pixels exceed
    /// 2^30 bytes.
    pub fn open(path: &Path, repeat: bool) -> Result<Folder, SourceError> {
        let fault = |source| SourceError::Folder { path: path.to_owned(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(fault)? {
            let file = entry.map_err(fault)?.path();
            if is_picture(&file) {
                files.push(file);
            }
        }
        files.sort();
        let mut left = LIMIT;
        let mut pictures = Vec::with_capacity(files.len());
        for file in &files {
            pictures.push(match decode(file, left) {
                Ok((geometry, data)) => {
                    let large = || SourceError::Large { path: path.to_owned(), limit: LIMIT };
                    left = left.checked_sub(data.len()).ok_or_else(large)?;
                    Picture::Decoded { geometry, data }
                }
                Err(reason) => {
                    let name = file.file_name().unwrap_or_default().to_string_lossy();
                    Picture::Broken { name: name.escape_default().to_string(), reason }
                }
            });
        }
        if !pictures.iter().any(|picture| matches!(picture, Picture::Decoded { .. })) {
            return Err(SourceError::NoImages { path: path.to_owned(), files: files.len() });
        }
        Ok(Folder { pictures, next: 0, repeat })
    }
}

fn is_picture(path: &Path) -> bool {
    let known = |extension: &std::ffi::OsStr| {
        ["png", "jpg", "jpeg"].iter().any(|known| extension.eq_ignore_ascii_case(known))
    };
    path.extension().is_some_and(known)
}

/// Decodes the picture in `file`: to grey pixels if the picture has no colour, and to RGB pixels if it has colour.
fn decode(file: &Path, limit: usize) -> Result<(Geometry, Vec<u8>), String> {
    let text = |error: image::ImageError| error.to_string();
    let mut reader = ImageReader::open(file)
        .and_then(ImageReader::with_guessed_format)
        .map_err(|error| error.to_string())?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(limit as u64);
    reader.limits(limits);
    let image = reader.decode().map_err(text)?;
    let size = Size { width: image.width() as usize, height: image.height() as usize };
    let (format, pixels) = match image {
        DynamicImage::ImageLuma8(_)
        | DynamicImage::ImageLumaA8(_)
        | DynamicImage::ImageLuma16(_)
        | DynamicImage::ImageLumaA16(_) => (PixelFormat::Grey, image.into_luma8().into_raw()),
        _ => (PixelFormat::Rgb8, image.into_rgb8().into_raw()),
    };
    Ok((Geometry::dense(size, format), pixels))
}

impl Source for Folder {
    fn next(&mut self) -> Result<Next<'_>, SourceError> {
        if self.next == self.pictures.len() {
            if !self.repeat {
                return Ok(Next::End);
            }
            self.next = 0;
        }
        let picture = &self.pictures[self.next];
        self.next += 1;
        Ok(match picture {
            Picture::Decoded { geometry, data } => match Frame::new(*geometry, data) {
                Ok(frame) => Next::Frame(frame),
                Err(why) => Next::Broken(why),
            },
            Picture::Broken { name, reason } => {
                Next::Broken(BrokenFrame::Picture { name: name.clone(), reason: reason.clone() })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the next item of the folder as text.
    fn next(folder: &mut Folder) -> String {
        match folder.next().unwrap() {
            Next::Frame(frame) => format!("{:?} {:?}", frame.geometry().format, frame.row(0)),
            Next::Broken(why) => format!("broken {why}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn pictures_come_in_order_and_a_broken_one_is_told_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        image::GrayImage::from_raw(2, 1, vec![3, 200]).unwrap().save(path("a.png")).unwrap();
        std::fs::write(path("b.png"), b"no picture").unwrap();
        image::RgbImage::from_raw(1, 1, vec![1, 2, 3]).unwrap().save(path("c.PNG")).unwrap();
        image::RgbaImage::from_raw(1, 1, vec![7, 8, 9, 0]).unwrap().save(path("d.png")).unwrap();
        std::fs::write(path("notes.txt"), b"no picture").unwrap();
        let mut folder = Folder::open(dir.path(), true).unwrap();
        for _ in 0..2 {
            assert_eq!(next(&mut folder), "Grey [3, 200]");
            assert!(next(&mut folder).starts_with("broken b.png: "));
            assert_eq!(next(&mut folder), "Rgb8 [1, 2, 3]");
            assert_eq!(next(&mut folder), "Rgb8 [7, 8, 9]");
        }
        let mut folder = Folder::open(dir.path(), false).unwrap();
        (0..4).for_each(|_| drop(next(&mut folder)));
        assert_eq!(next(&mut folder), "End");
        assert_eq!(next(&mut folder), "End");
    }

    #[test]
    fn jpeg_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let grey = image::GrayImage::from_pixel(16, 8, image::Luma([100]));
        grey.save(dir.path().join("a.jpeg")).unwrap();
        let mut folder = Folder::open(dir.path(), false).unwrap();
        let Next::Frame(frame) = folder.next().unwrap() else { panic!("no frame") };
        assert_eq!(frame.geometry().size, Size { width: 16, height: 8 });
        assert!(frame.row(7).iter().all(|x| x.abs_diff(100) <= 2));
    }

    #[test]
    fn folders_without_pictures_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = Folder::open(dir.path(), false).err().unwrap();
        assert!(matches!(error, SourceError::NoImages { files: 0, .. }) && error.is_request());
        std::fs::write(dir.path().join("a.png"), b"").unwrap();
        let error = Folder::open(dir.path(), false).err().unwrap();
        assert!(matches!(error, SourceError::NoImages { files: 1, .. }) && error.is_request());
        let error = Folder::open(&dir.path().join("none"), false).err().unwrap();
        assert!(matches!(error, SourceError::Folder { .. }) && error.is_request());
    }
}
