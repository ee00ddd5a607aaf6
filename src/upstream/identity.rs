//! Whom a child runs as.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;

use crate::config::UserName;

/// Bytes that an entry of the user database takes at first, and at most.
const ENTRY_BYTES: usize = 1024;
const MOST_ENTRY_BYTES: usize = 1 << 20;
/// Groups one user may be in (Linux, NGROUPS_MAX).
const MOST_GROUPS: usize = 65_536;

/// A user with everything that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uid: libc::uid_t,
    pub(super) gid: libc::gid_t,
    /// Supplementary groups, the own one among them.
    pub(super) groups: Box<[libc::gid_t]>,
    /// Its name; its number in digits where it has none.
    name: OsString,
    home: OsString,
}

/// Why there is no such identity.
#[derive(Debug)]
pub(super) enum NoIdentity {
    /// Nobody has this name or number.
    Unknown,
    /// Nobody has this number, so its group must be said.
    NoGroup,
    /// The user database could not be asked.
    Database(io::Error),
    /// The gateway may not become somebody else, or not signal them afterwards.
    Denied,
}

/// What the user database says about a user.
struct Entry {
    uid: libc::uid_t,
    gid: libc::gid_t,
    name: CString,
    home: OsString,
}

impl Identity {
    /// Asks the user database, which may take its time where that is in the network.
    pub(super) fn resolve(user: &UserName) -> Result<Self, NoIdentity> {
        match user {
            UserName::Name(name) => {
                let name = CString::new(name.as_bytes()).map_err(|_| NoIdentity::Unknown)?;
                Self::of(
                    look_up(|entry, buffer, length, found| {
                        // SAFETY: every pointer is live and the buffer has this length.
                        unsafe { libc::getpwnam_r(name.as_ptr(), entry, buffer, length, found) }
                    })?
                    .ok_or(NoIdentity::Unknown)?,
                )
            }
            UserName::Number { uid, gid } => {
                let entry = look_up(|entry, buffer, length, found| {
                    // SAFETY: as above.
                    unsafe { libc::getpwuid_r(*uid, entry, buffer, length, found) }
                })?;
                match (entry, gid) {
                    (Some(entry), None) => Self::of(entry),
                    // Who says a group means that group and no other.
                    (Some(Entry { name, home, .. }), Some(gid)) => {
                        Ok(Self::alone(*uid, *gid, OsString::from_vec(name.into_bytes()), home))
                    }
                    (None, Some(gid)) => Ok(Self::alone(*uid, *gid, uid.to_string().into(), "/".into())),
                    (None, None) => Err(NoIdentity::NoGroup),
                }
            }
        }
    }

    fn of(entry: Entry) -> Result<Self, NoIdentity> {
        let groups = groups_of(&entry.name, entry.gid).map_err(NoIdentity::Database)?;
        let name = OsString::from_vec(entry.name.into_bytes());
        Ok(Self { uid: entry.uid, gid: entry.gid, groups, name, home: entry.home })
    }

    fn alone(uid: libc::uid_t, gid: libc::gid_t, name: OsString, home: OsString) -> Self {
        Self { uid, gid, groups: Box::new([gid]), name, home }
    }

    /// Whether this process is that user already, so that nothing has to change.
    pub(super) fn is_own(&self) -> bool {
        use rustix::process::{getegid, geteuid, getgid, getuid};
        [getuid(), geteuid()].iter().all(|uid| uid.as_raw() == self.uid)
            && [getgid(), getegid()].iter().all(|gid| gid.as_raw() == self.gid)
    }

    /// Checks that this thread may become it, and signal it afterwards.
    pub(super) fn check(&self) -> Result<(), NoIdentity> {
        if self.is_own() || may_switch() { Ok(()) } else { Err(NoIdentity::Denied) }
    }

    /// Adds the variables that name a user, where they are not set.
    pub(super) fn name_in(&self, environment: &mut Vec<(OsString, OsString)>) {
        for (name, value) in [("HOME", &self.home), ("LOGNAME", &self.name), ("USER", &self.name)] {
            if !environment.iter().any(|(set, _)| set == name) {
                environment.push((name.into(), value.clone()));
            }
        }
    }
}

/// Whether this thread has the capabilities for it; without CAP_KILL a child of another user could not be stopped.
#[cfg(target_os = "linux")]
fn may_switch() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
    capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

#[cfg(not(target_os = "linux"))]
fn may_switch() -> bool {
    rustix::process::geteuid().is_root()
}

/// Calls one of the two reentrant look-ups with a buffer that is large enough.
fn look_up(
    call: impl Fn(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
) -> Result<Option<Entry>, NoIdentity> {
    let mut buffer = vec![0; ENTRY_BYTES];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        match call(entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found) {
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: found, so the entry is written, and its strings are terminated ones in the buffer.
                let (entry, name, home) = unsafe {
                    let entry = entry.assume_init_ref();
                    (entry, CStr::from_ptr(entry.pw_name), CStr::from_ptr(entry.pw_dir))
                };
                let home = if home.is_empty() { c"/" } else { home };
                let home = OsStr::from_bytes(home.to_bytes()).to_owned();
                return Ok(Some(Entry { uid: entry.pw_uid, gid: entry.pw_gid, name: name.to_owned(), home }));
            }
            libc::ERANGE if buffer.len() < MOST_ENTRY_BYTES => buffer.resize(buffer.len() * 4, 0),
            // What some databases say instead of finding nothing (getpwnam(3)).
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(NoIdentity::Database(io::Error::from_raw_os_error(error))),
        }
    }
}

/// Every group `name` is in, `own` among them.
fn groups_of(name: &CStr, own: libc::gid_t) -> io::Result<Box<[libc::gid_t]>> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: the list has room for as many as it is said to have.
        let all = unsafe { libc::getgrouplist(name.as_ptr(), own as _, groups.as_mut_ptr(), &raw mut count) };
        let found = usize::try_from(count).unwrap_or(0);
        if all >= 0 {
            groups.truncate(found);
            return Ok(groups.into_iter().map(|group| group as libc::gid_t).collect());
        }
        if groups.len() >= MOST_GROUPS {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        groups.resize(found.max(groups.len() * 2).min(MOST_GROUPS), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Identity, NoIdentity};
    use crate::config::UserName;

    fn number(uid: u32, gid: Option<u32>) -> Result<Identity, NoIdentity> {
        Identity::resolve(&UserName::Number { uid, gid })
    }

    #[test]
    fn a_name_and_its_number_are_one_user() {
        let by_name = Identity::resolve(&UserName::Name("root".into())).expect("every system has root");
        assert_eq!((by_name.uid, by_name.gid), (0, 0));
        assert!(by_name.groups.contains(&0));
        assert_eq!(number(0, None).expect("the same"), by_name);
        let mut environment = vec![("USER".into(), "set".into())];
        by_name.name_in(&mut environment);
        let value = |name: &str| environment.iter().find(|(key, _)| key == name).and_then(|(_, value)| value.to_str());
        assert_eq!((value("USER"), value("LOGNAME")), (Some("set"), Some("root")));
        assert!(value("HOME").is_some_and(|home| home.starts_with('/')));
    }

    #[test]
    fn a_number_nobody_has_needs_a_group() {
        assert!(matches!(number(4_123_456_789, None), Err(NoIdentity::NoGroup)));
        let nameless = number(4_123_456_789, Some(77)).expect("said in full");
        assert_eq!((nameless.gid, &*nameless.groups), (77, &[77][..]));
        let mut environment = Vec::new();
        nameless.name_in(&mut environment);
        assert!(environment.contains(&("HOME".into(), "/".into())), "{environment:?}");
        assert!(environment.contains(&("USER".into(), "4123456789".into())), "{environment:?}");
        let unknown = UserName::Name("no-such-user-here".into());
        assert!(matches!(Identity::resolve(&unknown), Err(NoIdentity::Unknown)));
    }

    #[test]
    fn a_group_that_is_said_is_the_only_one() {
        let root = number(0, Some(65_534)).expect("every system has root");
        assert_eq!((root.gid, &*root.groups), (65_534, &[65_534][..]));
    }
}
