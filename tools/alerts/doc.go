// Package alerts tests the chart's alerts and its dashboard with the engine of Prometheus. It is a
// module of its own: what it depends on is no business of the product.
package alerts
