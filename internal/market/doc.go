// Package market decides what clusters agree on, as a function of values: what a
// provider offers a peer, by its policies, what its nodes have free and what it
// granted already, and which of several providers' offers a consumer takes. It reads
// custom resources and calls nothing.
package market
