//! A disc that has no room when it is to have none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own for the run directory, so that it can be full.
pub struct Disc(pub PathBuf);

impl Disc {
    /// Mounts it over a directory, which has nothing of its own then.
    pub fn mount(at: &Path) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=24m,mode=0755", "tmpfs"])
            .arg(at)
            .status();
        assert!(mounted.is_ok_and(|status| status.success()), "mount {}", at.display());
        Self(at.to_owned())
    }

    /// The same over a directory whose files it has then.
    pub fn mount_with_files(at: &Path) -> Self {
        let kept = at.with_extension("kept");
        let copy = |from: &Path, to: &Path| {
            let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status();
            assert!(copied.is_ok_and(|status| status.success()), "cp -a {}", from.display());
        };
        fs::create_dir(&kept).unwrap();
        copy(at, &kept);
        let disc = Self::mount(at);
        copy(&kept, at);
        disc
    }

    /// Fills it to the last byte.
    pub fn fill(&self) {
        let filler = self.0.join("filler");
        let _ = Command::new("dd")
            .args(["if=/dev/zero", "bs=4096", "status=none"])
            .arg(format!("of={}", filler.display()))
            .output();
    }

    /// Leaves so many bytes.
    pub fn leave(&self, bytes: u64) {
        let filler = fs::File::options().write(true).open(self.0.join("filler")).unwrap();
        let size = filler.metadata().unwrap().len();
        filler.set_len(size.saturating_sub(bytes)).unwrap();
    }

    /// Gives back what was filled.
    pub fn empty(&self) {
        let _ = fs::remove_file(self.0.join("filler"));
    }
}

impl Drop for Disc {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
