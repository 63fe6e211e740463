// Package alerts tests the chart's alerts and its dashboard with the engine of Prometheus. It is a
// module of its own: the product does not depend on what it needs.
package alerts
