//! A temporary directory on the filesystem under test, with the mounts made inside it.
//! Both are gone when it is dropped, also when the test panics.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

use super::probe::{is_root, succeeds, test_dir};
use super::tree::Tree;

/// The ordinary user (and group) that tests become when they are root.
pub const USER: u32 = 65534;

pub struct Scratch {
    dir: TempDir,
    mounts: Mutex<Vec<PathBuf>>,
}

impl Scratch {
    pub fn new() -> Scratch {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::Builder::new()
            .prefix("haul-test-")
            .tempdir_in(test_dir())
            .expect("a scratch directory (is HAUL_TEST_DIR there and writable?)");
        // The ordinary user has to get in, whatever the umask.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
            .expect("chmod of the scratch directory");
        Scratch {
            dir,
            mounts: Mutex::new(Vec::new()),
        }
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(below)
    }

    /// A new directory to build a tree in.
    pub fn tree(&self, below: &str) -> Tree {
        Tree::new(self.path(below))
    }

    /// The source tree of most tests.
    pub fn src(&self) -> Tree {
        self.tree("src")
    }

    /// The destination of most tests; not created.
    pub fn dst(&self) -> PathBuf {
        self.path("dst")
    }

    /// Mounts something at a new directory, which is returned.
    pub fn try_mount(&self, below: &str, args: &[&str]) -> Result<PathBuf, String> {
        let point = self.path(below);
        std::fs::create_dir_all(&point).expect("mount point");
        let mut all = args.to_vec();
        let point_text = point.to_str().expect("UTF-8").to_owned();
        all.push(&point_text);
        succeeds("mount", &all)?;
        self.mounts.lock().expect("mounts").push(point.clone());
        Ok(point)
    }

    pub fn tmpfs(&self, below: &str, options: &str) -> PathBuf {
        self.try_mount(below, &["-t", "tmpfs", "-o", options, "none"])
            .expect("tmpfs")
    }

    pub fn bind(&self, from: &Path, below: &str) -> PathBuf {
        self.try_mount(below, &["--bind", from.to_str().expect("UTF-8")])
            .expect("bind mount")
    }

    /// Makes a filesystem image with `mkfs` (program and options) and mounts it.
    pub fn try_image(&self, below: &str, mib: u64, mkfs: &[&str]) -> Result<PathBuf, String> {
        let image = self.path(format!("{below}.img"));
        let file = std::fs::File::create(&image).expect("image");
        file.set_len(mib << 20).expect("image size");
        let image = image.to_str().expect("UTF-8");
        let mut args = mkfs[1..].to_vec();
        args.push(image);
        succeeds(mkfs[0], &args)?;
        self.try_mount(below, &["-o", "loop", image])
    }

    pub fn ext4(&self, below: &str, mib: u64) -> PathBuf {
        self.try_image(below, mib, &["mkfs.ext4", "-q", "-m", "0"])
            .expect("ext4 image")
    }

    pub fn xfs(&self, below: &str, mib: u64) -> PathBuf {
        self.try_image(below, mib, &["mkfs.xfs", "-q"])
            .expect("XFS image")
    }

    /// Unmounts what was mounted at `point` before the end of the test.
    pub fn unmount(&self, point: &Path) {
        self.mounts
            .lock()
            .expect("mounts")
            .retain(|known| known != point);
        succeeds("umount", &[point.to_str().expect("UTF-8")]).expect("umount");
    }

    /// Gives a file or tree of this scratch directory to the ordinary user. Links themselves are
    /// changed, not what they point at.
    pub fn give_to_user(&self, path: &Path) {
        if is_root() {
            let owner = format!("{USER}:{USER}");
            succeeds("chown", &["-hR", &owner, path.to_str().expect("UTF-8")]).expect("chown");
        }
    }

    /// A directory that the ordinary user owns.
    pub fn user_dir(&self, below: &str) -> PathBuf {
        let path = self.path(below);
        std::fs::create_dir_all(&path).expect("mkdir");
        self.give_to_user(&path);
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for point in self.mounts.get_mut().expect("mounts").drain(..).rev() {
            let gone = Command::new("umount").arg(&point).output();
            if !gone.is_ok_and(|output| output.status.success()) {
                // Busy: at least out of the tree, so that removal does not go into it.
                Command::new("umount").arg("-l").arg(&point).output().ok();
            }
        }
        if !is_root() {
            Command::new("chmod")
                .args(["-R", "u+rwx"])
                .arg(self.dir.path())
                .output()
                .ok();
        }
        // TempDir removes the rest, silently; trees deeper than PATH_MAX included.
    }
}
