// Package server answers peers: the gRPC services of proto/entente/v1 that other clusters
// call. A cluster that is not trusted can join, introduce itself and ask for health, nothing
// else. What administrators call is package server/admin.
//
// Handlers record, they do not work. A call is authenticated, authorised, limited and
// validated by the middleware (server/internal/middleware), passed to one of the small
// interfaces that this package declares, and answered. The rest is done by reconcilers.
package server
