//! Unix sockets: owner-only, a stale file replaced, removed at the end.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

/// Only the owner may connect.
const MODE: u32 = 0o600;

/// A listening unix socket whose file goes away with it.
#[derive(Debug)]
pub(super) struct UnixSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file we made, so that a successor's file is never removed.
    file: (u64, u64),
}

impl UnixSocket {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // Nothing depends on it: the next start replaces a stale file anyway.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds `path` with mode 0600. A socket file nobody answers on is replaced.
///
/// # Errors
/// `AddrInUse` when somebody answers, `AlreadyExists` when the path is no socket, else what the
/// system said.
pub(super) fn bind(path: &Path, backlog: i32) -> io::Result<UnixSocket> {
    let socket = match bound(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            clear_stale(path)?;
            bound(path)?
        }
        other => other?,
    };
    // Set again by name: the umask may have taken bits away, and only Linux heeds the mode given
    // before the bind.
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    socket.listen(backlog)?;
    socket.set_nonblocking(true)?;
    let file = identity(path)?;
    let listener = UnixListener::from_std(socket.into())?;
    Ok(UnixSocket { listener, path: path.to_owned(), file })
}

fn bound(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Before the bind, so that the file is never open to others for an instant.
    #[cfg(target_os = "linux")]
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(MODE))?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Removes the file at `path` if it is a socket that refuses connections.
fn clear_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A living server with a full backlog must not make us wait.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::bind;

    /// A fresh directory under the target's temporary place, gone at the end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("gangway-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("the temporary directory is writable");
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn is_for_the_owner_only_and_leaves_nothing() {
        let directory = Directory::new("mode");
        let path = directory.0.join("socket");
        let socket = bind(&path, 16).expect("a free path binds");
        let mode = fs::metadata(&path).expect("the file is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn replaces_a_stale_file_but_not_a_living_server() {
        let directory = Directory::new("stale");
        let path = directory.0.join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a free path binds"));
        assert!(path.exists(), "std leaves the file behind");
        let living = bind(&path, 16).expect("a stale file is replaced");
        let refused = bind(&path, 16).expect_err("a living server stays");
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert!(path.exists());
        drop(living);
    }

    #[tokio::test]
    async fn never_removes_what_is_no_socket_or_not_ours() {
        let directory = Directory::new("other");
        let path = directory.0.join("file");
        fs::write(&path, "precious").expect("the directory is writable");
        let refused = bind(&path, 16).expect_err("a plain file stays");
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");

        let path = directory.0.join("socket");
        let socket = bind(&path, 16).expect("a free path binds");
        fs::remove_file(&path).expect("the file is ours");
        fs::write(&path, "successor").expect("the directory is writable");
        drop(socket);
        assert!(path.exists(), "a successor's file must survive our end");
    }
}
