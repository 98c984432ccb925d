//! Scheduler and KV cache in worlds drawn from seeds. `cargo xtask sim --seed N` replays one.

use limpid_tests::simulation::{Fault, Options, run, run_many};

/// Worlds in an ordinary test run; `cargo xtask sim --count` runs as many as asked.
const WORLDS: u64 = 1000;

#[test]
fn worlds_keep_every_invariant_and_drain() {
    let summary = run_many(0, WORLDS).unwrap_or_else(|error| panic!("{error}"));
    // Worlds in which nothing happens would prove nothing.
    assert!(summary.preemptions > WORLDS && summary.hits > 10 * WORLDS, "{summary:?}");
    assert!(summary.sleeps > WORLDS / 4 && summary.waited_for > WORLDS / 20, "{summary:?}");
}

#[test]
fn same_seed_gives_the_same_world() {
    for seed in 0..20 {
        assert_eq!(run(seed, Options::default()), run(seed, Options::default()));
    }
}

/// One of 1,000 seeds has a world that shows the fault by an error with `text` in it.
fn assert_found(fault: Fault, without_books: bool, text: &str) {
    let options = Options { fault: Some(fault), without_books };
    let found = (0..1000).filter_map(|seed| run(seed, options).err()).any(|error| error.contains(text));
    assert!(found, "{fault:?} goes unseen in 1,000 worlds");
}

#[test]
fn block_freed_twice_is_found_by_the_books_by_the_pool_and_by_its_contents() {
    assert_found(Fault::BlockFreedTwice, false, "against its owners");
    assert_found(Fault::BlockFreedTwice, true, "given back more often than taken");
    assert_found(Fault::BlockFreedTwice, true, "KV of request");
}

#[test]
fn wrong_block_found_for_a_prefix_is_found_by_the_books_and_by_its_contents() {
    assert_found(Fault::WrongBlockFound, false, "shared before it is full");
    assert_found(Fault::WrongBlockFound, true, "KV of request");
}

#[test]
fn lost_store_is_found_by_the_contents() {
    assert_found(Fault::StoreLost, false, "KV of request");
}

/// What `cargo xtask sim` runs: seeds from `LIMPID_SIM_SEED` on, `LIMPID_SIM_COUNT` of them.
#[test]
#[ignore = "run by cargo xtask sim"]
#[expect(clippy::print_stdout, reason = "people read the summary")]
fn seeds_from_the_environment() {
    let number = |name: &str, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text}; allowed: a whole number")),
        Err(_) => default,
    };
    let (seed, count) = (number("LIMPID_SIM_SEED", 0), number("LIMPID_SIM_COUNT", 1));
    let summary = run_many(seed, count).unwrap_or_else(|error| panic!("{error}"));
    println!("{summary:?}");
}
