//! The file of the audit log: appended to, for its owner alone, opened again when it was moved away.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Access, access};

/// What others may do with a file that is made here: nothing.
const MODE: u32 = 0o600;

/// An open audit file.
pub(super) struct AuditFile {
    file: File,
    /// Whether its last line has no end, which the next write then gives it.
    torn: bool,
}

impl AuditFile {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// What the system says, with the name of the file.
    pub(super) fn open(path: &Path) -> io::Result<AuditFile> {
        let file = writing().create(true).open(path).map_err(|error| unwritable(path, &error))?;
        Ok(AuditFile { torn: ends_within_a_line(path, &file), file })
    }

    /// Whether the file could be opened, or made; nothing is made.
    ///
    /// # Errors
    /// What the system says, with the name of the file.
    pub(super) fn check(path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match writing().open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| unwritable(path, &error.into()))
            }
            opened => opened.map(drop).map_err(|error| unwritable(path, &error)),
        }
    }

    /// Appends whole lines; the kernel has all of them then, or it is an error.
    ///
    /// # Errors
    /// What the system says. Some of the lines may be in the file, the last of these in part.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < lines.len() {
            match self.write_some(&lines[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.torn |= lines[..written].last().is_some_and(|last| *last != b'\n');
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Appends as much as the file takes at once. Whoever goes on after an error ends the line that was begun.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn write_some(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        self.file.write(lines)
    }
}

fn writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    // Without O_NONBLOCK a named pipe would keep the gateway waiting for its reader.
    options.append(true).mode(MODE).custom_flags(libc::O_NONBLOCK);
    options
}

/// An error of the audit log's file, with the key that names it.
pub(super) fn unwritable(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("`telemetry.log.audit`: {} cannot be written: {error}", path.display()))
}

/// Whether whoever wrote the file before was killed in the middle of a line.
fn ends_within_a_line(path: &Path, written: &File) -> bool {
    let length = written.metadata().map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 });
    let mut last = [b'\n'];
    // One that cannot be read is taken to be whole.
    let _unread = (length > 0).then(|| File::open(path).and_then(|file| file.read_exact_at(&mut last, length - 1)));
    last != [b'\n']
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::AuditFile;

    #[test]
    fn lines_are_appended_and_half_ones_ended() {
        let path = std::env::temp_dir().join(format!("gangway-audit-file-{}", std::process::id()));
        AuditFile::open(&path).expect("a new file").append(b"one\n").expect("room");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        fs::write(&path, "one\nhal").expect("written");
        let mut file = AuditFile::open(&path).expect("the same file");
        file.append(b"two\n").expect("room");
        file.append(b"three\n").expect("room");
        assert_eq!(fs::read_to_string(&path).expect("text"), "one\nhal\ntwo\nthree\n");
        fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let error = AuditFile::open(Path::new("/no/such/folder/audit")).map(|_| ()).expect_err("no folder");
        assert!(error.to_string().contains("/no/such/folder/audit"), "{error}");
        assert!(AuditFile::check(Path::new("/no/such/folder/audit")).is_err());
        assert!(AuditFile::check(&std::env::temp_dir()).is_err(), "a folder");
        let absent = std::env::temp_dir().join(format!("gangway-audit-absent-{}", std::process::id()));
        AuditFile::check(&absent).expect("it could be made");
        assert!(!absent.exists(), "and was not");
        let mut full = AuditFile::open(Path::new("/dev/full")).expect("a device");
        assert!(full.append(b"one\n").is_err());
    }
}
