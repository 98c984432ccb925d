//! How long a computing thread keeps its core when others want it too.
//!
//! While a prompt is computed every core computes, for seconds on end. What streams, probes, scrapes and other
//! programs need of a core is far less than a millisecond, but with turns of equal length a thread that wakes up waits
//! until the computing thread's turn is over, which the system looks at with its tick: four milliseconds on many.
//! Linux gives the core at once to a thread whose turns are shorter than those of the thread that runs. So threads
//! that compute here ask for long ones. Their share of the cores stays the same: what they yield they get back.
//!
//! Elsewhere, and before Linux 6.12, nothing changes.

/// Many times the usual turn, which is 0.7 to 3 ms.
#[cfg(target_os = "linux")]
pub(super) const TURN_NANOSECONDS: u64 = 20_000_000;

/// Asks for long turns for the calling thread. A kernel or a sandbox that refuses leaves everything as it is.
#[cfg(target_os = "linux")]
pub(super) fn ask_for_long_turns() {
    let Some(mut attributes) = attributes() else { return };
    // Under other policies the field means something else.
    if [libc::SCHED_OTHER as u32, libc::SCHED_BATCH as u32].contains(&attributes.sched_policy) {
        attributes.sched_runtime = TURN_NANOSECONDS;
        // SAFETY: the attributes live through the call, and their size is as they say. 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// How the calling thread is scheduled.
#[cfg(target_os = "linux")]
fn attributes() -> Option<libc::sched_attr> {
    // SAFETY: all fields are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes to attributes that live through the call. 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (result == 0).then_some(attributes)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn ask_for_long_turns() {}

/// Niceness and turn in nanoseconds of the calling thread; `None` if the kernel does not tell turns.
#[cfg(all(test, target_os = "linux"))]
pub(super) fn turn() -> Option<(i32, u64)> {
    let attributes = attributes().filter(|attributes| attributes.sched_runtime != 0)?;
    Some((attributes.sched_nice, attributes.sched_runtime))
}
