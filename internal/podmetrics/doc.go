// Package podmetrics measures what pods abroad use. A Provider measures the pods of a contract with
// its cluster's metrics API, and a Home turns the measurements into the metrics of a virtual node's
// kubelet: /metrics/resource and /stats/summary.
package podmetrics
