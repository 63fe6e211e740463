// Package placement lets pods of offloaded namespaces onto virtual nodes if the API server has no
// MutatingAdmissionPolicies: Kubernetes before 1.36, unless their beta is on there. It is an admission webhook that
// does the same as the chart's policies (templates/placement.yaml); a test with an API server compares the two.
package placement
