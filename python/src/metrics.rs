//! What engines count, as Python shows it.

use kvferry_engine::Transport;
use kvferry_engine::metrics::{Direction, FAMILIES, Family, Kind, Sample, at_zero};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Values of one name, told apart by labels.
#[pyclass(frozen, name = "MetricFamily", module = "kvferry")]
pub(crate) struct PyMetricFamily(&'static Family);

#[pymethods]
impl PyMetricFamily {
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    /// "counter" or "gauge".
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }

    #[getter]
    fn help(&self) -> &'static str {
        self.0.help
    }

    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.labels)
    }

    /// The values of the labels of all that are there from the start.
    #[getter]
    fn series<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let all = at_zero().into_iter().filter(|sample| sample.family == self.0);
        all.map(|sample| PyTuple::new(py, sample.labels)).collect()
    }

    fn __repr__(&self) -> String {
        format!("<kvferry.MetricFamily {}>", self.0.name)
    }
}

#[pyfunction]
pub(crate) fn metric_families() -> Vec<PyMetricFamily> {
    FAMILIES.iter().copied().map(PyMetricFamily).collect()
}

pub(crate) fn by_series(py: Python<'_>, samples: &[Sample]) -> PyResult<Py<PyDict>> {
    let values = PyDict::new(py);
    for Sample { family, labels, value } in samples {
        let series: Vec<_> = std::iter::once(&family.name).chain(labels).collect();
        values.set_item(PyTuple::new(py, series)?, value)?;
    }
    Ok(values.unbind())
}

pub(crate) fn direction(name: &str) -> PyResult<Direction> {
    let known = [Direction::Sent, Direction::Received];
    known.into_iter().find(|one| one.name() == name).ok_or_else(|| {
        PyValueError::new_err(format!("{name:?} is neither \"sent\" nor \"received\""))
    })
}

pub(crate) fn transport(name: Option<&str>) -> PyResult<Option<Transport>> {
    let Some(name) = name else { return Ok(None) };
    let found = Transport::named(name);
    found.map(Some).ok_or_else(|| PyValueError::new_err(format!("there is no transport {name:?}")))
}
