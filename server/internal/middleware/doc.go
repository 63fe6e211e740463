// Package middleware is what surrounds each gRPC call, of peers and of administrators: limits,
// validation, the log, and how an error becomes a status.
package middleware
