// Package server answers peers and administrators: the gRPC services of
// proto/entente/v1, and REST for the administrators.
//
// Handlers record, they do not work. A call is authenticated, authorised,
// limited and validated by the middleware in interceptor.go, is handed to one of
// the small interfaces that this package declares, and is answered. What follows
// from it is the reconcilers' to do.
//
// There are two servers. [Peer] is what other clusters see: a cluster that is
// not trusted can join, introduce itself and ask for health, nothing else.
// [Admin] is for the cluster's own people, who are known by a client certificate
// or a bearer token of their Kubernetes cluster and allowed what its RBAC allows
// them.
package server
