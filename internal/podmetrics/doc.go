// Package podmetrics says what pods that run abroad use. A Provider measures the pods of a
// contract by what its cluster has for that, and a Home makes of its answers what the kubelet
// of a virtual node shows: /metrics/resource and /stats/summary.
package podmetrics
