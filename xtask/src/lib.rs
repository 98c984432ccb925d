//! What the chores of `cargo xtask` share with the tests: where the programs of others are ([`programs`]), which
//! metrics a query needs ([`promql`]), and the dashboards that are made from the catalogue ([`dashboards`]).

pub mod dashboards;
pub mod programs;
pub mod promql;
