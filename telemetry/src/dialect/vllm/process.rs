//! `process_*`: read from Linux' `/proc` when somebody collects. What cannot be read is shown as 0.

use std::fs;

use super::server_rows;
use crate::instruments::Instruments;

/// Clock ticks a second in `/proc`, fixed for all architectures that Rust's Linux targets have.
const TICKS_PER_SECOND: f64 = 100.0;

/// Shows the process. It costs a few reads of `/proc` a collection and nothing in between.
pub(crate) fn observe(instruments: &Instruments) {
    let gauge = |row, read: fn() -> Option<f64>| {
        instruments.observe_gauge(row, Vec::new(), move || read().unwrap_or(0.0));
    };
    gauge(&server_rows::VIRTUAL_MEMORY, || status_bytes("VmSize:"));
    gauge(&server_rows::RESIDENT_MEMORY, || status_bytes("VmRSS:"));
    gauge(&server_rows::OPEN_FDS, || Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64));
    gauge(&server_rows::MAX_FDS, max_fds);
    let start_time = start_time().unwrap_or(0.0);
    instruments.observe_gauge(&server_rows::START_TIME, Vec::new(), move || start_time);
    instruments.observe_float_counter(&server_rows::CPU_SECONDS, || cpu_seconds().unwrap_or(0.0));
}

/// A line of `/proc/self/status` such as `VmRSS:    1234 kB`.
fn status_bytes(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

/// A field of `/proc/self/stat` by its number in proc(5), from 3 on.
fn stat(field: usize) -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(field - 3)?.parse().ok()
}

fn cpu_seconds() -> Option<f64> {
    Some((stat(14)? + stat(15)?) / TICKS_PER_SECOND)
}

fn start_time() -> Option<f64> {
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat(22)? / TICKS_PER_SECOND)
}

fn max_fds() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(f64::INFINITY),
        limit => limit.parse().ok(),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::SystemTime;

    #[test]
    fn the_process_reads_itself() {
        let resident = super::status_bytes("VmRSS:").unwrap();
        let virtual_memory = super::status_bytes("VmSize:").unwrap();
        assert!(resident > 1e5 && virtual_memory > resident, "{resident} of {virtual_memory}");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - super::start_time().unwrap();
        assert!((-2.0..86400.0).contains(&age), "started {age} s ago");
        assert!(super::cpu_seconds().unwrap() >= 0.0);
        assert!(super::max_fds().unwrap() >= 8.0);
        assert_eq!(super::status_bytes("Nothing:"), None);
    }
}
