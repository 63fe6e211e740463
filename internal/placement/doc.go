// Package placement lets pods of offloaded namespaces onto virtual nodes where the API server has
// no MutatingAdmissionPolicies: Kubernetes before 1.36, unless their beta is on there. It is an admission
// webhook that does what the chart's policy says (templates/placement.yaml); a test with an API
// server holds the two together.
package placement
