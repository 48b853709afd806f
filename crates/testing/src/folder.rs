//! A folder that goes with the test.

use std::path::{Path, PathBuf};

/// A folder at a place that the test chooses, since names of Unix sockets must be short; it goes with this value.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it, without what an earlier run has left there.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(place: PathBuf) -> Self {
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("make a folder");
        Self(place)
    }

    /// Where something of that name is in it, as a command takes it.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Folder;

    #[test]
    fn it_is_empty_at_first_and_goes_in_the_end() {
        let place = std::env::temp_dir().join(format!("overfly-folder-{}", std::process::id()));
        std::fs::create_dir_all(place.join("left")).unwrap();
        let folder = Folder::new(place.clone());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        assert_eq!(folder.path("a"), place.join("a").display().to_string());
        drop(folder);
        assert!(!place.exists());
    }
}
