//! The routes that exist, once: path pattern, template for traces, and whether requests to it are traced and measured.

use limpid_telemetry::RouteMethod;

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    ChatCompletions,
    Completions,
    Models,
    Model,
    Tokenize,
    Detokenize,
    Health,
    Ping,
    Version,
    Metrics,
    MetricsSlash,
}

impl Route {
    const ALL: [Route; 11] = [
        Route::ChatCompletions,
        Route::Completions,
        Route::Models,
        Route::Model,
        Route::Tokenize,
        Route::Detokenize,
        Route::Health,
        Route::Ping,
        Route::Version,
        Route::Metrics,
        Route::MetricsSlash,
    ];

    /// The router's pattern.
    pub(super) const fn pattern(self) -> &'static str {
        match self {
            Route::ChatCompletions => "/v1/chat/completions",
            Route::Completions => "/v1/completions",
            Route::Models => "/v1/models",
            // Names of models contain slashes.
            Route::Model => "/v1/models/{*model}",
            Route::Tokenize => "/tokenize",
            Route::Detokenize => "/detokenize",
            Route::Health => "/health",
            Route::Ping => "/ping",
            Route::Version => "/version",
            Route::Metrics => "/metrics",
            Route::MetricsSlash => "/metrics/",
        }
    }

    /// `http.route`.
    pub(super) fn template(self) -> &'static str {
        if self == Route::Model { "/v1/models/{model}" } else { self.pattern() }
    }

    /// The method that it is meant for.
    fn method(self) -> &'static str {
        match self {
            Route::Models
            | Route::Model
            | Route::Health
            | Route::Ping
            | Route::Version
            | Route::Metrics
            | Route::MetricsSlash => "GET",
            _ => "POST",
        }
    }

    /// Method and template of the routes whose requests are measured.
    pub(super) fn measured() -> Vec<RouteMethod> {
        Route::ALL
            .into_iter()
            .filter(|route| route.has_span())
            .map(|route| (route.method(), route.template()))
            .collect()
    }

    /// Probes and scrapes would fill the traces with nothing.
    pub(super) fn has_span(self) -> bool {
        !matches!(self, Route::Health | Route::Ping | Route::Version | Route::Metrics | Route::MetricsSlash)
    }

    /// The route with this pattern.
    pub(super) fn of(pattern: &str) -> Option<Route> {
        Route::ALL.into_iter().find(|route| route.pattern() == pattern)
    }
}
