//! Panels, rows and dashboards as Grafana's classic JSON (schema 39, which Grafana 10.4 to 13 reads).

use serde_json::{Value, json};

use super::Dashboard;

/// Columns of Grafana's grid, and the size of a panel: three side by side.
const COLUMNS: usize = 24;
const WIDTH: usize = 8;
const HEIGHT: usize = 8;

/// A time series panel.
pub(super) struct Panel {
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    targets: Vec<Target>,
}

struct Target {
    query: String,
    legend: &'static str,
    exemplar: bool,
}

impl Panel {
    pub(super) fn new(title: &'static str, unit: &'static str, description: &'static str) -> Panel {
        Panel { title, description, unit, targets: Vec::new() }
    }

    /// Adds a query.
    pub(super) fn query(mut self, legend: &'static str, query: impl Into<String>) -> Panel {
        self.targets.push(Target { query: query.into(), legend, exemplar: false });
        self
    }

    /// Adds the 50th, 95th and 99th percentile of a histogram; the last with exemplars, which lead to traces.
    pub(super) fn percentiles(mut self, histogram: &str, filter: &str) -> Panel {
        for (legend, quantile) in [("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99")] {
            self = self.query(legend, percentile(histogram, filter, quantile));
        }
        self.targets.last_mut().expect("just added").exemplar = true;
        self
    }

    pub(super) fn queries(&self) -> impl Iterator<Item = &str> {
        self.targets.iter().map(|target| target.query.as_str())
    }

    fn json(&self, id: usize, x: usize, y: usize) -> Value {
        let targets: Vec<Value> = self
            .targets
            .iter()
            .zip('A'..)
            .map(|(target, reference)| {
                let mut json = json!({
                    "refId": reference.to_string(),
                    "expr": target.query,
                    "legendFormat": target.legend,
                    "range": true
                });
                if target.exemplar {
                    json["exemplar"] = true.into();
                }
                json
            })
            .collect();
        json!({
            "id": id,
            "type": "timeseries",
            "title": self.title,
            "description": self.description,
            "gridPos": {"h": HEIGHT, "w": WIDTH, "x": x, "y": y},
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "targets": targets,
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "min": 0,
                    "custom": {"fillOpacity": 8, "showPoints": "never"}
                },
                "overrides": []
            },
            "options": {
                "legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi"}
            }
        })
    }
}

/// A percentile over all series of a histogram that pass the filter (`{…}` or empty).
pub(super) fn percentile(histogram: &str, filter: &str, quantile: &str) -> String {
    format!(
        "histogram_quantile({quantile}, sum by (le) (rate({histogram}_bucket{filter}[$__rate_interval])))"
    )
}

/// A variable whose values are those of a label.
pub(super) fn variable(name: &str, query: &str) -> Value {
    json!({
        "name": name,
        "type": "query",
        "label": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "refresh": 2,
        "multi": true,
        "includeAll": true,
        "current": {"text": "All", "value": "$__all"}
    })
}

/// A dashboard under construction.
pub(super) struct Board {
    uid: &'static str,
    title: &'static str,
    description: &'static str,
    variables: Vec<Value>,
    panels: Vec<Value>,
    queries: Vec<(String, String)>,
    y: usize,
}

impl Board {
    pub(super) fn new(uid: &'static str, title: &'static str, description: &'static str) -> Board {
        let source = json!({"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"});
        Board {
            uid,
            title,
            description,
            variables: vec![source],
            panels: Vec::new(),
            queries: Vec::new(),
            y: 0,
        }
    }

    pub(super) fn variable(mut self, name: &str, query: &str) -> Board {
        self.variables.push(variable(name, query));
        self
    }

    /// Adds a row with panels below it, three side by side.
    pub(super) fn row(mut self, title: &str, panels: Vec<Panel>) -> Board {
        self.heading(title);
        for (index, panel) in panels.iter().enumerate() {
            let x = index * WIDTH % COLUMNS;
            let y = self.y + index * WIDTH / COLUMNS * HEIGHT;
            self.panels.push(panel.json(self.panels.len() + 1, x, y));
            let queries = panel.targets.iter().map(|target| (panel.title.to_owned(), target.query.clone()));
            self.queries.extend(queries);
        }
        self.y += panels.len().div_ceil(COLUMNS / WIDTH) * HEIGHT;
        self
    }

    /// Adds a row with the latest traces of a service, from the Jaeger data source that is provisioned.
    pub(super) fn latest_traces(mut self, title: &str, service: &str) -> Board {
        self.heading(title);
        self.panels.push(json!({
            "id": self.panels.len() + 1,
            "type": "table",
            "title": title,
            "gridPos": {"h": HEIGHT, "w": COLUMNS, "x": 0, "y": self.y},
            "datasource": {"type": "jaeger", "uid": "limpid-jaeger"},
            "targets": [{"refId": "A", "queryType": "search", "service": service, "limit": 20}]
        }));
        self.y += HEIGHT;
        self
    }

    fn heading(&mut self, title: &str) {
        self.panels.push(json!({
            "id": self.panels.len() + 1,
            "type": "row",
            "title": title,
            "collapsed": false,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": self.y},
            "panels": []
        }));
        self.y += 1;
    }

    pub(super) fn build(self) -> Dashboard {
        let json = json!({
            "id": null,
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["limpid"],
            "schemaVersion": 39,
            "version": 1,
            "refresh": "15s",
            "timezone": "browser",
            "graphTooltip": 1,
            "time": {"from": "now-30m", "to": "now"},
            "annotations": {"list": []},
            "links": [{
                "type": "dashboards", "title": "limpid", "tags": ["limpid"], "asDropdown": true,
                "keepTime": true, "includeVars": true
            }],
            "templating": {"list": self.variables},
            "panels": self.panels
        });
        Dashboard { uid: self.uid, queries: self.queries, json }
    }
}
