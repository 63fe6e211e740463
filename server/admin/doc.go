// Package admin answers the cluster's own people: AdminService of proto/entente/v1 over
// gRPC, and over REST by grpc-gateway, on one port. Callers are known by a client certificate
// or a bearer token of their Kubernetes cluster, and are allowed what its RBAC allows them.
package admin
