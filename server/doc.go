// Package server implements the gRPC services of proto/entente/v1 that other clusters call. A
// cluster that is not trusted can only join, introduce itself and ask for health. What
// administrators call is package server/admin.
//
// Handlers only record what was asked for. A call is authenticated, authorised, limited and
// validated by the middleware (server/internal/middleware), passed to one of the small interfaces
// that this package declares, and answered. Reconcilers do the rest.
package server
