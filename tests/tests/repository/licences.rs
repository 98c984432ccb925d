//! Every package's licence is one that `deny.toml` allows, so that the rule holds without `cargo-deny`
//! installed. `cargo deny check` remains the tool for advisories and bans.

use limpid_tests::gaps::Gaps;
use spdx::{Expression, LicenseReq, ParseMode};

/// The allow list, and the extra licences of single crates.
struct Allowed {
    everywhere: Vec<String>,
    exceptions: Vec<(String, Vec<String>)>,
}

fn allowed() -> Allowed {
    let deny: toml::Table = super::read("deny.toml").parse().expect("deny.toml should be TOML");
    let strings = |value: &toml::Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let licences = &deny["licenses"];
    let exceptions = licences["exceptions"].as_array().unwrap();
    Allowed {
        everywhere: strings(&licences["allow"]),
        exceptions: exceptions
            .iter()
            .map(|exception| (exception["crate"].as_str().unwrap().to_owned(), strings(&exception["allow"])))
            .collect(),
    }
}

/// Every package of the lock file. Offline, cargo knows only packages it has fetched; without those of other
/// platforms the check covers this one.
fn packages() -> Vec<serde_json::Value> {
    let arguments = ["metadata", "--format-version", "1"];
    let printed = super::try_cargo(&arguments).unwrap_or_else(|_| {
        let version = super::rustc_version();
        let host =
            version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc -vV has a host");
        super::cargo(&[&arguments[..], &["--filter-platform", host]].concat())
    });
    let metadata: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let packages = metadata["packages"].as_array().unwrap().clone();
    assert!(packages.len() > 100, "cargo metadata should list the whole tree");
    packages
}

fn name(requirement: &LicenseReq) -> String {
    requirement.to_string()
}

#[test]
fn every_package_has_an_allowed_licence() {
    let allowed = allowed();
    let mut gaps = Gaps::default();
    let lock = super::read("Cargo.lock");
    // A package of another platform may be in the lock file and not among those fetched.
    let mut unused: Vec<&str> = (allowed.exceptions.iter().map(|(name, _)| name.as_str()))
        .filter(|name| !lock.contains(&format!("name = \"{name}\"")))
        .collect();
    let packages = packages();
    for package in &packages {
        let package_name = package["name"].as_str().unwrap();
        let Some(licence) = package["license"].as_str() else {
            gaps.note(format_args!("{package_name} states no licence"));
            continue;
        };
        let expression = match Expression::parse_mode(licence, ParseMode::LAX) {
            Ok(expression) => expression,
            Err(error) => {
                gaps.note(format_args!("{package_name}: {licence}: {error}"));
                continue;
            }
        };
        let exception = allowed.exceptions.iter().find(|(name, _)| name == package_name);
        let without = expression.evaluate(|requirement| allowed.everywhere.contains(&name(requirement)));
        let with = expression.evaluate(|requirement| {
            let name = name(requirement);
            allowed.everywhere.contains(&name) || exception.is_some_and(|(_, more)| more.contains(&name))
        });
        gaps.expect(with, format_args!("{package_name}: {licence}"));
        if without && exception.is_some() {
            unused.push(package_name);
        }
    }
    for name in unused {
        gaps.note(format_args!("the exception for {name} is of no use any more"));
    }
    gaps.assert_none("allowed are the licences in deny.toml");
}

#[test]
fn every_package_comes_from_crates_io_or_from_here() {
    let mut gaps = Gaps::default();
    for package in &packages() {
        let source = package["source"].as_str();
        gaps.expect(
            source.is_none_or(|source| source == "registry+https://github.com/rust-lang/crates.io-index"),
            format_args!("{} comes from {source:?}", package["name"]),
        );
    }
    gaps.assert_none("see [sources] in deny.toml");
}
