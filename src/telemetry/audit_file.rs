//! The file of the audit log: appended to, for its owner alone, opened again when it was moved away.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

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
        // Without O_NONBLOCK a named pipe would keep the gateway waiting for its reader.
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(MODE).custom_flags(libc::O_NONBLOCK);
        let named = |error| io::Error::other(format!("the audit log {} cannot be written: {error}", path.display()));
        let file = options.open(path).map_err(named)?;
        Ok(AuditFile { torn: ends_within_a_line(path, &file), file })
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
        let mut full = AuditFile::open(Path::new("/dev/full")).expect("a device");
        assert!(full.append(b"one\n").is_err());
    }
}
