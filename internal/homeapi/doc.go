// Package homeapi lets pods that run in another cluster ask the API server of their home. The
// provider's half, Abroad, ends their TLS and carries their connections over the session with
// home; home's half, Home, answers them: it checks that the pod and its namespace opted in,
// adds a token of the pod's own ServiceAccount, and passes requests on. No credential leaves
// home.
package homeapi
