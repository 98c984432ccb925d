//! When a computing thread gives its core to others that want it.
//!
//! While a prompt is computed every core computes, for seconds on end. What streams, probes, scrapes and other
//! programs need of a core is far less than a millisecond, but among equals a thread that wakes up may have to wait
//! for the scheduler's next tick, which is four milliseconds away on many systems. There are two such waits, and
//! threads that compute here ask for an end of both:
//!
//! - The computing thread's turn is not over. Linux gives the core at once to a thread whose turns are shorter than
//!   those of the thread that runs, so they ask for long ones.
//! - The woken thread has had more than its share of late, as a server has that wrote out a scrape a moment before.
//!   So they ask for a smaller share for themselves: what others run for then hardly counts as too much.
//!
//! The price: beside other programs that want all cores, inference gets a tenth of what one of them gets. Linux
//! reckons that within a control group or a session only, so it does not reach beyond a container or a service.
//!
//! Before Linux 6.12 turns stay as they are, and elsewhere nothing changes.

/// Many times the usual turn, which is 0.7 to 3 ms.
#[cfg(target_os = "linux")]
pub(super) const TURN_NANOSECONDS: u64 = 20_000_000;

/// By how much computing threads are nicer than the process. 5 did not end the second wait, 10 did.
#[cfg(target_os = "linux")]
pub(super) const NICER: i32 = 10;

/// The nicest there is.
#[cfg(target_os = "linux")]
pub(super) const NICEST: i32 = 19;

/// Lets other threads go before the calling one, as the module says; a second call changes nothing. A kernel or a
/// sandbox that refuses leaves everything as it is.
#[cfg(target_os = "linux")]
pub(super) fn give_way() {
    // The id of a process is that of its first thread, which does not compute.
    let (Some(mut own), Some(process)) = (attributes(0), attributes(std::process::id())) else { return };
    // Under other policies the fields mean something else.
    if [libc::SCHED_OTHER as u32, libc::SCHED_BATCH as u32].contains(&own.sched_policy) {
        own.sched_runtime = TURN_NANOSECONDS;
        own.sched_nice = own.sched_nice.max((process.sched_nice + NICER).min(NICEST));
        // SAFETY: the attributes live through the call, and their size is as they say. 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const own, 0) };
    }
}

/// How a thread is scheduled; 0 is the calling one.
#[cfg(target_os = "linux")]
fn attributes(thread: u32) -> Option<libc::sched_attr> {
    // SAFETY: all fields are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes to attributes that live through the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    (result == 0).then_some(attributes)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn give_way() {}

/// Niceness and turn in nanoseconds of the calling thread; `None` if the kernel does not tell turns.
#[cfg(all(test, target_os = "linux"))]
pub(super) fn turn() -> Option<(i32, u64)> {
    let attributes = attributes(0).filter(|attributes| attributes.sched_runtime != 0)?;
    Some((attributes.sched_nice, attributes.sched_runtime))
}
