//! The objects that `done` gets: distributions of latencies and of rates.

use hdrhistogram::Histogram;
use mlua::{Error, MetaMethod, Result, UserData, UserDataFields, UserDataMethods, Value};

/// A distribution as a script sees it.
#[derive(Debug)]
pub(super) struct Statistics {
    histogram: Histogram<u64>,
    /// What the histogram counts in, over what the script is told: 1000 for ns as µs.
    scale: f64,
}

impl Statistics {
    pub(super) fn new(histogram: Histogram<u64>, scale: f64) -> Statistics {
        Statistics { histogram, scale }
    }

    /// A value that was recorded, in the script's unit. Values that the histogram does not tell apart are one value.
    fn scaled(&self, value: u64) -> f64 {
        (self.histogram.lowest_equivalent(value) as f64 / self.scale).round()
    }

    fn percentile(&self, percentile: f64) -> f64 {
        self.scaled(self.histogram.value_at_percentile(percentile))
    }

    /// The `index`-th smallest value that was recorded, from 1 on, and how often it was.
    fn value(&self, index: usize) -> (f64, u64) {
        let step = index.checked_sub(1).and_then(|index| self.histogram.iter_recorded().nth(index));
        step.map_or((0.0, 0), |step| (self.scaled(step.value_iterated_to()), step.count_at_value()))
    }

    fn values(&self) -> usize {
        self.histogram.iter_recorded().count()
    }
}

impl UserData for Statistics {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("min", |_, this| Ok(this.scaled(this.histogram.min())));
        fields.add_field_method_get("max", |_, this| Ok(this.scaled(this.histogram.max())));
        fields.add_field_method_get("mean", |_, this| Ok(this.histogram.mean() / this.scale));
        fields.add_field_method_get("stdev", |_, this| Ok(this.histogram.stdev() / this.scale));
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("percentile", |_, this, percentile: f64| Ok(this.percentile(percentile)));
        methods.add_meta_method(MetaMethod::Call, |_, this, index: usize| Ok(this.value(index)));
        methods.add_meta_method(MetaMethod::Len, |_, this, ()| Ok(this.values()));
        // wrk2: `latency[i]` is the value below which i of all the values lie.
        methods.add_meta_method(MetaMethod::Index, |_, this, key: Value| index(this, &key));
    }
}

fn index(this: &Statistics, key: &Value) -> Result<Value> {
    let index = match key {
        Value::Integer(index) => *index as f64,
        Value::Number(index) => *index,
        other => {
            let name = other.to_string()?;
            return Err(Error::runtime(format!(
                "there is no '{name}' in a distribution: see wrk's SCRIPTING"
            )));
        }
    };
    Ok(Value::Number(this.percentile((100.0 * index / this.values().max(1) as f64).clamp(0.0, 100.0))))
}
