//! The next packet number of each path of a connection.
//!
//! Invariant: at most [`PathNumbers::MAX`] paths are kept, so that the context fits into the NIC's memory. The least
//! recently used path makes room.

use nic_engine::{ImageReader, ImageWriter};
use smallvec::SmallVec;

/// The paths of a connection in one direction, most recently used last.
#[derive(Debug, Default)]
pub(super) struct PathNumbers(SmallVec<[Path; PathNumbers::MAX]>);

#[derive(Clone, Copy, Debug)]
struct Path {
    id: u32,
    /// Lowest number above all numbers sealed or opened so far.
    next: u64,
}

impl PathNumbers {
    /// Maximum number of paths, 12 bytes each.
    pub(super) const MAX: usize = 16;

    /// Returns the lowest unused number of a path; `None` if the path is unknown.
    pub(super) fn next(&self, path: u32) -> Option<u64> {
        // Searched from the end, because packets tend to stay on the last path.
        self.0.iter().rev().find(|known| known.id == path).map(|known| known.next)
    }

    /// Marks a number as used.
    pub(super) fn use_up(&mut self, path: u32, number: u64) {
        let next = self.next(path).unwrap_or(0).max(number + 1);
        match self.0.last_mut() {
            Some(last) if last.id == path => last.next = next,
            _ => self.put(Path { id: path, next }),
        }
    }

    /// Records the host's knowledge of a path. The device's own number applies if it is higher.
    pub(super) fn learn(&mut self, path: u32, largest: Option<u64>) {
        let told = largest.map_or(0, |largest| largest + 1);
        self.put(Path { id: path, next: self.next(path).unwrap_or(0).max(told) });
    }

    pub(super) fn forget(&mut self, path: u32) {
        self.0.retain(|known| known.id != path);
    }

    pub(super) fn save(&self, image: &mut ImageWriter<'_>) {
        image.put_u8(self.0.len() as u8);
        for path in &self.0 {
            image.put_u32(path.id);
            image.put_u64(path.next);
        }
    }

    pub(super) fn load(image: &mut ImageReader<'_>) -> Option<PathNumbers> {
        let count = image.take_u8()?;
        (0..count)
            .map(|_| Some(Path { id: image.take_u32()?, next: image.take_u64()? }))
            .collect::<Option<_>>()
            .map(PathNumbers)
    }

    fn put(&mut self, path: Path) {
        self.forget(path.id);
        // The front is the least recently used path.
        if self.0.len() == PathNumbers::MAX {
            self.0.remove(0);
        }
        self.0.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic_engine::ContextImage;

    #[test]
    fn the_least_recently_used_path_makes_room_in_the_image() {
        let mut paths = PathNumbers::default();
        for path in 0..PathNumbers::MAX as u32 {
            paths.use_up(path, u64::from(path) << 40);
        }
        paths.use_up(0, 5);
        assert_eq!(paths.next(0), Some(6));
        paths.use_up(0, 3);
        assert_eq!(paths.next(0), Some(6), "numbers never decrease");
        paths.learn(99, Some(7));
        assert_eq!((paths.next(1), paths.next(2)), (None, Some((2 << 40) + 1)));
        paths.learn(99, None);
        assert_eq!(paths.next(99), Some(8));
        let image = ContextImage::build(|image| {
            image.put_u8(0);
            paths.save(image);
        });
        let came_back = image.read(|image| {
            image.take_u8()?;
            PathNumbers::load(image)
        });
        let came_back = came_back.unwrap();
        let all = [0, 2, 15, 99, 1].map(|path| came_back.next(path));
        assert_eq!(all, [Some(6), Some((2 << 40) + 1), Some((15 << 40) + 1), Some(8), None]);
        assert_eq!(came_back.0.len(), PathNumbers::MAX);
    }
}
