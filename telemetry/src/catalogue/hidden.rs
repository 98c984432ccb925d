//! Names that vLLM gave up: hidden, and shown again by `--show-hidden-metrics-for-version`.
//!
//! A hidden name is a second stream of the instrument that took its place, made by a View. So both count the same
//! recordings, on `/metrics` and by push, and recording costs nothing more.
//!
//! How sure the table is: that these names were vLLM's and what took their place is known from dashboards that still
//! pin them and from vLLM's own design notes. In which release each went is not: vLLM 0.33, which the catalogue was
//! checked against, has none of them and does not say when it lost them. The versions in [`Hidden::until`] are
//! therefore unverified. Whoever misses a name asks for an older version; 0.7 shows all of them.

/// A name that is no longer exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// The old name, final on the wire.
    pub name: &'static str,
    /// The instrument whose second stream it is.
    pub instrument: &'static str,
    /// HELP text.
    pub description: &'static str,
    /// Latest version of vLLM, major and minor, that is taken to have exposed it; unverified, see the module.
    pub until: (u32, u32),
}

impl Hidden {
    /// Whether somebody who asks for the metrics of this version of vLLM sees it.
    pub fn shown_for(&self, version: (u32, u32)) -> bool {
        version <= self.until
    }
}

/// The deprecation table.
pub const HIDDEN: &[Hidden] = &[
    Hidden {
        name: "vllm:gpu_cache_usage_perc",
        instrument: "vllm.kv_cache_usage_perc",
        description: "Deprecated: old name of vllm:kv_cache_usage_perc.",
        until: (0, 11),
    },
    Hidden {
        name: "vllm:gpu_prefix_cache_queries_total",
        instrument: "vllm.prefix_cache_queries",
        description: "Deprecated: old name of vllm:prefix_cache_queries_total.",
        until: (0, 11),
    },
    Hidden {
        name: "vllm:gpu_prefix_cache_hits_total",
        instrument: "vllm.prefix_cache_hits",
        description: "Deprecated: old name of vllm:prefix_cache_hits_total.",
        until: (0, 11),
    },
    Hidden {
        name: "vllm:time_per_output_token_seconds",
        instrument: "vllm.inter_token_latency_seconds",
        description: "Deprecated: old name of vllm:inter_token_latency_seconds.",
        until: (0, 11),
    },
    Hidden {
        name: "vllm:time_in_queue_requests",
        instrument: "vllm.request_queue_time_seconds",
        description: "Deprecated: old name of vllm:request_queue_time_seconds.",
        until: (0, 7),
    },
];

#[cfg(test)]
mod tests {
    use super::HIDDEN;
    use crate::catalogue;

    #[test]
    fn a_hidden_name_stands_for_a_living_instrument_and_nothing_else_has_it() {
        for hidden in HIDDEN {
            assert!(catalogue::row_of_instrument(hidden.instrument).is_some(), "{}", hidden.name);
            assert!(catalogue::rows().all(|row| row.exposed_name() != hidden.name), "{}", hidden.name);
        }
    }

    #[test]
    fn an_older_version_shows_more() {
        let shown = |version| HIDDEN.iter().filter(|hidden| hidden.shown_for(version)).count();
        assert_eq!((shown((0, 12)), shown((0, 11)), shown((0, 7))), (0, 4, 5));
    }
}
