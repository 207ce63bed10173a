//! Files that a process keeps for the one after it, in folders in which others may have put something: one way to
//! read and to write them. No link is followed, nothing that is no file is waited for, and what is written is its
//! owner's alone, whatever the umask is: it tells who talks to whom. What is read belongs to who reads it, or to root:
//! somebody else could have written anything there.

use nix::libc;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// What a file that is made may be used for, and by whom.
const MODE: u32 = 0o600;
/// What a group, or everybody, may do to a directory to put something there.
const OTHERS_WRITE: u32 = 0o022;
/// So many names of files are said.
const NAMED: usize = 3;

/// Opens a file that is there, to read it.
///
/// # Errors
/// Those of the system; and if it is a link, or no file, or somebody else's.
pub fn open(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().read(true), path)
}

/// Opens a file that is there, to read and write it.
///
/// # Errors
/// Those of [`open`].
pub fn open_to_write(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().read(true).write(true), path)
}

/// Opens a file to read and write it, and makes it if need be. What is in it stays.
///
/// # Errors
/// Those of [`open`].
pub fn open_or_make(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().read(true).write(true).create(true).mode(MODE), path)
}

/// Opens a file to write at its end, and makes it if need be.
///
/// # Errors
/// Those of the system; and if it is a link, or no file.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    file(OpenOptions::new().append(true).create(true).mode(MODE), path)
}

/// An empty file in the place of what was there under its name: a link there goes, and what it led to stays.
///
/// # Errors
/// Those of the system.
pub fn make(path: &Path) -> io::Result<File> {
    gone(path)?;
    // What somebody makes there in between is not taken.
    OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path)
}

/// What is in a file.
///
/// # Errors
/// Those of [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is in a file, whosever it is: to compare it with something that is known.
///
/// # Errors
/// Those of the system; and if it is a link, or no file.
pub fn read_anybodys(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file(OpenOptions::new().read(true), path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is in a file of text.
///
/// # Errors
/// Those of [`open`]; and if it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file whole or not at all: who reads it finds all of the former one or of this. Two processes must not
/// write the same one at once.
///
/// # Errors
/// Those of the system; the former one is still there then.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, |_| Ok(()))
}

/// The same, and it outlives a loss of power.
///
/// # Errors
/// Those of [`write()`].
pub fn write_through(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, File::sync_all)
}

/// The name under which a file is written before it takes its place.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// Removes what is called so, if there is something: a link, and not what it leads to.
///
/// # Errors
/// Those of the system.
pub fn gone(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Looks whether what a process keeps can be in a directory: one in which somebody else may write could have anything
/// in the place of a file. Only it is looked at, and not what it is in.
///
/// # Errors
/// Those of the system; and why it cannot, with what to do.
pub fn check_directory(path: &Path) -> io::Result<()> {
    // A slash at the end would lead through a link.
    let path: PathBuf = path.components().collect();
    let about = fs::symlink_metadata(&path)?;
    let refuse = |why: String| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if about.is_symlink() {
        let words =
            "it is a symbolic link, and none is followed here; name the directory that it leads to";
        return refuse(words.into());
    }
    if !about.is_dir() {
        return Err(io::Error::new(ErrorKind::NotADirectory, "it is no directory"));
    }
    if !is_ours(about.uid()) {
        return refuse(whose(
            about.uid(),
            "remove it, or name a directory that is not somebody else's",
        ));
    }
    let mode = about.mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        return refuse(format!(
            "others may write to it (mode {mode:04o}); look at who has put what there, and chmod go-w it"
        ));
    }
    Ok(())
}

/// Whether nothing is called so. Where that cannot be told, something is.
pub fn is_gone(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| says_gone(&error))
}

/// Whether an error of the system says that nothing is called so.
pub fn says_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The first of several names, and how many more there are.
pub fn in_words(names: &[String]) -> String {
    let named = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Gives a socket that is there a mode, and a group before that.
///
/// # Errors
/// Those of the system; and if it is no socket.
pub fn share_socket(path: &Path, mode: u32, group: Option<u32>) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let held = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !held.metadata()?.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no socket any more"));
    }
    // Whatever is called so by now: this is the one that was looked at.
    let it = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    if group.is_some() {
        chown(&it, None, group)?;
    }
    fs::set_permissions(&it, fs::Permissions::from_mode(mode))
}

fn replace(
    path: &Path,
    bytes: &[u8],
    finish: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let next = beside(path);
    let written = make(&next).and_then(|mut file| {
        file.write_all(bytes)?;
        finish(&file)?;
        fs::rename(&next, path)
    });
    if written.is_err() {
        // It may be what fills the disc.
        let _ = fs::remove_file(&next);
    }
    written
}

fn file(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // A pipe would keep whoever opens it until somebody is at its other end.
    let opened = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::new(
            error.kind(),
            "it is a symbolic link, and none is followed here; remove it",
        ),
        Some(libc::ENXIO) => no_file(),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(no_file()) }
}

/// The same for what is read: what somebody else has written is not believed.
fn own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = file(options, path)?;
    let uid = file.metadata()?.uid();
    if is_ours(uid) {
        return Ok(file);
    }
    Err(io::Error::new(ErrorKind::PermissionDenied, whose(uid, "remove it")))
}

fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

fn whose(uid: u32, mend: &str) -> String {
    let own = nix::unistd::geteuid();
    format!(
        "it belongs to the user {uid}, and only those of root and of the user {own} are used; {mend}"
    )
}

fn no_file() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "it is no file; remove it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    const PRECIOUS: &str = "precious";

    /// A folder, a name in it that is a link, and what that leads to.
    fn planted() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (name, target) = (folder.path().join("name"), folder.path().join("target"));
        fs::write(&target, PRECIOUS).unwrap();
        symlink(&target, &name).unwrap();
        (folder, name, target)
    }

    #[test]
    fn no_link_is_opened() {
        let (folder, name, target) = planted();
        for opened in
            [open(&name), open_to_write(&name), open_or_make(&name), open_to_append(&name)]
        {
            let said = opened.unwrap_err().to_string();
            assert!(said.contains("symbolic link"), "{said}");
        }
        assert!(read(&name).is_err() && read_text(&name).is_err());
        // Nor is anything made where one leads to.
        let nowhere = folder.path().join("nowhere");
        fs::remove_file(&name).unwrap();
        symlink(&nowhere, &name).unwrap();
        assert!(open_or_make(&name).is_err() && open_to_append(&name).is_err());
        assert!(!nowhere.exists());
        assert_eq!(fs::read_to_string(target).unwrap(), PRECIOUS);
    }

    #[test]
    fn what_is_written_takes_the_place_of_a_link() {
        type Write = fn(&Path) -> io::Result<()>;
        let ways: [Write; 3] = [
            |path| write(path, b"new"),
            |path| write_through(path, b"new"),
            |path| make(path)?.write_all(b"new"),
        ];
        for way in ways {
            let (_folder, name, target) = planted();
            // Under the name that it has before, too.
            symlink(&target, beside(&name)).unwrap();
            way(&name).unwrap();
            assert_eq!(read_text(&name).unwrap(), "new");
            assert_eq!(fs::symlink_metadata(&name).unwrap().mode() & 0o7777, MODE);
            assert_eq!(fs::read_to_string(&target).unwrap(), PRECIOUS);
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (name, file) = (folder.path().join("name"), folder.path().join("file"));
        symlink("nowhere", &name).unwrap();
        fs::write(&file, "").unwrap();
        assert!(!is_gone(&name) && !is_gone(&file));
        assert!(is_gone(&folder.path().join("nowhere")) && is_gone(&file.join("below")));
    }

    #[test]
    fn few_names_are_said_and_many_are_counted() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(in_words(&names[..1]), "a");
        assert_eq!(in_words(&names[..3]), "a, b, c");
        assert_eq!(in_words(&names), "a, b, c and 2 more");
    }

    /// Another name of a file of somebody else is not written into, either.
    #[test]
    fn what_is_written_is_in_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let (name, target) = (folder.path().join("name"), folder.path().join("target"));
        fs::write(&target, PRECIOUS).unwrap();
        fs::hard_link(&target, &name).unwrap();
        fs::hard_link(&target, beside(&name)).unwrap();
        write(&name, b"new").unwrap();
        assert_eq!(read_text(&name).unwrap(), "new");
        assert_eq!(fs::read_to_string(&target).unwrap(), PRECIOUS);
    }

    #[test]
    fn what_is_somebody_elses_is_not_read() {
        if !nix::unistd::geteuid().is_root() {
            // Nobody else can give a file away.
            assert!(is_ours(0) && !is_ours(nix::unistd::geteuid().as_raw() + 1));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("name");
        fs::write(&name, PRECIOUS).unwrap();
        assert!(open(&name).is_ok());
        chown(&name, Some(65_534), None).unwrap();
        for opened in [open(&name), open_to_write(&name), open_or_make(&name)] {
            let said = opened.unwrap_err().to_string();
            assert!(
                said.contains("belongs to the user 65534") && said.contains("remove it"),
                "{said}"
            );
        }
        assert!(check_directory(folder.path()).is_ok());
        chown(folder.path(), Some(65_534), None).unwrap();
        let said = check_directory(folder.path()).unwrap_err().to_string();
        assert!(said.contains("belongs to the user 65534"), "{said}");
    }

    #[test]
    fn a_directory_is_its_owners_alone_and_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (own, link) = (folder.path().join("own"), folder.path().join("link"));
        fs::create_dir(&own).unwrap();
        symlink(&own, &link).unwrap();
        for (mode, good) in
            [(0o700, true), (0o711, true), (0o755, true), (0o775, false), (0o1777, false)]
        {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            let checked = check_directory(&own);
            assert_eq!(checked.is_ok(), good, "{mode:o}: {checked:?}");
        }
        // Who may write to its parent is not asked.
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        check_directory(&own).unwrap();
        for path in [link.clone(), link.join("")] {
            let said = check_directory(&path).unwrap_err().to_string();
            assert!(said.contains("symbolic link") && said.contains("leads to"), "{said}");
        }
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(check_directory(&folder.path().join("file")).is_err());
    }

    #[test]
    fn nobody_waits_for_a_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("name");
        nix::unistd::mkfifo(&name, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for opened in [open(&name), open_or_make(&name), open_to_append(&name)] {
            let said = opened.unwrap_err().to_string();
            assert!(said.contains("no file"), "{said}");
        }
        assert!(open(folder.path()).unwrap_err().to_string().contains("no file"));
        write(&name, b"new").unwrap();
        assert_eq!(read(&name).unwrap(), b"new");
    }

    #[test]
    fn what_is_there_stays_until_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("name");
        write(&name, b"one").unwrap();
        open_or_make(&name).unwrap();
        open_to_append(&name).unwrap().write_all(b" two").unwrap();
        assert_eq!(read_text(&name).unwrap(), "one two");
        assert!(make(&name).is_ok() && read(&name).unwrap().is_empty());
        assert!(write(&folder.path().join("no/such"), b"").is_err());
        gone(&name).unwrap();
        gone(&name).unwrap();
        assert_eq!(open(&name).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_mode_is_given_to_a_socket_and_to_nothing_else() {
        let (folder, name, target) = planted();
        let before = fs::metadata(&target).unwrap().mode();
        assert!(share_socket(&name, 0o666, None).is_err());
        assert!(share_socket(&target, 0o666, None).is_err());
        assert_eq!(fs::metadata(&target).unwrap().mode(), before);
        let socket = folder.path().join("socket");
        let _listens = UnixListener::bind(&socket).unwrap();
        for mode in [0o600, 0o660] {
            share_socket(&socket, mode, Some(nix::unistd::getgid().as_raw())).unwrap();
            assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o7777, mode);
        }
    }
}
