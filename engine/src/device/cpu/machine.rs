//! What the operating system says about this machine: the CPU's name and the memory that is free.
//!
//! Everything is read from Linux's text files and absent elsewhere; the parsing is apart from the reading.

use std::fs;
use std::path::Path;

/// The CPU's model name, or the architecture where the system does not tell.
pub(super) fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model_name(&info).unwrap_or(std::env::consts::ARCH).to_owned()
}

fn model_name(cpuinfo: &str) -> Option<&str> {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let name = lines.filter(|(key, _)| key.trim() == "model name").map(|(_, name)| name.trim()).next()?;
    (!name.is_empty()).then_some(name)
}

/// Bytes that this process may still take: what the kernel calls available, or less if a control group
/// allows less.
pub(in crate::device) fn available_memory() -> Option<u64> {
    let available = meminfo_available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let mut free = available;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, limit, usage) = match controllers {
            "" => (root.to_owned(), "memory.max", "memory.current"),
            list if list.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        // Limits of the groups above hold too; inside a container only the root may be visible.
        let own = base.join(path.trim_start_matches('/'));
        for directory in own.ancestors().take_while(|directory| directory.starts_with(&base)) {
            let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
            let (Some(limit), Some(usage)) = (read(limit), read(usage)) else { continue };
            if let Some(left) = group_free(&limit, &usage, &read("memory.stat").unwrap_or_default()) {
                free = free.min(left);
            }
        }
    }
    Some(free)
}

fn meminfo_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a control group leaves: its limit less its usage, of which file pages can be dropped. `None` if the
/// group has no limit.
fn group_free(limit: &str, usage: &str, stat: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let usage: u64 = usage.trim().parse().ok()?;
    let droppable = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    Some(limit.saturating_sub(usage.saturating_sub(droppable.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_name_is_the_first_that_is_given() {
        let info = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Some CPU: fast\nmodel name\t: Other\n";
        assert_eq!(model_name(info), Some("Some CPU: fast"));
        assert_eq!(model_name("processor : 0\nmodel name :\n"), None);
        assert_eq!(model_name(""), None);
    }

    #[test]
    fn available_memory_is_read_in_kilobytes() {
        assert_eq!(meminfo_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo_available("MemTotal: 9 kB\n"), None);
        assert_eq!(meminfo_available("MemAvailable: 18446744073709551615 kB\n"), None);
    }

    #[test]
    fn a_group_leaves_its_limit_less_what_cannot_be_dropped() {
        assert_eq!(group_free("1000\n", "700\n", "anon 5\ninactive_file 200\n"), Some(500));
        assert_eq!(group_free("1000\n", "700\n", ""), Some(300));
        assert_eq!(group_free("1000\n", "7000\n", ""), Some(0));
        assert_eq!(group_free("max\n", "700\n", ""), None);
    }

    #[test]
    fn this_machine_has_a_name() {
        assert!(!cpu_name().is_empty());
        #[cfg(target_os = "linux")]
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
