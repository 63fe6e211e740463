// Package admin serves AdminService of proto/entente/v1 to the cluster's administrators, over
// gRPC, and over REST by grpc-gateway, on one port. A client certificate or a bearer token of the
// Kubernetes cluster authenticates callers, and its RBAC authorizes them.
package admin
