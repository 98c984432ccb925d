//! How long a computing thread keeps its core when others want it too.
//!
//! While a prompt is computed every core computes, for seconds on end. What streams, probes, scrapes and other
//! programs need of a core is far less than a millisecond, but with turns of equal length a thread that wakes up waits
//! until the computing thread's turn is over, which the system looks at with its tick: four milliseconds on many.
//! Linux gives the core at once to a thread whose turns are shorter than those of the thread that runs. So threads
//! that compute ask for long ones. Their share of the cores stays the same: what they yield they get back.
//!
//! Elsewhere, and before Linux 6.12, nothing changes.

/// Many times the usual turn, which is 0.7 to 3 ms.
#[cfg(target_os = "linux")]
const TURN_NANOSECONDS: u64 = 20_000_000;

/// Asks for long turns for the calling thread, and for the threads that it will start. A kernel or a sandbox that
/// refuses leaves everything as it is.
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

/// Calls what will start threads that compute, a software adapter's driver, say.
pub(super) fn starting_computing_threads<T: Send>(start: impl FnOnce() -> T + Send) -> T {
    let start = || {
        ask_for_long_turns();
        start()
    };
    std::thread::scope(|scope| match scope.spawn(start).join() {
        Ok(started) => started,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{TURN_NANOSECONDS, attributes, starting_computing_threads};

    /// Niceness and turn of the calling thread; `None` if the kernel does not tell turns.
    fn turn() -> Option<(i32, u64)> {
        let attributes = attributes().filter(|attributes| attributes.sched_runtime != 0)?;
        Some((attributes.sched_nice, attributes.sched_runtime))
    }

    #[test]
    fn a_thread_that_asks_and_those_that_it_starts_have_long_turns_and_stay_as_nice_as_they_were() {
        let Some((nice, usual)) = turn() else { return };
        assert!(usual < TURN_NANOSECONDS, "{usual} ns");
        let turns =
            starting_computing_threads(|| (turn(), std::thread::spawn(turn).join().expect("a thread")));
        let long = Some((nice, TURN_NANOSECONDS));
        assert_eq!(turns, (long, long));
        assert_eq!(turn(), Some((nice, usual)));
    }
}
