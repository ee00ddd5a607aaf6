//! What a process needs to start at all, so that file rules never take it away. Documented in the configuration's
//! `sandbox.read`: what changes here changes there.

/// Readable and executable, with everything below: programs, libraries, and how names, times, users and
/// certificates are looked up. Of `/etc` only this; the rest of it is where secrets are kept.
pub(super) const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// A device.
pub(super) enum Need {
    Read(&'static str),
    ReadAndWrite(&'static str),
}

/// Devices that hold nothing.
pub(super) const DEVICES: &[Need] = &[
    Need::ReadAndWrite("/dev/full"),
    Need::ReadAndWrite("/dev/null"),
    Need::Read("/dev/random"),
    Need::Read("/dev/urandom"),
    Need::ReadAndWrite("/dev/zero"),
];
