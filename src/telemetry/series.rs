//! Handles on single series, each made when it is first needed and kept from then on.
//!
//! The vectors of the `prometheus` crate hash every label value under a lock on each look-up.
//! These cells pay for that once per series; afterwards an update is one load and one atomic add.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use prometheus::IntGauge;
use prometheus::core::{MetricVec, MetricVecBuilder};

use super::label::Label;

/// A vector, whatever kind of series it holds.
pub(super) trait Vector: Clone {
    /// One series.
    type Series;
    /// The series with these label values; finding it takes a lock and a hash.
    fn series(&self, labels: &[&str]) -> Self::Series;
}

impl<B: MetricVecBuilder> Vector for MetricVec<B> {
    type Series = B::M;

    fn series(&self, labels: &[&str]) -> B::M {
        self.with_label_values(labels)
    }
}

/// The only series a server has in a vector labelled `server`.
pub(super) struct ByServer<V: Vector> {
    vector: V,
    server: Arc<str>,
    cell: OnceLock<V::Series>,
}

impl<V: Vector> ByServer<V> {
    pub(super) fn new(vector: &V, server: &Arc<str>) -> Self {
        ByServer { vector: vector.clone(), server: Arc::clone(server), cell: OnceLock::new() }
    }

    pub(super) fn get(&self) -> &V::Series {
        self.cell.get_or_init(|| self.vector.series(&[&*self.server]))
    }
}

/// A server's series in a vector labelled `server` and one [`Label`].
pub(super) struct ByLabel<L, V: Vector> {
    vector: V,
    server: Arc<str>,
    cells: Box<[OnceLock<V::Series>]>,
    label: PhantomData<fn(L)>,
}

impl<L: Label, V: Vector> ByLabel<L, V> {
    pub(super) fn new(vector: &V, server: &Arc<str>) -> Self {
        ByLabel { vector: vector.clone(), server: Arc::clone(server), cells: empty(L::COUNT), label: PhantomData }
    }

    pub(super) fn get(&self, label: L) -> &V::Series {
        self.cells[label.index()].get_or_init(|| self.vector.series(&[&*self.server, label.text()]))
    }
}

/// A server's series in a vector labelled `server` and two [`Label`]s.
pub(super) struct ByPair<L, K, V: Vector> {
    vector: V,
    server: Arc<str>,
    cells: Box<[OnceLock<V::Series>]>,
    labels: PhantomData<fn(L, K)>,
}

impl<L: Label, K: Label, V: Vector> ByPair<L, K, V> {
    pub(super) fn new(vector: &V, server: &Arc<str>) -> Self {
        ByPair {
            vector: vector.clone(),
            server: Arc::clone(server),
            cells: empty(L::COUNT * K::COUNT),
            labels: PhantomData,
        }
    }

    pub(super) fn get(&self, first: L, second: K) -> &V::Series {
        self.cells[first.index() * K::COUNT + second.index()]
            .get_or_init(|| self.vector.series(&[&*self.server, first.text(), second.text()]))
    }
}

/// One unit on a gauge, taken back when this is dropped.
#[must_use = "dropping this at once takes the unit back"]
pub(super) struct Unit(IntGauge);

impl Unit {
    pub(super) fn on(gauge: &IntGauge) -> Self {
        gauge.inc();
        Unit(gauge.clone())
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// `count` cells with nothing in them.
pub(super) fn empty<M>(count: usize) -> Box<[OnceLock<M>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}
