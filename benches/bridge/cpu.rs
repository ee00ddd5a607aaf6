//! Processor time of another process.

use std::io;
use std::mem::MaybeUninit;
use std::process::Child;

/// Time `process` has used in user and kernel mode, all its threads together, in microseconds.
///
/// # Errors
/// When it is gone.
pub fn used_by(process: &Child) -> io::Result<f64> {
    let mut clock = 0;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the first call writes one clock id, the second one timespec; both live on this stack.
    let time = unsafe {
        match libc::clock_getcpuclockid(process.id().cast_signed(), &raw mut clock) {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        if libc::clock_gettime(clock, time.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        time.assume_init()
    };
    Ok(time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3)
}
