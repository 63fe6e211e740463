// Package homeapi lets pods that run in another cluster call the API server of their home. The
// provider's half, Abroad, terminates their TLS and carries their connections over the session
// with home. Home's half, Home, serves them: it checks that the pod and its namespace opted in,
// adds a token of the pod's own ServiceAccount, and passes requests on. No credential leaves
// home.
package homeapi
